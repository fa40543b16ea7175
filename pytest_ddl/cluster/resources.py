"""Reserve the TCP ports and the CPU and GPU slots of this machine, so that no other process uses them.

A slot is a locked file in the folder that all pytest-xdist workers of a session share. The kernel releases the lock
when its holder dies, so a crashed xdist worker cannot keep a GPU.

A port has to be chosen and released before TensorFlow binds it, because TensorFlow does not accept a bound socket. The
lease of TCP port N is the bound *UDP* port N. The kernel allows one holder, releases the port even after ``kill -9``,
and no file is left. The ports are below the kernel's ephemeral range, so that outgoing connections of other programs do
not use them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from pytest_ddl.cluster.file_lock import try_lock
from pytest_ddl.cluster.obstacles import LaunchError, cannot_start, cannot_write

HOST = "127.0.0.1"
FIRST_PORT, LAST_PORT = 18000, 32000
"""Range of ports: below Linux's default ephemeral range (from 32768) and above the ports of most services."""


class ResourcesBusyError(LaunchError):
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

    @property
    def held(self) -> bool:
        """True until the slots are released, unless there are none."""
        return bool(self._locks)


class Ledger:
    """Slots of each kind of resource. All processes with the same folder share them."""

    def __init__(self, folder: Path, capacity: dict[str, int]) -> None:
        self._folder = folder
        self.capacity = capacity
        """Number of slots by kind of resource. The number of GPUs is added once the machine is known."""
        self.first = 0
        """Slot with which this process begins to share, so that processes share different slots as far as there are."""
        self._given: dict[str, list[Slots]] = {}
        """Slots that this process got, by kind. Released ones are removed at the next request."""

    def acquire(self, kind: str, count: int, deadline: float, *, shared: bool = False) -> Slots:
        """Wait for ``count`` slots, or for all slots if fewer exist, and take them at once.

        Several requests share a slot if all of them say so. A request that does not share waits until nobody holds its
        slots, and later requests wait behind it; see :meth:`is_awaited`.

        A process that waits holds no slots, so two waiting processes cannot block each other. Processes wait in turn:
        otherwise one that wants many slots would never find them free at the same time. The deadline is extended while
        slots change hands, because others may work for a long time before this process gets its turn.

        A process that already holds slots of CPUs, or shares a slot, does not wait for more, because it might wait for
        itself. It gets those that are free, and its ranks share them.

        :param deadline: in seconds of :func:`time.monotonic`.
        :raises ResourcesBusyError: if the slots are not free by the deadline. The message names the processes that hold
            them.
        :raises LaunchError: if the files of the slots cannot be made.
        """
        wanted = min(count, self.capacity.get(kind, 0))
        given = self._given[kind] = [slots for slots in self._given.get(kind, ()) if slots.held]
        with contextlib.ExitStack() as turn:
            try:
                at_once = (kind == "cpu" or shared) and bool(given)
                slots = self._take(kind, wanted, deadline, at_once=at_once, shared=shared, turn=turn)
            except OSError as error:
                raise LaunchError(cannot_write(error, self._folder)) from None
        given.append(slots)
        return slots

    def is_awaited(self, kind: str) -> bool:
        """Return whether another process waits for slots, so that this one should give up those that it only keeps."""
        return self._pid_of_holder(f"{kind}-turn") not in (0, os.getpid())

    def _take(
        self, kind: str, wanted: int, deadline: float, *, at_once: bool, shared: bool, turn: contextlib.ExitStack
    ) -> Slots:
        if at_once or not wanted:
            return self._free(kind, wanted, shared)
        patience = deadline - time.monotonic()
        last = self._last_change(kind)
        waits = False
        while True:
            waits = waits or self._gets_turn(kind, turn)
            slots = self._free(kind, wanted, shared) if waits else Slots()
            if len(slots.numbers) == wanted:
                return slots
            slots.release()
            change = self._last_change(kind)
            if change != last:
                last, deadline = change, time.monotonic() + patience
            if time.monotonic() > deadline:
                asked = f"{wanted} of {self.capacity[kind]} {kind} slots"
                raise ResourcesBusyError(
                    f"{asked} did not become free within {max(patience, 0):.0f} s; {self._holders(kind)}. "
                    "Run fewer xdist workers, or end these processes if they are stuck"
                )
            time.sleep(0.02)

    def _gets_turn(self, kind: str, turn: contextlib.ExitStack) -> bool:
        """Return whether this process is the one that takes the next free slots."""
        lock = self._lock(f"{kind}-turn")
        if lock is not None:
            turn.callback(os.close, lock)
        return lock is not None

    def _free(self, kind: str, wanted: int, shared: bool) -> Slots:
        """Take at most ``wanted`` slots of those that are free."""
        taken = Slots()
        numbers: list[int] = []
        capacity = self.capacity.get(kind, 0)
        first = self.first if shared else 0
        try:
            for number in ((first + position) % capacity for position in range(capacity)):
                if len(numbers) == wanted:
                    break
                lock = self._lock(f"{kind}-{number}", shared)
                if lock is not None:
                    taken._locks.append(lock)
                    numbers.append(number)
        except BaseException:
            taken.release()
            raise
        taken.numbers = tuple(sorted(numbers))
        return taken

    def _lock(self, name: str, shared: bool = False) -> int | None:
        """Lock a file of the folder, and write the pid of this process into it. Return ``None`` if it is locked."""
        lock = os.open(self._folder / name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with contextlib.ExitStack() as unless_locked:
            unless_locked.callback(os.close, lock)
            if not try_lock(lock, shared=shared):
                return None
            os.pwrite(lock, f"{os.getpid():<20}".encode(), 0)
            unless_locked.pop_all()
        return lock

    def _last_change(self, kind: str) -> int:
        """Return a number that changes when a process takes a slot or its turn."""
        files = [self._folder / f"{kind}-{name}" for name in (*range(self.capacity.get(kind, 0)), "turn")]
        return max((file.stat().st_mtime_ns for file in files if file.exists()), default=0)

    def _holders(self, kind: str) -> str:
        """Name the processes that hold slots, and the other one that takes the next ones."""
        pids = {pid for number in range(self.capacity[kind]) if (pid := self._pid_of_holder(f"{kind}-{number}"))}
        pids |= {self._pid_of_holder(f"{kind}-turn")} - {0, os.getpid()}
        own, others = os.getpid() in pids, sorted(pids - {os.getpid()})
        parts = [f"{'processes' if len(others) > 1 else 'process'} {', '.join(map(str, others))}"] if others else []
        parts += ["this process"] if own else []
        return f"held by {' and '.join(parts)}" if parts else "other processes took them"

    def _pid_of_holder(self, name: str) -> int:
        """Return the pid of the process that has locked a file, or 0 if it is free."""
        file = os.open(self._folder / name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            return 0 if try_lock(file) else int(os.pread(file, 20, 0) or 0)
        finally:
            os.close(file)


class PortLease:
    """Lease of TCP ports of this machine. No other cluster takes them until they are released.

    :raises LaunchError: if there are not enough free ports, or if this process cannot open more sockets.
    """

    def __init__(self, count: int) -> None:
        self._held: dict[int, socket.socket] = {}
        try:
            self._take(count)
        except OSError as error:
            self.release()
            raise LaunchError(cannot_start(error)) from None

    def _take(self, count: int) -> None:
        # A random number of the operating system, because a test that seeds `random` must not make two runs collide.
        first = FIRST_PORT + int.from_bytes(os.urandom(8), "little") % (LAST_PORT - FIRST_PORT)
        for port in itertools.chain(range(first, LAST_PORT), range(FIRST_PORT, first)):
            if len(self._held) == count:
                break
            held = _lease(port)
            if held is not None:
                self._held[port] = held
        if len(self._held) < count:
            self.release()
            raise LaunchError(
                f"no {count} free ports between {FIRST_PORT} and {LAST_PORT} on this machine; `ss -lntup` lists the "
                "programs that hold them: end some of them"
            )

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(self._held)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Address of each port, as ``"host:port"``."""
        return tuple(f"{HOST}:{port}" for port in self._held)

    def release(self) -> None:
        """Release the ports. A second call does nothing."""
        while self._held:
            self._held.popitem()[1].close()


def _lease(port: int) -> socket.socket | None:
    """Lease one port. Return ``None`` if it is taken.

    :raises OSError: for another reason, such as too many open files. It is the same for all ports.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        held.bind((HOST, port))
        with socket.socket() as probe:
            # The port of an ended server stays in TIME_WAIT, in which TensorFlow can bind it too.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError as error:
        held.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise
    return held
