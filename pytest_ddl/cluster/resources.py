"""Reserve the TCP ports and the CPU and GPU slots of this machine, so that no other process uses them.

A slot is a locked file in the folder that all pytest-xdist workers of a session share. The kernel releases the lock
when its holder dies, so a crashed xdist worker cannot keep a GPU.

A port has to be chosen and released before TensorFlow binds it, because TensorFlow does not accept a bound socket. The
lease of TCP port N is the bound *UDP* port N. The kernel allows one holder, releases the port even after ``kill -9``,
and no file is left. The ports are below the kernel's ephemeral range, so that outgoing connections of other programs do
not use them.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
FIRST_PORT, LAST_PORT = 18000, 32000
"""Range of ports: below Linux's default ephemeral range (from 32768) and above the ports of most services."""


class ResourcesBusyError(RuntimeError):
    """The requested slots did not become free in time."""


@dataclass
class Slots:
    """Slots that were acquired from a ledger. :meth:`release` returns them."""

    numbers: tuple[int, ...] = ()
    _locks: list[int] = field(default_factory=list)

    def release(self) -> None:
        """Return the slots to the ledger. A second call does nothing."""
        while self._locks:
            os.close(self._locks.pop())


class Ledger:
    """Slots of each kind of resource. All processes with the same folder share them."""

    def __init__(self, folder: Path, capacity: dict[str, int]) -> None:
        self._folder = folder
        self.capacity = capacity
        """Number of slots by kind of resource. The number of GPUs is added once the machine is known."""

    def acquire(self, kind: str, count: int, deadline: float) -> Slots:
        """Wait for ``count`` slots, or for all slots if fewer exist, and take them at once.

        A process that waits holds no slots, so two waiting processes cannot block each other.

        :param deadline: in seconds of :func:`time.monotonic`.
        :raises ResourcesBusyError: if the slots are not free by the deadline.
        """
        wanted = min(count, self.capacity.get(kind, 0))
        while True:
            slots = self._try(kind, wanted)
            if slots is not None:
                return slots
            if time.monotonic() > deadline:
                raise ResourcesBusyError(f"{wanted} {kind} slots did not become free; other xdist workers hold them")
            time.sleep(0.02)

    def _try(self, kind: str, wanted: int) -> Slots | None:
        taken = Slots()
        numbers: list[int] = []
        for number in range(self.capacity.get(kind, 0)):
            if len(numbers) == wanted:
                break
            lock = os.open(self._folder / f"{kind}-{number}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                taken._locks.append(lock)
                numbers.append(number)
        if len(numbers) < wanted:
            taken.release()
            return None
        taken.numbers = tuple(numbers)
        return taken


class PortLease:
    """Lease of TCP ports of this machine. No other cluster takes them until they are released.

    :raises OSError: if there are not enough free ports.
    """

    def __init__(self, count: int) -> None:
        self._held: dict[int, socket.socket] = {}
        # Random numbers of the operating system, because a test that seeds `random` must not make two runs collide.
        order = random.Random(os.urandom(8)).sample(range(FIRST_PORT, LAST_PORT), LAST_PORT - FIRST_PORT)
        for port in order:
            if len(self._held) == count:
                break
            held = _lease(port)
            if held is not None:
                self._held[port] = held
        if len(self._held) < count:
            self.release()
            raise OSError(f"no {count} free ports between {FIRST_PORT} and {LAST_PORT} on this machine")

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(self._held)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Address of each port on the loopback device, as ``"host:port"``."""
        return tuple(f"{HOST}:{port}" for port in self._held)

    def release(self) -> None:
        """Release the ports. A second call does nothing."""
        while self._held:
            self._held.popitem()[1].close()


def _lease(port: int) -> socket.socket | None:
    held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        held.bind((HOST, port))
        with socket.socket() as probe:
            # The port of an ended server stays in TIME_WAIT, in which TensorFlow can bind it too.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError:
        held.close()
        return None
    return held
