"""Worker process on this machine: a socket for its channel, files for its output and a pipe for its stacks."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from pytest_ddl.cluster.launcher import LaunchError
from pytest_ddl.cluster.obstacles import cannot_write

_MODULES = re.compile(r"^Extension modules: .*\n?", re.MULTILINE)
"""Last line of faulthandler's output. It is left out, because its kilobytes of names would hide the crash's reason."""
_POLL = 0.05
"""Maximum seconds of one wait for news of the zygote."""
_STOP_WAIT = 5.0
"""Maximum seconds until a process is suspended."""


class LocalProcess:
    """Worker process on this machine that the zygote forks."""

    def __init__(self, send_signal: Callable[[int, int], None], poll: Callable[[float], None]) -> None:
        """Open the channel and the files of a process that is forked afterwards.

        :param send_signal: function that sends a signal to the process group of a pid.
        :param poll: function that waits some seconds for news, and sets :attr:`exit_status` if the process has ended.
        :raises LaunchError: if the files cannot be made.
        """
        self._send_signal, self._poll = send_signal, poll
        ours, self._theirs = socket.socketpair()
        self._channel = Connection(ours.detach())
        self._stacks, self._stacks_write = os.pipe()
        os.set_blocking(self._stacks, False)
        try:
            self._out: IO[bytes] = tempfile.TemporaryFile("ab+", prefix="pytest-ddl-")  # noqa: SIM115
            self._err: IO[bytes] = tempfile.TemporaryFile("ab+", prefix="pytest-ddl-")  # noqa: SIM115
        except OSError as error:
            raise LaunchError(cannot_write(error, tempfile.gettempdir())) from None
        self.pid = 0
        self.exit_status: int | None = None
        """Exit status as in :meth:`~pytest_ddl.cluster.launcher.WorkerProcess.wait`, set by the launcher."""

    @property
    def fds(self) -> list[int]:
        """File descriptors that the worker gets: control, stdout, stderr and stacks."""
        return [self._theirs.fileno(), self._out.fileno(), self._err.fileno(), self._stacks_write]

    def started(self, pid: int) -> None:
        """Close the worker's ends of the pipes in this process, so that this process notices when the worker ends."""
        self.pid = pid
        self._theirs.close()
        os.close(self._stacks_write)

    def fileno(self) -> int:
        return self._channel.fileno()

    def send(self, data: bytes) -> None:
        self._channel.send_bytes(data)

    def receive(self) -> bytes:
        return self._channel.recv_bytes()

    def signal(self, number: int) -> None:
        if self.exit_status is None:
            self._send_signal(self.pid, number)
            if number == signal.SIGSTOP:
                self._wait_until_stopped()

    def _wait_until_stopped(self) -> None:
        """Wait until the process is suspended. The zygote sends the signal, so a request could arrive earlier."""
        status = Path(f"/proc/{self.pid}/stat")
        deadline = time.monotonic() + _STOP_WAIT
        with contextlib.suppress(OSError):
            # The state follows the command's name in parentheses, and the name may contain parentheses: proc(5).
            while status.read_text().rpartition(")")[2].split()[0] not in "tTZX" and time.monotonic() < deadline:
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
        self._channel.close()
        os.close(self._stacks)
        self._out.close()
        self._err.close()


def tail(file: IO[bytes], start: int = 0) -> str:
    """Return the text of a file after an offset, without the names of extension modules that faulthandler writes."""
    size = os.fstat(file.fileno()).st_size
    text = os.pread(file.fileno(), max(0, size - start), start).decode(errors="replace")
    return _MODULES.sub("", text)
