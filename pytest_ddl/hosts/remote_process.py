"""Worker process on another host as the controller sees it. The agent's messages arrive here."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from pytest_ddl.cluster.local_process import tail
from pytest_ddl.cluster.obstacles import LaunchError

_STOP_WAIT = 5.0
"""Maximum seconds until a process is suspended."""


class RemoteProcess:
    """Worker process on another host.

    The ``on_`` methods take the agent's messages, in the thread that reads the host's channel, while the lock of
    ``news`` is held.
    """

    def __init__(self, number: int, tell: Callable[..., None], news: threading.Condition) -> None:
        """Prepare for a worker that is started afterwards.

        :param number: number of the worker in messages.
        :param tell: function that sends a message to the agent. It does not wait.
        :param news: condition that is notified after each message of the agent.
        """
        self.number, self._tell, self._news = number, tell, news
        self._replies: deque[bytes] = deque()
        self._parts: list[bytes] = []
        """Pieces of a reply that has not arrived completely."""
        self._stacks = ""
        self._stopped = False
        self._is_closed = False
        self.exit_status: int | None = None
        self.lost = ""
        """Why the host is lost. Empty while it is not."""
        self._opened = contextlib.ExitStack()
        self._flag, self._raise = (self._opened.enter_context(end) for end in socket.socketpair())
        self._flag.setblocking(False)
        self._raise.setblocking(False)
        self._is_raised = False
        self._out, self._err = self._temporary_file(), self._temporary_file()

    def _temporary_file(self) -> IO[bytes]:
        return self._opened.enter_context(tempfile.TemporaryFile("ab+", prefix="pytest-ddl-"))

    def on_reply(self, data: bytes, last: bool) -> None:
        self._parts.append(data)
        if last:
            self._replies.append(b"".join(self._parts))
            self._parts = []
            self._show_readable()

    def on_closed(self) -> None:
        self._is_closed = True
        self._show_readable()

    def on_output(self, out: bytes, err: bytes) -> None:
        for file, text in ((self._out, out), (self._err, err)):
            if text and not file.closed:
                file.write(text)
                file.flush()

    def on_stacks(self, text: str) -> None:
        self._stacks += text

    def on_stopped(self) -> None:
        self._stopped = True

    def on_exited(self, status: int) -> None:
        self.exit_status = status
        self.on_closed()

    def on_lost(self, why: str) -> None:
        self.lost = why
        self.on_closed()

    def _show_readable(self) -> None:
        """Make :meth:`fileno` readable while there is a reply, or nothing will come any more."""
        readable = bool(self._replies) or self._is_closed
        if readable != self._is_raised:
            self._is_raised = readable
            with contextlib.suppress(OSError):
                self._raise.send(b"x") if readable else self._flag.recv(1)

    def fileno(self) -> int:
        return self._flag.fileno()

    def send(self, data: bytes) -> None:
        self._tell("send", self.number, data)

    def receive(self) -> bytes:
        with self._news:
            # A reply that came before the loss is not used: it may be the reason.
            if self._replies and not self.lost:
                reply = self._replies.popleft()
                self._show_readable()
                return reply
            if self._is_closed:
                raise EOFError
            raise BlockingIOError

    def signal(self, number: int) -> None:
        with self._news:
            if self.exit_status is not None or self.lost:
                return
            self._stopped = False
            self._tell("signal", self.number, int(number))
            if number == signal.SIGSTOP:
                self._news.wait_for(lambda: self._stopped or self._is_closed, _STOP_WAIT)

    def wait(self, timeout: float = 0.0) -> int | None:
        with self._news:
            self._news.wait_for(lambda: self.exit_status is not None or self.lost, max(timeout, 0.0))
            if self.exit_status is None and self.lost:
                raise LaunchError(self.lost)
            return self.exit_status

    def read_stacks(self) -> str:
        with self._news:
            text, self._stacks = self._stacks, ""
            return text

    def output(self, since: tuple[int, int] = (0, 0)) -> tuple[str, str]:
        return tail(self._out, since[0]), tail(self._err, since[1])

    def output_offsets(self) -> tuple[int, int]:
        return os.fstat(self._out.fileno()).st_size, os.fstat(self._err.fileno()).st_size

    def close(self) -> None:
        with self._news:
            self._tell("drop", self.number)
            self._opened.close()


Message = tuple[Any, ...]
"""Name of a message and its values; see :mod:`pytest_ddl.hosts.agent`."""
