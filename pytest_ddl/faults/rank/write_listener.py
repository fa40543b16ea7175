"""Decide about the system calls of a rank that change files: the process behind the gate. Standard library only.

The rank starts it as a script, sends its plan and the descriptor of the seccomp listener, and says when a save begins
and ends. Each change of a file of the run is then a point: it is logged, and a fault that is set there strikes before
the kernel carries the call out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time

CALLS: dict[str, dict[int, str]] = {
    "x86_64": {
        2: "open", 85: "creat", 257: "openat", 1: "write", 18: "pwrite", 20: "writev", 296: "pwritev", 77: "ftruncate",
        76: "truncate", 82: "rename", 264: "renameat", 316: "renameat2", 87: "unlink", 263: "unlinkat", 83: "mkdir",
        258: "mkdirat", 326: "copy_file_range", 40: "sendfile",
    },
    "aarch64": {
        56: "openat", 64: "write", 68: "pwrite", 66: "writev", 70: "pwritev", 46: "ftruncate", 45: "truncate",
        38: "renameat", 276: "renameat2", 35: "unlinkat", 34: "mkdirat", 285: "copy_file_range", 71: "sendfile",
    },
}  # fmt: skip
"""Machine -> number of a system call that changes a file -> its name."""
_WITH_FD = {"write": 0, "pwrite": 0, "writev": 0, "pwritev": 0, "ftruncate": 0, "copy_file_range": 2, "sendfile": 0}
"""Call -> position of the argument with the descriptor of the changed file."""
_WITH_PATH = {"open": 0, "creat": 0, "openat": 1, "truncate": 0, "unlink": 0, "unlinkat": 1, "mkdir": 0, "mkdirat": 1}
_RENAMES = {"rename": (0, 1), "renameat": (1, 3), "renameat2": (1, 3)}
_FLAGS_OF = {"open": 1, "openat": 2}
_NEEDS_SPACE = {"write", "pwrite", "writev", "pwritev", "creat", "open", "openat", "mkdir", "mkdirat", "sendfile"}
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_LONGEST = 4096


class Listener:
    """State of one gate: the phase in which the rank writes, the number of its changes, and the faults."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        plan = json.loads(channel.recv(1 << 20))
        self._pid: int = plan["pid"]
        self._folder: str = plan["folder"] + os.sep
        self._faults: dict[str, list[str]] = plan["faults"]
        self._log = os.open(plan["log"], os.O_WRONLY | os.O_APPEND)
        self._names = CALLS[os.uname().machine]
        self._phase = ""
        self._changes = 0
        self._full = False
        channel.send(b"ready")
        _message, (self._calls,), _flags, _address = socket.recv_fds(channel, 16, 1)

    def run(self) -> None:
        """Serve until the rank ends."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._calls, select.POLLIN)
        while True:
            for ready, event in poll.poll():
                if ready == self._calls and event & select.POLLIN:
                    self._decide()
                elif ready == self._calls or not self._hear():
                    return

    def _hear(self) -> bool:
        message = self._channel.recv(1024)
        if message:
            phase = json.loads(message)["open"]
            self._phase, self._changes = phase, 0
            self._channel.send(b"ok")
        return bool(message)

    def _decide(self) -> None:
        notice = bytearray(80)
        try:
            fcntl.ioctl(self._calls, _RECEIVE, notice)
        except OSError:
            return  # the caller was killed meanwhile
        key, thread, _flags, number, _arch, _address, *arguments = struct.unpack("=QIIiIQ6Q", notice)
        refused = 0
        if self._phase:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                refused = self._pass(thread, self._names[number], arguments)
        answer = struct.pack("=QqiI", key, 0, -refused, 0 if refused else _CONTINUE)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._calls, _SEND, bytearray(answer))

    def _pass(self, thread: int, name: str, arguments: list[int]) -> int:
        """Log a change of a file of the run, and return the number of the error that it gets, or 0."""
        paths = [self._relative(path) for path in _paths(thread, name, arguments)]
        if not paths or any(path is None or path.startswith(".") for path in paths):
            return 0  # of another folder, or of this package
        self._changes += 1
        point = f"in {self._phase}, write {self._changes}"
        kind, text = self._faults.pop(point, ("", ""))
        facts = {"change": [name, *paths]}
        os.write(self._log, json.dumps([time.monotonic(), point, text, facts]).encode() + b"\n")
        if kind in ("kill", "torn-write"):
            if kind == "torn-write":
                _write_half(thread, name, arguments)
            os.kill(self._pid, signal.SIGKILL)
            return errno.EINTR  # a call that may continue could still be carried out before the process ends
        self._full = self._full or kind == "no-space"
        if self._full and name in _NEEDS_SPACE:
            return errno.ENOSPC
        return errno.EIO if kind == "io-error" else 0

    def _relative(self, path: str) -> str | None:
        whole = os.path.normpath(path)
        return whole[len(self._folder) :] if whole.startswith(self._folder) else None


def _paths(thread: int, name: str, arguments: list[int]) -> list[str]:
    """Return the paths that a call changes; none for a call that only reads."""
    if name in _WITH_FD:
        return [os.readlink(f"/proc/{thread}/fd/{arguments[_WITH_FD[name]] & 0x7FFFFFFF}")]
    if name in _FLAGS_OF and not arguments[_FLAGS_OF[name]] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        return []
    places = _RENAMES.get(name) or (_WITH_PATH[name],)
    directory = os.readlink(f"/proc/{thread}/cwd")
    return [
        os.path.realpath(os.path.join(directory, _text(thread, arguments[place])), strict=False) for place in places
    ]


def _text(thread: int, address: int) -> str:
    """Read a C string from the memory of a thread."""
    text = _memory(thread, address, _LONGEST - address % _LONGEST)
    if b"\0" not in text:
        text += _memory(thread, address + len(text), _LONGEST)
    return text[: text.index(b"\0")].decode()


def _memory(thread: int, address: int, size: int) -> bytes:
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)


def _write_half(thread: int, name: str, arguments: list[int]) -> None:
    """Carry out the first half of a write. Calls that write no bytes are not carried out at all."""
    if name not in ("write", "pwrite"):
        return
    number, address, size = arguments[:3]
    with open(f"/proc/{thread}/fdinfo/{number}") as facts:
        position = int(facts.readline().split()[1]) if name == "write" else arguments[3]
    file = os.open(f"/proc/{thread}/fd/{number}", os.O_WRONLY)
    os.pwrite(file, _memory(thread, address, size // 2), position)


if __name__ == "__main__":
    for fatal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(fatal, signal.SIG_IGN)
    Listener(socket.socket(fileno=int(sys.argv[1]))).run()
