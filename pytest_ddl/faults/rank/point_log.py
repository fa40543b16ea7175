"""Log the points that a rank reaches in a file, and let the faults of the run strike there.

The log proves that a fault struck: its line is written before the fault takes effect.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pytest_ddl.faults.rank.damage import Held
from pytest_ddl.faults.rank.fault import KINDS, TRAINING, Fault, Point
from pytest_ddl.faults.rank.striking import connections_of_host, disturb, strike
from pytest_ddl.records import Array

WRITING = "writing"
"""Phase in which the program writes a file of the run outside of a save. It lasts until the next point."""


@dataclass(frozen=True)
class Reached:
    """Point that a rank reached."""

    point: Point
    at: float
    """Time on the clock of :func:`time.monotonic`, which all processes of a machine share."""
    struck: Fault | None = None
    """Fault that struck here."""
    file: str = ""
    """File of a save, or of a writing outside of saves, relative to the folder of the run."""
    change: tuple[str, ...] = ()
    """Name of a call that changes a file in a save or a writing, and its paths. The last one is the path it makes."""
    connections: int | None = None
    """Number of open connections of the task, at the point of a fault of the network."""
    state: frozenset[str] | None = None
    """Digests of the values when a save began or ended, if steps run concurrently. None ended during the save."""
    moving: bool = False
    """True if steps went on during a save, so that it is not known what it contains."""


class Gate(Protocol):
    """Interface of :class:`~pytest_ddl.faults.rank.write_gate.WriteGate`."""

    def open(self) -> None:
        """Count the changes of files from now on."""

    def close(self) -> None:
        """Let all changes pass again."""


def path_of(folder: str, attempt: int, rank: int) -> Path:
    """Return the path of the log of a rank: a hidden file, because the folder belongs to the program."""
    return Path(folder) / f".points-{attempt}-{rank}"


def line_of(point: Point, struck: Fault | None = None, **facts: Any) -> bytes:
    """Return the line of the log for a point.

    :param facts: further fields of :class:`Reached`, by name.
    """
    return json.dumps([time.monotonic(), str(point), str(struck) if struck else "", facts]).encode() + b"\n"


class Points:
    """Log of one rank in one attempt, which knows the phase that the program is in."""

    def __init__(
        self, path: Path, faults: Sequence[Fault], servers: Collection[str] = (), *, cut_outside: bool = False
    ) -> None:
        """Open the log.

        :param faults: faults that strike at points of this rank.
        :param servers: tasks that the platform strikes when this rank reaches the point.
        :param cut_outside: True if the platform cuts the host of a task off for a partition.
        """
        self.path = path
        self._faults: dict[Point, list[Fault]] = {}
        for fault in faults:
            self._faults.setdefault(fault.point, []).append(fault)
        self._servers = servers
        self._cut_outside = cut_outside
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, int, str]] = Counter()
        self._open: list[tuple[str, int]] = []
        self._ended = 0
        self._slow: Fault | None = None
        self._held: Held | None = None
        self.gate: Gate | None = None
        """Gate that counts the single changes of a file."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)

    def write(self, path: str) -> None:
        """Enter the writing of a file outside of a save, before the file changes.

        :param path: path of the file in the folder of the run.
        """
        self.begin(WRITING, file=path)
        if self.gate is not None:
            self.gate.open()

    def _end_writing(self) -> None:
        """Leave the writing of a file, at the next point: Python does not say when a file is closed."""
        with self._lock:  # threads of TensorFlow reach points too
            if not self._open or self._open[-1][0] != WRITING:
                return
            _, number = self._open.pop()
        if self.gate is not None:
            self.gate.close()
        self._reach(Point("after", WRITING, number))

    def begin(self, phase: str, number: int | None = None, **facts: Any) -> None:
        """Enter a phase. Without a number, it is the next one of its kind."""
        self._end_writing()
        number = self._next(phase, 0, "") if number is None else number
        self._open.append((phase, number))
        if phase == "step" and self._slow is not None:
            strike(self._slow)
        self._reach(Point("before", phase, number), **facts)

    def end(self, phase: str, **facts: Any) -> None:
        """Leave a phase. Nothing happens if the program is not in it."""
        self._end_writing()
        if self._open and self._open[-1][0] == phase:
            self._reach(Point("after", *self._open.pop()), **facts)

    def end_step(self, number: int) -> None:
        """Leave a step. A loop that the program writes enters none, so only its end is logged."""
        if number <= self._ended:
            return
        self._ended = number
        self._end_writing()
        if self._open and self._open[-1][0] == "step":
            self.end("step")
        else:
            self._reach(Point("after", "step", number))

    def leave(self, phase: str) -> None:
        """Leave a phase that has not taken place, for example a step for which there was no data."""
        self._end_writing()
        if self._open and self._open[-1][0] == phase:
            self._open.pop()

    def event(self, detail: str, index: int | None = None) -> None:
        """Log an event in the phase that the program is in. Threads of TensorFlow call this too.

        :param index: the replica, or ``None`` to count the events of this kind in the phase.
        """
        self._end_writing()
        if self._open:
            phase, number = self._open[-1]
            # Steps that run concurrently have no phase of their own. Their events are counted.
            index = None if phase == TRAINING else index
            place = self._next(phase, number, detail) if index is None else index
            self._reach(Point("in", phase, number, detail, place))

    def _reach(self, point: Point, **facts: Any) -> None:
        """Log a point. If faults of this run are set here, they strike after the line of the log was written."""
        if self._held is not None:
            self._damage(self._held, point)
        self._strike(point, self._faults.pop(point, []), **facts)

    def _strike(self, point: Point, faults: Sequence[Fault], **facts: Any) -> None:
        disturbed = [
            (fault, connections_of_host() if fault.is_outside(self._cut_outside) else disturb(fault))
            for fault in faults
            if KINDS[fault.kind].network
        ]
        faults = [fault for fault in faults if not KINDS[fault.kind].network]
        # A fault of the network has struck only if there was a connection.
        lines = [line_of(point, fault if count else None, connections=count) for fault, count in disturbed]
        lines += [line_of(point, fault, **facts) for fault in faults]
        os.write(self._file, b"".join(lines) or line_of(point, **facts))
        for fault, count in disturbed:
            if count and fault.is_outside(self._cut_outside):
                _wait_until_struck(self.path, fault)
        # A fault may end this process, so that servers come first.
        for fault in sorted(faults, key=lambda one: one.task not in self._servers):
            if fault.task in self._servers:
                _wait_until_struck(self.path, fault)
            else:
                self._slow = fault if fault.kind == "slow" else self._slow
                strike(fault)

    def file(self, path: Path, folder: str, trained: Callable[[], Sequence[Array]]) -> None:
        """Log a file of the save that the program is in. A fault that is set here damages it when the program goes on.

        :param folder: folder of the run.
        :param trained: function that returns the values of the trainable variables.
        """
        phase, number = self._open[-1]
        point = Point("in", phase, number, "file", self._next(phase, number, "file"))
        faults = self._faults.pop(point, [])
        for fault in faults:
            if KINDS[fault.kind].only_in:
                self._held = Held.open(fault, path, folder, trained())
        others = [fault for fault in faults if not KINDS[fault.kind].only_in]
        self._strike(point, others, file=os.path.relpath(path, os.path.realpath(folder)))

    def _damage(self, held: Held, next_point: Point) -> None:
        """Damage a file and end the process, unless the program has removed the file or is still in the save."""
        point = held.fault.point
        if (next_point.phase, next_point.number) == (point.phase, point.number):
            return
        self._held = None
        if name := held.name:
            os.write(self._file, line_of(point, held.fault, file=name))
            held.damage()
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def writes(self) -> dict[Point, Fault]:
        """Faults of this run that strike at writes."""
        return {point: faults[0] for point, faults in self._faults.items() if point.detail == "write"}

    @property
    def here(self) -> tuple[str, int]:
        """Phase that the program is in, with its number."""
        return self._open[-1] if self._open else (TRAINING, 0)

    def close(self) -> None:
        os.close(self._file)

    def _next(self, phase: str, number: int, detail: str) -> int:
        with self._lock:
            self._counts[phase, number, detail] += 1
            return self._counts[phase, number, detail]


def confirmation(path: Path, fault: Fault) -> Path:
    """Return the path of the file with which the platform confirms that it has struck a server or a host."""
    return path.with_name(f"{path.name}-{re.sub('[^a-z0-9]+', '-', str(fault))}")


def _wait_until_struck(path: Path, fault: Fault) -> None:
    # The platform reads this log. Its deadline ends this process too.
    while not confirmation(path, fault).exists():
        time.sleep(0.002)


def read(path: Path) -> tuple[Reached, ...]:
    """Return the points that a rank has reached so far; none if it wrote no log."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return ()
    reached = []
    for line in lines:
        if not line.endswith(b"\n"):
            break  # the rank ended while it wrote this line
        at, point, struck, facts = json.loads(line)
        if "state" in facts:
            facts["state"] = frozenset(facts["state"])
        if "change" in facts:
            facts["change"] = tuple(facts["change"])
        reached.append(Reached(Point.parse(point), at, Fault.parse(struck) if struck else None, **facts))
    return tuple(reached)
