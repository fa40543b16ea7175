"""Start the command that reaches a host, in a session of its own and with its messages in a file.

execnet starts this file by its path, as the Python of its gateway. The arguments are the file for messages, and the
command as JSON. Both are in base64, because execnet splits the text at spaces. The first line of the file is the id of
this process. The arguments that execnet adds are not used: the
command has its own. This file imports only the standard library.
"""

import base64
import json
import os
import sys


def main() -> None:
    log, command = sys.argv[1], json.loads(base64.b64decode(sys.argv[2]))
    messages = os.open(base64.b64decode(log).decode(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(messages, f"{os.getpid()}\n".encode())
    os.dup2(messages, 2)
    # Outside the terminal's foreground group, so that Ctrl-C reaches only pytest, which ends the workers.
    os.setsid()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)


if __name__ == "__main__":
    main()
