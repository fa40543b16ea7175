"""Run a training program with the faults of a schedule, and start it again as a platform does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_ddl.cluster.cluster import Fate
from pytest_ddl.equivalence.runs.program import Attempt, Program
from pytest_ddl.faults.platform import Platform
from pytest_ddl.faults.rank import RELAYED, point_log
from pytest_ddl.faults.rank.fault import KINDS, Effect, Fault
from pytest_ddl.faults.rank.observer import FaultPlan
from pytest_ddl.faults.rank.point_log import Reached
from pytest_ddl.hosts.partitions import Partitions
from pytest_ddl.strategies.spec import StrategySpec
from pytest_ddl.training.settings import RunSettings

Schedule = tuple[Fault, ...]
"""Faults of one trial. Each strikes in its own attempt, so several can interrupt one program in turn."""
_STATUS = {"kill": (-9,), "torn-write": (-9,), "truncate": (-9,), "flip-bit": (-9,), "abort": (-6,)}
"""Kind -> exit statuses that prove that the process of a rank died of it."""
_STATUS_OF_SERVER = {**_STATUS, "term": (-15, -9)}


@dataclass(frozen=True)
class Restarts:
    """Behavior of the platform after a failure: it starts the whole job again, in fresh processes.

    TensorFlow lets no process join a group of running workers, so a single rank cannot be started again. A remote
    worker of a coordinator can; see :mod:`pytest_ddl.faults.platform`.
    """

    at_most: int = 3
    on: StrategySpec | None = None
    """Variant on which the program continues, for example with another number of replicas. ``None``: the same."""


@dataclass(frozen=True)
class TrialAttempt:
    """One attempt of a trial: what the ranks returned, and the points that they reached, by rank."""

    attempt: Attempt
    points: tuple[tuple[Reached, ...], ...]
    spec: StrategySpec
    settings: RunSettings
    plan: FaultPlan = field(default_factory=FaultPlan)
    ends: Mapping[str, int | None] = field(default_factory=dict)
    """Fault that ended a server -> exit status of its process."""

    @property
    def failed(self) -> bool:
        return any(rank.failed for rank in self.attempt.ranks)

    @property
    def struck(self) -> tuple[Reached, ...]:
        """Points at which a fault struck, in the order of time."""
        reached = [one for points in self.points for one in points if one.struck is not None]
        return tuple(sorted(reached, key=lambda one: one.at))

    @property
    def hung(self) -> bool:
        """True if ranks had to be stopped at the deadline, or because they wait for each other forever."""
        return any(answer.fate in (Fate.DEADLINE, Fate.STUCK) for answer in self.attempt.answers)

    @property
    def completed(self) -> int:
        """Number of the last step whose update every rank has made, or made on its way to a fault."""
        ends = [one.point for points in self.points for one in points if one.point.when == "after"]
        return max((point.number for point in ends if point.phase == "step"), default=0)

    def unproved(self) -> str:
        """Return why it is not proved that each fault struck and had its effect; an empty text if it is."""
        struck = {str(one.struck) for one in self.struck}
        tasks = [answer.task for answer in self.attempt.answers]
        for fault in self.plan.faults:
            rank = 0 if fault.task in self.plan.servers else tasks.index(fault.task)
            if str(fault) not in struck:
                if KINDS[fault.kind].network and any(one.point == fault.point for one in self.points[rank]):
                    return f"{fault.task} had no open connection at the point of {fault}"
                last = self.points[rank][-1].point if self.points[rank] else "none"
                return f"the point of {fault} was not reached; the last point of {tasks[rank]} was '{last}'"
            if fault.task in self.plan.servers:
                status = self.ends.get(str(fault))
                if fault.effect is Effect.ENDS and status not in _STATUS_OF_SERVER[fault.kind]:
                    return f"{fault} struck, but the server ended with status {status}"
                continue
            answer = self.attempt.answers[rank]
            if fault.kind in _STATUS and answer.exit_status not in _STATUS[fault.kind]:
                return f"{fault} struck, but {fault.task} {answer.describe_end()}"
        return ""


@dataclass(frozen=True)
class TrialRun:
    """All attempts of one trial."""

    schedule: Schedule
    attempts: tuple[TrialAttempt, ...]
    started: float

    @property
    def last(self) -> TrialAttempt:
        return self.attempts[-1]

    @property
    def unproved(self) -> str:
        """Why a fault may not have struck, or an empty text."""
        left = {fault.attempt for fault in self.schedule} - {one.settings.attempt for one in self.attempts}
        if left:
            return f"there was no attempt {min(left)}, because the program was not interrupted before"
        return next(filter(None, (one.unproved() for one in self.attempts)), "")

    @property
    def detected(self) -> float | None:
        """Seconds from the last fault to the end of the attempt that it ended; ``None`` if it ended none."""
        seconds = [
            one.attempt.ended - one.struck[-1].at
            for one in self.attempts
            if one.failed and one.struck and one.struck[-1].struck and one.struck[-1].struck.effect is not Effect.DELAYS
        ]
        return max(seconds, default=None)

    @property
    def resumed(self) -> float | None:
        """Seconds from the end of the first interrupted attempt to the first step of the last one."""
        if len(self.attempts) < 2:
            return None
        steps = [one.at for points in self.last.points for one in points if one.point.phase == "step"]
        return min(steps) - self.attempts[0].attempt.ended if steps else None


def run_trial(
    program: Program,
    settings: RunSettings,
    plan: FaultPlan,
    schedule: Schedule,
    restarts: Restarts,
    timeout: float,
    place: str = "",
) -> TrialRun:
    """Run a program until it ends without a failure, or cannot be started again.

    :param settings: those of the uninterrupted run, with its lineage.
    :param plan: what to log, and the servers; the faults of each attempt are those of the schedule.
    :param timeout: seconds for each attempt.
    :param place: words before the description that a terminal shows.
    """
    started = time.monotonic()
    attempts: list[TrialAttempt] = []
    with program.folder() as folder:
        while True:
            number = len(attempts) + 1
            faults = tuple(fault for fault in schedule if fault.attempt == number)
            spec = restarts.on if restarts.on is not None and number > 1 else program.question.spec
            writes = plan.writes and (not schedule or any(fault.point.detail == "write" for fault in faults))
            outside = any(KINDS[fault.kind].of_host for fault in faults)
            partitions = Partitions.over(program.harness.pool.launcher) if outside else None
            cut_outside = partitions is not None
            own_plan = replace(plan, faults=faults, writes=writes, cut_outside=cut_outside)
            own = replace(settings, tmp_path=folder, attempt=number, points=own_plan)
            timed = replace(program, deadline=time.monotonic() + timeout)
            program.harness.show(f"{place}{', then '.join(map(str, faults)) or 'without a fault'} (attempt {number})")
            platform = Platform(own, own_plan, timed.deadline, partitions)
            relayed = {f.task for f in faults if KINDS[f.kind].network and not f.is_outside(cut_outside)}
            environ = {RELAYED: ",".join(sorted(relayed))} if relayed else {}
            with platform:
                attempt = timed.attempt(spec, own, fresh=writes, environ=environ, watch=platform.watching)
            ranks = range(len(attempt.ranks))
            points = tuple(point_log.read(point_log.path_of(folder, number, rank)) for rank in ranks)
            attempts.append(TrialAttempt(attempt, points, spec, own, own_plan, platform.ends))
            interrupted = attempts[-1].failed and attempts[-1].struck
            if not interrupted or number > restarts.at_most:
                return TrialRun(schedule, tuple(attempts), started)


def points_of(run: TrialRun, tasks: Sequence[str]) -> list[tuple[str, Reached]]:
    """Return the points of an uninterrupted run, in the order in which they were reached, each with its task."""
    points_of_tasks = [(task, one) for task, points in zip(tasks, run.last.points, strict=True) for one in points]
    return sorted(points_of_tasks, key=lambda pair: pair[1].at)
