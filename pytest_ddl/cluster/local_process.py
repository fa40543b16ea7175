"""Worker process on this machine: a socket for its channel, files for its output and a pipe for its stacks."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from typing import IO

from pytest_ddl.cluster import strays
from pytest_ddl.cluster.obstacles import LaunchError, cannot_start, cannot_write, temporary_folder

_MODULES = re.compile(r"^Extension modules: .*\n?", re.MULTILINE)
"""Last line of faulthandler's output. It is left out, because its kilobytes of names would hide the crash's reason."""
_POLL = 0.05
"""Maximum seconds of one wait for news of the zygote."""
_STOP_WAIT = 5.0
"""Maximum seconds until a process is suspended."""
_LENGTH, _LONG_LENGTH = struct.Struct("!i"), struct.Struct("!Q")
_MAX_LENGTH = 0x7FFFFFFF
_CHUNK = 1 << 20
"""Maximum number of bytes to read at once."""


class LocalProcess:
    """Worker process on this machine that the zygote forks."""

    def __init__(self, send_signal: Callable[[int, int], None], poll: Callable[[float], None]) -> None:
        """Open the channel and the files of a process that is forked afterwards.

        :param send_signal: function that sends a signal to the process group of a pid.
        :param poll: function that waits some seconds for news, and sets :attr:`exit_status` if the process has ended.
        :raises LaunchError: if the channel or the files cannot be made.
        """
        self._send_signal, self._poll = send_signal, poll
        self._received = bytearray()
        """Part of a reply that has arrived. Its first bytes are the length, as :mod:`multiprocessing` writes it."""
        self._theirs_opened = contextlib.ExitStack()
        """The worker's ends, which it inherits."""
        self._opened = contextlib.ExitStack()
        """What is closed at the end, also if it could not be opened completely."""
        self._opened.push(self._theirs_opened)
        try:
            self._open()
        except OSError as error:
            self._opened.close()
            raise LaunchError(cannot_start(error)) from None
        except LaunchError:
            self._opened.close()
            raise
        self.pid = 0
        self.exit_status: int | None = None
        """Exit status as in :meth:`~pytest_ddl.cluster.launcher.WorkerProcess.wait`, set by the launcher."""

    def _open(self) -> None:
        self._channel, self._theirs = socket.socketpair()
        self._opened.enter_context(self._channel)
        self._theirs_opened.enter_context(self._theirs)
        self._stacks, self._stacks_write = os.pipe()
        self._opened.callback(os.close, self._stacks)
        self._theirs_opened.callback(os.close, self._stacks_write)
        os.set_blocking(self._stacks, False)
        try:
            self._out = self._temporary_file()
            self._err = self._temporary_file()
        except OSError as error:
            raise LaunchError(cannot_write(error, temporary_folder())) from None

    def _temporary_file(self) -> IO[bytes]:
        return self._opened.enter_context(tempfile.TemporaryFile("ab+", prefix="pytest-ddl-"))

    @property
    def fds(self) -> list[int]:
        """File descriptors that the worker gets: control, stdout, stderr and stacks."""
        return [self._theirs.fileno(), *self.files, self._stacks_write]

    @property
    def files(self) -> tuple[int, int]:
        """File descriptors of the files with the output on stdout and stderr."""
        return self._out.fileno(), self._err.fileno()

    def started(self, pid: int) -> None:
        """Close the worker's ends of the pipes in this process, so that this process notices when the worker ends."""
        self.pid = pid
        self._theirs_opened.close()

    def fileno(self) -> int:
        return self._channel.fileno()

    def send(self, data: bytes) -> None:
        # The format of multiprocessing.connection.Connection, which the worker uses.
        small = len(data) <= _MAX_LENGTH
        length = _LENGTH.pack(len(data)) if small else _LENGTH.pack(-1) + _LONG_LENGTH.pack(len(data))
        self._channel.sendall(length)
        self._channel.sendall(data)

    def receive(self) -> bytes:
        # A worker may be suspended while it writes a reply. This process must not wait for the rest without a deadline.
        while missing := self._missing():
            chunk = self._channel.recv(min(missing, _CHUNK), socket.MSG_DONTWAIT)
            if not chunk:
                raise EOFError
            self._received += chunk
        reply, self._received = bytes(self._received[self._header() :]), bytearray()
        return reply

    def _header(self) -> int:
        """Return the number of bytes before a reply."""
        is_long = len(self._received) >= _LENGTH.size and _LENGTH.unpack_from(self._received)[0] < 0
        return _LENGTH.size + (_LONG_LENGTH.size if is_long else 0)

    def _missing(self) -> int:
        """Return how many bytes to read next, or 0 if a reply has arrived completely."""
        header = self._header()
        if len(self._received) < header:
            return header - len(self._received)
        kind, offset = (_LENGTH, 0) if header == _LENGTH.size else (_LONG_LENGTH, _LENGTH.size)
        return header + int(kind.unpack_from(self._received, offset)[0]) - len(self._received)

    def signal(self, number: int) -> None:
        if self.exit_status is None:
            self._send_signal(self.pid, number)
            if number == signal.SIGSTOP:
                self._wait_until_stopped()

    def _wait_until_stopped(self) -> None:
        """Wait until the process is suspended. The zygote sends the signal, so a request could arrive earlier."""
        deadline = time.monotonic() + _STOP_WAIT
        while strays.state(self.pid) not in ("", *"tTZX") and time.monotonic() < deadline:
            time.sleep(0.001)

    def wait(self, timeout: float = 0.0) -> int | None:
        deadline = time.monotonic() + timeout
        while self.exit_status is None:
            left = deadline - time.monotonic()
            self._poll(min(max(left, 0.0), _POLL))
            if left <= 0:
                break
        return self.exit_status

    def read_stacks(self) -> str:
        chunks = []
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._stacks, 1 << 16):
                chunks.append(chunk)
        return b"".join(chunks).decode(errors="replace")

    def output(self, since: tuple[int, int] = (0, 0)) -> tuple[str, str]:
        return tail(self._out, since[0]), tail(self._err, since[1])

    def output_offsets(self) -> tuple[int, int]:
        return os.fstat(self._out.fileno()).st_size, os.fstat(self._err.fileno()).st_size

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Ends the wait of a thread that sends a request to a worker that does not read.
            self._channel.shutdown(socket.SHUT_RDWR)
        self._opened.close()


def tail(file: IO[bytes], start: int = 0) -> str:
    """Return the text of a file after an offset, without the names of extension modules that faulthandler writes."""
    size = os.fstat(file.fileno()).st_size
    text = os.pread(file.fileno(), max(0, size - start), start).decode(errors="replace")
    return _MODULES.sub("", text)
