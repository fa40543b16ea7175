"""Stop a rank before each change of its files while it writes, so that a fault can strike at every one of them.

TensorFlow and HDF5 write in native code, which Python cannot observe. The kernel can: a seccomp filter with a listener
(seccomp_unotify(2), Linux 5.7 or newer, no privileges needed) suspends each system call that changes a file. Another
process, :mod:`pytest_ddl.faults.rank.write_listener`, then lets the call continue or fail. A filter cannot be removed,
so a rank with one is not used again. Tried on x86-64 with Linux 6.18.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import socket
import subprocess
import sys
from types import TracebackType

from pytest_ddl.faults.rank import write_listener
from pytest_ddl.faults.rank.point_log import Points

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_PTRACER = 0x59616D61
_SET_MODE_FILTER = 1
_FLAGS = 1 | 8 | 16
"""All threads of the process, with a listener, and the error ESRCH if a thread cannot have the filter."""
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
"""Instructions of a filter: load a word, jump if equal, return."""
_SECCOMP = {"x86_64": 317, "aarch64": 277}


_KEPT: list[socket.socket] = []
"""Channels of this process. The listener lives as long as its channel, and without it each system call would fail."""


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


class WriteGate:
    """Gate through which the changes of files pass while the program saves or writes."""

    def __init__(self, points: Points, folder: str) -> None:
        self._points = points
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def __enter__(self) -> WriteGate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Let the listener count the changes of files from now on. The first call installs the filter."""
        if self._channel is None:
            self._install()
        phase, number = self._points.here
        self._say({"open": f"{phase} {number}"})

    def close(self) -> None:
        """Let all changes pass again."""
        if self._channel is not None:
            self._say({"open": ""})

    def _install(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-I", "-S", write_listener.__file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        libc = ctypes.CDLL(None, use_errno=True)
        # Some kernels let a process read the memory of its parent only if the parent agrees.
        libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(self._process.pid), 0, 0, 0)
        plan = {
            "pid": os.getpid(),
            "folder": os.path.realpath(self._folder),
            "log": str(self._points.path),
            "faults": {str(point): [fault.kind, str(fault)] for point, fault in self._points.writes.items()},
        }
        ours.sendall(json.dumps(plan).encode())
        ours.recv(16)  # it has imported what it needs
        socket.send_fds(ours, [b"listener"], [_install_filter(libc)])
        _KEPT.append(ours)
        self._channel = ours

    def _say(self, message: dict[str, str]) -> None:
        assert self._channel is not None
        with contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(message).encode())
            self._channel.recv(16)


def why_not() -> str:
    """Return why this machine has no gate, or an empty text if it may have one."""
    if sys.platform != "linux" or platform.machine() not in _SECCOMP:
        return f"changes of files are observed on Linux with x86-64 or arm64 only, not on {platform.machine()}"
    return ""


def _install_filter(libc: ctypes.CDLL) -> int:
    """Install the filter in all threads of this process, and return the descriptor of its listener.

    :raises OSError: if the kernel refuses it.
    """
    numbers = sorted(write_listener.CALLS[platform.machine()])
    code = [_Instruction(_LOAD, 0, 0, 0)]
    code += [_Instruction(_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    code += [_Instruction(_RETURN, 0, 0, _ALLOW), _Instruction(_RETURN, 0, 0, _NOTIFY)]
    program = _Program(len(code), (_Instruction * len(code))(*code))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    descriptor = libc.syscall(_SECCOMP[platform.machine()], _SET_MODE_FILTER, _FLAGS, ctypes.byref(program))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)} ({errno.errorcode.get(number, number)})")
    return int(descriptor)
