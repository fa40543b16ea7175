"""Be the stdin and stdout of a program on another task, as the command of the transport ``tf_config``.

The controller starts this file by its path, with the path of its Unix socket, the name of the task and the program as
JSON. It asks for the program there, gets the connection to it as a file descriptor, and copies bytes in both
directions. It sees no key. This file imports only the standard library.
"""

import json
import os
import socket
import struct
import sys
import threading

PIECE = 1 << 16
LAST_WORDS = 1.0
"""Maximum seconds for the last output of a program that has ended."""
END_WAIT = 20.0
"""Maximum seconds until the end of a program is said whose output has ended: longer than a lost task stays unnoticed
(:data:`pytest_ddl.hosts.frames.PATIENCE`)."""


def ask(path: str, task: "str | None", program: list[str]) -> socket.socket:
    """Ask for a program. Return the Unix socket, on which the answer comes.

    Without a task, the answer comes when all tasks have dialed in, or says which have not.
    """
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    local.connect(path)
    data = json.dumps({"task": task, "program": program}).encode()
    local.sendall(struct.pack("!I", len(data)) + data)
    return local


def problem_of(data: bytes) -> str:
    """Return the text of a message about a problem, which is empty without one.

    What is no message comes from a pytest process that has ended.
    """
    try:
        return str(json.loads(data[4:])["problem"])
    except (ValueError, LookupError, TypeError):
        return "pytest has ended"


def read_all(local: socket.socket, data: bytes = b"") -> bytes:
    """Return what is said until the end of the connection."""
    try:
        while part := local.recv(PIECE):
            data += part
    except OSError:
        pass
    return data


def leave(status: int, problem: str = "") -> None:
    """End at once, though a thread may still wait for bytes."""
    if problem:
        os.write(2, f"{problem}\n".encode())
    os._exit(status)


def copy_input(program: socket.socket) -> None:
    """Copy stdin to the program, and close the program's stdin at its end."""
    try:
        while data := os.read(0, PIECE):
            program.sendall(data)
        program.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def copy_output(program: socket.socket) -> None:
    """Copy what the program writes to stdout."""
    try:
        while data := program.recv(PIECE):
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]
    except OSError:
        pass


def main() -> None:
    path, task, program = sys.argv[1:]
    try:
        local = ask(path, task, json.loads(program))
        first, numbers, _flags, _address = socket.recv_fds(local, 1, 1)
    except OSError as error:
        leave(1, f"pytest does not listen at {path} any more ({error.strerror})")
    if not numbers:
        leave(1, problem_of(read_all(local, first)))
    connection = socket.socket(fileno=numbers[0])
    over, problems = threading.Event(), []

    def until_output_ends() -> None:
        copy_output(connection)
        over.set()

    def until_problem() -> None:
        problems.append(problem_of(read_all(local)))
        over.set()

    threading.Thread(target=copy_input, args=(connection,), daemon=True).start()
    ends = [threading.Thread(target=end, daemon=True) for end in (until_output_ends, until_problem)]
    for end in ends:
        end.start()
    # A broken network may show in one of the two only.
    over.wait()
    ends[0].join(LAST_WORDS)
    ends[1].join(END_WAIT)
    problem = problems[0] if problems else f"{task} has not said within {END_WAIT:.0f} s how its program has ended"
    leave(1 if problem else 0, problem)


if __name__ == "__main__":
    main()
