"""Pass on connections of ranks to Unix sockets of the controller, through the channel of their host.

Both sides have the same object: the agent opens a tunnel for each connection that it accepts, and the controller
connects it to the socket. Each side reads its end in a thread, and sends what arrives. No bytes mean the end of the
connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from pytest_ddl.cluster.doors import door_of

_PIECE = 1 << 16


class Tunnels:
    """Ends of the tunnels of one host, on one side."""

    def __init__(self, tell: Callable[..., None]) -> None:
        """Prepare for tunnels.

        :param tell: function that sends a message to the other side, in any thread.
        """
        self._tell = tell
        self._lock = threading.Lock()
        self._ends: dict[int, socket.socket] = {}
        self._doors: dict[str, socket.socket] = {}
        self._numbers = 0
        self._closed = False

    def offer(self, folder: Path, address: str) -> None:
        """Accept connections of ranks of this host for a socket of the controller.

        :raises OSError: if the socket cannot be made.
        """
        if address in self._doors:
            return
        folder.mkdir(exist_ok=True)
        door = self._doors[address] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        door.bind(door_of(str(folder), address))
        door.listen(64)
        threading.Thread(target=self._accept, args=[door, address], name="ddl-door", daemon=True).start()

    def _accept(self, door: socket.socket, address: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _address = door.accept()
                with self._lock:
                    self._numbers += 1
                    number = self._numbers
                # Known before the other side hears of it, because its answer may come at once.
                if self._add(number, end):
                    self._tell("tunnel", number, address)
                    self._start_reading(number, end)

    def open(self, number: int, address: str) -> None:
        """Connect a tunnel that the other side has opened to a socket of this process."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.connect(address)
        except OSError:
            end.close()
            self._tell("through", number, b"")
        else:
            if self._add(number, end):
                self._start_reading(number, end)

    def _add(self, number: int, end: socket.socket) -> bool:
        with self._lock:
            if self._closed:
                end.close()
            else:
                self._ends[number] = end
            return not self._closed

    def _start_reading(self, number: int, end: socket.socket) -> None:
        threading.Thread(target=self._read, args=[number, end], name="ddl-tunnel", daemon=True).start()

    def _read(self, number: int, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := end.recv(_PIECE):
                self._tell("through", number, data)
        self._tell("through", number, b"")
        self._forget(number)

    def through(self, number: int, data: bytes) -> None:
        """Take bytes from the other side of a tunnel, or its end. They are few, so that a socket takes them at once."""
        with self._lock:
            end = self._ends.get(number)
        if end is not None and data:
            with contextlib.suppress(OSError):
                end.sendall(data)
        elif end is not None:
            self._forget(number)

    def _forget(self, number: int) -> None:
        with self._lock:
            end = self._ends.pop(number, None)
        if end is not None:
            _close(end)

    def close(self) -> None:
        """Close all ends. A second call does nothing."""
        with self._lock:
            self._closed = True
            ends = [*self._ends.values(), *self._doors.values()]
            self._ends.clear()
        for end in ends:
            _close(end)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # This wakes up a thread that reads or accepts.
        end.shutdown(socket.SHUT_RDWR)
    end.close()
