"""Define faults as data: a kind, a task, and the point of the run at which it strikes. A fault never names a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from signal import SIGABRT, SIGKILL, SIGSTOP, SIGTERM

from pytest_ddl.messages import did_you_mean

TRAINING = "training"
PHASES = ("training", "step", "save", "writing", "restore", "evaluation")
"""Parts of a run that have points. The first has no number, because a run trains once."""
DETAILS = ("batch", "collective", "write", "file")
"""Events in a phase that have points of their own. The index of a batch is the replica. The others count from 1: a
collective starts, the rank changes a file of the run in a save or a writing, a file of a save is complete."""
_POINT = re.compile(r"(before|in|after) ([a-z]+)(?: (\d+))?(?:, ([a-z]+) (\d+))?")
_FAULT = re.compile(r"([a-z-]+) ([a-z]+:\d+) (.+?)(?: of attempt (\d+))?(?: for ([\d.]+) s)?")


class FaultError(ValueError):
    """Error for a text that describes no fault or no point. The message is one line and says what to write."""


class Effect(str, Enum):
    """Effect of a fault on the process of its task."""

    ENDS = "ends the process"
    RAISES = "raises an exception in the program"
    CUTS = "cuts connections of the process"
    DELAYS = "delays the process"


@dataclass(frozen=True)
class Kind:
    """Kind of fault. ``seconds`` is the default of its duration, for kinds that have one."""

    name: str
    summary: str
    effect: Effect
    seconds: float | None = None
    only_in: str = ""
    """The only detail of a point at which this kind can strike, for example ``write``. Empty if it strikes anywhere."""
    signal: int | None = None
    """Signal by which a platform does it from outside, also to a server, which runs no program."""
    network: bool = False
    """True if it disturbs the connections of the task, and not its process; see :mod:`pytest_ddl.faults.rank.relay`."""
    of_host: bool = False
    """True if a platform can do it to the host of the task, on hosts that can be cut off from each other."""


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("kill", "SIGKILL, as when a machine is taken away or memory ends", Effect.ENDS, signal=SIGKILL),
        Kind("term", "SIGTERM to the rank, and SIGKILL after a grace", Effect.ENDS, 5.0, signal=SIGTERM),
        Kind("term-group", "SIGTERM to the process group of the rank, and SIGKILL after a grace", Effect.ENDS, 5.0),
        Kind(
            "notice",
            "`run.preempted()` becomes true, as a cloud announces the end of a machine, and SIGKILL after a grace",
            Effect.ENDS,
            30.0,
        ),
        Kind("abort", "SIGABRT, as after a failed check in native code", Effect.ENDS, signal=SIGABRT),
        Kind("exception", "an exception in the program", Effect.RAISES),
        Kind(
            "stop",
            "SIGSTOP, and SIGCONT after some seconds, as when a machine stalls",
            Effect.DELAYS,
            1.0,
            signal=SIGSTOP,
        ),
        Kind("gil", "native code that holds the interpreter lock for some seconds", Effect.DELAYS, 1.0),
        Kind("slow", "a delay here, and before each later step", Effect.DELAYS, 0.2),
        Kind(
            "net-delay",
            "each message from or to the task arrives later, from here on",
            Effect.DELAYS,
            0.02,
            network=True,
        ),
        Kind("net-reset", "all connections of the task are reset; new ones are possible", Effect.CUTS, network=True),
        Kind(
            "net-partition",
            "nothing from or to the task arrives for some seconds, on no connection",
            Effect.CUTS,
            20.0,
            network=True,
            of_host=True,
        ),
        Kind(
            "no-space",
            "the write fails with ENOSPC, and each later one, as on a full disk",
            Effect.RAISES,
            None,
            "write",
        ),
        Kind("io-error", "the write fails with EIO", Effect.RAISES, None, "write"),
        Kind("torn-write", "the file is cut to half of its size, and SIGKILL", Effect.ENDS, None, "write"),
        Kind(
            "truncate",
            "a file of a save is cut to half of its size after the save, and SIGKILL",
            Effect.ENDS,
            None,
            "file",
        ),
        Kind("flip-bit", "one bit of a file of a save changes after the save, and SIGKILL", Effect.ENDS, None, "file"),
    )
}
"""All kinds of faults. To add one, add an entry here and a function in :mod:`pytest_ddl.faults.rank.striking`."""


@dataclass(frozen=True)
class Point:
    """Point of a run, for example ``before step 3``, ``in step 3, collective 2`` or ``in save 1, write 4``."""

    when: str
    """``before``, ``in`` or ``after``."""
    phase: str
    number: int = 0
    """Number of the step, save, restore or evaluation, from 1."""
    detail: str = ""
    index: int = 0

    def __str__(self) -> str:
        text = f"{self.when} {self.phase}" + (f" {self.number}" if self.number else "")
        return f"{text}, {self.detail} {self.index}" if self.detail else text

    @classmethod
    def parse(cls, text: str) -> Point:
        """Read the form that :meth:`__str__` writes.

        :raises FaultError: for any other text.
        """
        match = _POINT.fullmatch(text.strip())
        if match is None:
            raise FaultError(f"{text!r} is not a point: write for example 'before step 3' or 'in step 3, collective 1'")
        when, phase, number, detail, index = match.groups()
        if phase not in PHASES:
            raise FaultError(f"{text!r}: there is no phase {phase!r}{did_you_mean(phase, PHASES)}; {', '.join(PHASES)}")
        if (phase == TRAINING) != (number is None):
            need = "has no number" if phase == TRAINING else "needs a number, from 1"
            raise FaultError(f"{text!r}: the phase {phase!r} {need}")
        if (when == "in") != (detail in DETAILS):
            wanted = ", ".join(DETAILS)
            raise FaultError(
                f"{text!r}: 'in' needs an event in the {phase} and its number ({wanted}), others have none"
            )
        counted = {phase: number, **({} if detail == "batch" else {detail: index})}
        for name, one in counted.items():
            if one is not None and int(one) == 0:
                raise FaultError(f"{text!r}: there is no {name} 0, because they are counted from 1")
        return cls(when, phase, int(number or 0), detail or "", int(index or 0))


@dataclass(frozen=True)
class Fault:
    """Fault of a kind that strikes a task when it reaches a point."""

    kind: str
    task: str
    """Name of the rank or server, as in TF_CONFIG: ``worker:1``. A server is struck at points of the coordinator."""
    point: Point
    attempt: int = 1
    """Attempt of the program in which it strikes: 1 is the first call, 2 the call after the first restart."""
    seconds: float | None = None
    """Duration of a delay, or grace before SIGKILL, in seconds. ``None`` is the default of the kind."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise FaultError(f"there is no fault {self.kind!r}{did_you_mean(self.kind, KINDS)}; {', '.join(KINDS)}")
        kind = KINDS[self.kind]
        if kind.only_in and kind.only_in != self.point.detail:
            raise FaultError(f"{self.kind} strikes only at a {kind.only_in}, for example 'in save 1, {kind.only_in} 2'")
        if self.attempt < 1:
            raise FaultError(f"attempt={self.attempt} is not an attempt: they are counted from 1")
        if self.seconds is not None and (kind.seconds is None or self.seconds <= 0):
            reason = "has no duration" if kind.seconds is None else "needs a duration above 0"
            raise FaultError(f"seconds={self.seconds}: the fault {self.kind!r} {reason}")

    @property
    def effect(self) -> Effect:
        return KINDS[self.kind].effect

    def is_outside(self, cut_outside: bool) -> bool:
        """Return whether the platform carries it out, by cutting the host of the task off.

        :param cut_outside: True if the platform can do that.
        """
        return cut_outside and KINDS[self.kind].of_host

    @property
    def duration(self) -> float:
        """Duration or grace in seconds; 0 for kinds without."""
        return self.seconds if self.seconds is not None else KINDS[self.kind].seconds or 0.0

    def __str__(self) -> str:
        again = f" of attempt {self.attempt}" if self.attempt > 1 else ""
        lasting = f" for {self.seconds:g} s" if self.seconds is not None else ""
        return f"{self.kind} {self.task} {self.point}{again}{lasting}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read the form that :meth:`__str__` writes, for example ``kill worker:1 before step 3``.

        :raises FaultError: for any other text.
        """
        match = _FAULT.fullmatch(text.strip())
        if match is None:
            raise FaultError(
                f"{text!r} is not a fault: write KIND TASK POINT, for example 'kill worker:1 before step 3'"
            )
        kind, task, point, attempt, seconds = match.groups()
        return cls(kind, task, Point.parse(point), int(attempt or 1), float(seconds) if seconds else None)
