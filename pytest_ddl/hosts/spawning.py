"""Start the command that reaches a host, in a session of its own and with its messages in a file.

It is started by its path. The arguments are the file for messages, and the command as JSON. The first line of the file
for messages is the id of this process. This file imports only the standard library.
"""

import json
import os
import sys


def main() -> None:
    log, command = sys.argv[1], json.loads(sys.argv[2])
    messages = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
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
