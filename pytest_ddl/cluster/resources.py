"""Share CPU and GPU slots among all pytest-xdist workers of a session.

A slot is a locked file in the session's folder. The kernel releases the lock when its holder dies, so a crashed xdist
worker cannot keep a GPU.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass, field
from pathlib import Path


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
