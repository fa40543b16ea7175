"""Inject faults into a training function at chosen points, or at every point that one run records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from pytest_ddl.equivalence.runs.program import Program
from pytest_ddl.equivalence.runs.question import ArgumentError
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.faults.at_least_once import judge_with_retries
from pytest_ddl.faults.joining import equal_bits
from pytest_ddl.faults.rank.fault import KINDS, PHASES, Effect, Fault, FaultError, Point
from pytest_ddl.faults.rank.observer import FaultPlan
from pytest_ddl.faults.rank.point_log import Reached
from pytest_ddl.faults.report import FaultReport, Limits
from pytest_ddl.faults.tasks import Tasks
from pytest_ddl.faults.trials import Restarts, Schedule, TrialRun, points_of, run_trial
from pytest_ddl.faults.verdict import RecoveryVerdict, Trial
from pytest_ddl.messages import did_you_mean
from pytest_ddl.records import TrainingRecord
from pytest_ddl.training import lineage
from pytest_ddl.training.settings import RunSettings

EVERY_POINT = "every point"


class NotInjectedError(Exception):
    """No fault can be injected, because the program does not run as it did in the comparison."""


@dataclass(frozen=True)
class Sweep:
    """Request to inject one kind of fault at every point that a run without faults records, once each.

    ``faults="every point"`` is ``Sweep()``.
    """

    kind: str = "kill"
    phases: Sequence[str] = PHASES
    """Phases whose points are swept: ``training``, ``step``, ``save``, ``writing``, ``restore``, ``evaluation``."""
    writes: bool = True
    """True to strike before each change of a file in a save or a writing too."""
    tasks: Sequence[str] | None = None
    """Tasks that are struck, for example ``["worker:1"]``; ``None`` for all of them."""
    points: Sequence[str] | None = None
    """Points at which to strike, for example ``["before step 3", "in save 1, write 2"]``; ``None`` for all of them."""

    def __post_init__(self) -> None:
        for name in ("phases", "tasks", "points"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or not value):
                raise FaultError(f"{name}={value!r} must be a list of at least one name; leave it out for all of them")
        for point in self.points or ():
            Point.parse(point)

    def wants(self, task: str, point: Point) -> bool:
        """Return whether the sweep strikes a task at a point."""
        only_in = KINDS[self.kind].only_in
        return (
            point.phase in self.phases
            and (self.writes or point.detail != "write")
            and (self.tasks is None or task in self.tasks)
            and (self.points is None or point in map(Point.parse, self.points))
            and (not only_in or point.detail == only_in)
            # A kill here would be one after the last write of the save.
            and not (point.detail == "file" and only_in != "file")
            and not (point.detail == "write" and self.kind not in ("kill", "no-space", "io-error", "torn-write"))
        )


@runtime_checkable
class Schedules(Protocol):
    """Generator of schedules, for example :func:`pytest_ddl.generators.faults`."""

    def search(self, points: Sequence[tuple[str, Point]], run: Callable[[Schedule], bool]) -> None:
        """Call ``run`` with schedules of faults at these points until one returns False; end with the shortest."""
        ...


Faults = str | Fault | Sweep | Schedules | Iterable["str | Fault"]
"""Values that ``faults=`` takes."""
Plan = Sweep | Schedules | Schedule
"""Faults in their plain form; see :func:`parsed`."""


@dataclass
class Injector:
    """Injection of faults into one program: its uninterrupted run, and the trials that were already made."""

    program: Program
    settings: RunSettings
    comparison: Report
    judge: Callable[[TrainingRecord], Report]
    timeout: float
    restarts: Restarts
    tasks: Tasks
    place: str = ""
    """Place of the next trial among all, for the line that a terminal shows while it lasts."""
    _made: dict[Schedule, Trial] = field(default_factory=dict)
    _restores: dict[str, tuple[Schedule, list[Point]]] = field(default_factory=dict)
    """Task -> the first schedule whose second attempt has restored, and the points of that."""

    def record(self, writes: bool) -> None:
        """Run the program once without faults, and keep its points.

        :raises ArgumentError: if the program cannot be interrupted in this way.
        :raises NotInjectedError: if the run fails, or is another one than the one that was compared.
        """
        self.plan = FaultPlan(writes=writes, servers=self.tasks.servers)
        self.plain: TrialRun = run_trial(self.program, self.settings, self.plan, (), Restarts(0), self.timeout)
        attempt = self.plain.last.attempt
        errors = [rank.error for rank in attempt.ranks if rank.error is not None]
        if errors:
            raise NotInjectedError(f"the run without a fault failed: {errors[0].type}: {errors[0].message}")
        if any(rank.results.get("restart") for rank in attempt.ranks):
            raise ArgumentError("faults: the program interrupts itself with run.restart(); leave this call out")
        spec = self.program.question.spec
        self.baseline = self.program.record(
            spec, self.settings, attempt.ranks, attempt.num_replicas, time.monotonic() - self.plain.started
        )
        self.repeatable = equal_bits(self.baseline, self.comparison.distributed)
        if not self.repeatable:
            again = self.judge(self.baseline)
            if not again.passed and again.verdict != self.comparison.verdict:
                why = again.findings[0].message if again.findings else "; ".join(again.inconclusive)
                raise NotInjectedError(f"the run without a fault is not the one that was compared: {why}")
        self.settings = replace(self.settings, lineage=lineage.lineage_of(attempt.ranks[0]))
        self.points: list[tuple[str, Reached]] = []
        for task, one in points_of(self.plain, self.tasks.ranks):
            self.points.append((task, one))
            if task == self.tasks.ranks[0] and one.point.detail in ("", "batch"):
                self.points += [(server, one) for server in self.tasks.servers]

    def trial(self, schedule: Schedule) -> Trial:
        """Return the verdict of a schedule. Each schedule is run once."""
        if schedule not in self._made:
            run = run_trial(self.program, self.settings, self.plan, schedule, self.restarts, self.timeout, self.place)
            self._made[schedule] = judge_with_retries(
                run, self.plain, self.baseline, self.comparison.reference, self.judge, self.repeatable
            )
            self._keep_restores(schedule, run)
        return self._made[schedule]

    @property
    def made(self) -> list[Trial]:
        """The verdicts of all trials so far."""
        return list(self._made.values())

    def _keep_restores(self, schedule: Schedule, run: TrialRun) -> None:
        # A delay or a lost connection interrupts by chance. The restore must exist again when a fault strikes there.
        surely = len(schedule) == 1 and schedule[0].effect in (Effect.ENDS, Effect.RAISES)
        if not surely or len(run.attempts) < 2 or run.last.failed:
            return
        for task, points in zip(self.tasks.ranks, run.attempts[1].points, strict=False):
            found = [one.point for one in points if one.point.phase == "restore"]
            if found and task not in self._restores:
                self._restores[task] = schedule, found

    def _interrupt_late(self) -> None:
        """Interrupt the program after its last step, so that a second attempt shows the points of its restore."""
        ends = [one.point for task, one in self.points if task == self.tasks.ranks[0] and one.point.when == "after"]
        last = next((point for point in reversed(ends) if point.phase == "step"), None)
        if last is not None:
            self.trial((Fault("kill", self.tasks.ranks[0], last),))

    def sweep(self, wanted: Sweep) -> list[Trial]:
        """Strike at every wanted point once, and then at the points of a restore, which only a resumed run has."""
        first = [(task, one.point) for task, one in self.points if wanted.wants(task, one.point)]
        schedules: list[Schedule] = [(Fault(wanted.kind, task, point),) for task, point in dict.fromkeys(first)]
        schedules = [schedule for schedule in schedules if self.tasks.strike(schedule)]
        trials = []
        for number, schedule in enumerate(schedules, 1):
            self.place = f"fault {number} of {len(schedules)}: "
            trials.append(self.trial(schedule))
        if "restore" in wanted.phases and not self._restores:
            self._interrupt_late()
        for task, (schedule, points) in sorted(self._restores.items()):
            again = [Fault(wanted.kind, task, point, attempt=2) for point in points if wanted.wants(task, point)]
            trials += [self.trial((*schedule, fault)) for fault in again]
        struck = {trial.schedule[-1].point for trial in trials}
        if missing := [point for point in wanted.points or () if Point.parse(point) not in struck]:
            raise FaultError(f"points: the run has no point {missing[0]!r} that this sweep strikes")
        return trials


def parsed(faults: Faults) -> Plan:
    """Return what ``faults=`` takes in its plain form, so that a mistake is found before anything runs.

    :raises FaultError: for a text that is no fault, or a sweep of a kind that does not exist.
    """
    if isinstance(faults, str) and faults == EVERY_POINT:
        return Sweep()
    if isinstance(faults, Sweep):
        if faults.kind not in KINDS:
            raise FaultError(f"there is no fault {faults.kind!r}{did_you_mean(faults.kind, KINDS)}; {', '.join(KINDS)}")
        return faults
    if isinstance(faults, Schedules):
        return faults
    listed = _listed([faults] if isinstance(faults, str | Fault) else faults)
    return tuple(Fault.parse(one) if isinstance(one, str) else one for one in listed)


def inject(injector: Injector, plan: Plan, limits: Limits) -> FaultReport:
    """Inject faults and report the verdict of each trial.

    :raises FaultError: for a point of a sweep that the run does not have.
    """
    started = time.monotonic()
    if isinstance(plan, Sweep):
        injector.record(plan.writes and bool({"save", "writing"} & set(plan.phases)))
        trials = injector.sweep(plan)
    elif isinstance(plan, tuple):
        injector.record(any(fault.point.detail == "write" for fault in plan))
        trials = [injector.trial(plan)]
    else:
        injector.record(writes=False)
        trials = []

        def run(schedule: Schedule) -> bool:
            if not injector.tasks.strike(schedule):
                return True
            trials[:] = [injector.trial(schedule)]
            # A later attempt has fewer steps, so that a generated point may not exist in it.
            return trials[0].verdict is RecoveryVerdict.NOT_INJECTED or not limits.broken_by(trials[0])

        plan.search([(task, one.point) for task, one in injector.points], run)
        if not trials:
            raise FaultError(f"no generated schedule can strike; tasks: {', '.join(injector.tasks.every)}")
        if trials[0].verdict is RecoveryVerdict.NOT_INJECTED or not limits.broken_by(trials[0]):
            trials = [one for one in injector.made if one.verdict is not RecoveryVerdict.NOT_INJECTED]
    return FaultReport(
        strategy=str(injector.program.question.spec),
        tasks=injector.tasks.every,
        trials=tuple(trials),
        limits=limits,
        comparison=injector.comparison,
        points=len({(task, one.point) for task, one in injector.points}),
        notes=tuple(dict.fromkeys(note for rank in injector.baseline.ranks for note in rank.notes)),
        seconds=time.monotonic() - started,
    )


def _listed(faults: Any) -> list[Any]:
    try:
        listed = list(faults)
    except TypeError:
        listed = []
    if not listed or not all(isinstance(one, str | Fault) for one in listed):
        raise FaultError(
            f"faults={faults!r} is no fault: give a text such as 'kill worker:1 before step 3', a list of them, "
            f"a Sweep, a generator, or {EVERY_POINT!r}"
        )
    return listed
