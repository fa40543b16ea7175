"""Launch both versions at the same time, run blocks of their steps in turn, and compute one log ratio."""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_ddl.bench.gate.sides import Running, Side, Watch, explained, provenance
from pytest_ddl.bench.gate.target import VersionTarget
from pytest_ddl.bench.gate.worktrees import held_folder
from pytest_ddl.bench.launching.machine import Load, Reading, foreign_gpu_processes
from pytest_ddl.bench.launching.pacing import LATE_TRACES, Alternation, Lane, Pacer, PacingError
from pytest_ddl.bench.launching.processes import Processes
from pytest_ddl.bench.launching.ranks import PARTING
from pytest_ddl.bench.launching.records import BenchSpec, Launch

GROUPS = 25
"""ABBA groups of a launch, if the time allows. Their median is the result of the launch.

More groups would cost more time than they save in launches. Over 72 launches of a 1 ms step on two shared cores (2 s of
groups each), the standard deviation was 3.5 %, and the part that groups explain was 2.8 %."""
LAUNCHES = 3
"""Launches that are made with one pair of interpreters.

The number is odd, so that BASE and HEAD alternate as the side that starts first. It is smaller than the number of
launches at the gate's first look. Pairs of interpreters showed no difference (one-way analysis of variance of 168 pairs
with one worker, 20 with two: p = .39 and .37). But a program whose order of work depends on hashes would differ."""
SETTLING = 8
"""Each measured block follows a block that is not measured, and that is shorter by this factor."""
BLOCK_SECONDS = 0.01
"""Minimum seconds of a block, so that the resolution of the clock and the cost of a turn have little effect."""
MOST_BLOCK_SECONDS = 0.05
"""Seconds above which a block gets fewer steps than ``steps_per_block``.

The noise of a machine changes slowly. On two shared cores, six seconds of a 1 ms step gave the median ratio to .28 %
with blocks of 10 ms, to .4 % with 20 ms, and to .9 % with 80 ms."""
FEWEST_GROUPS = 4
CANARY_CALLS = 4
"""All-reduces in one reading of the canary."""
LAUNCH_SECONDS = 5.0
"""Seconds after which no group beyond ``FEWEST_GROUPS`` begins."""


@dataclass
class Turns:
    """Measurements from the blocks of one launch."""

    steps: int
    ratios: list[float] = field(default_factory=list)
    """Log of the step times' ratio, HEAD over BASE, one for each group."""
    base_steps: list[float] = field(default_factory=list)
    """Seconds of a step, one for each block."""
    head_steps: list[float] = field(default_factory=list)
    base_canary: list[float] = field(default_factory=list)
    """Seconds of the canary, one for each group."""
    head_canary: list[float] = field(default_factory=list)
    base_dropped: int = 0
    """Blocks in which BASE traced. Their groups were run again."""
    head_dropped: int = 0

    @property
    def total_ratio(self) -> float:
        """Log of the ratio of all steps' time, HEAD over BASE. It shows rare long steps, which no median shows."""
        return math.log(sum(self.head_steps) / sum(self.base_steps))


def take_turns(
    base: Lane,
    head: Lane,
    steps: int,
    deadline: float,
    groups: int,
    *,
    head_first: bool = False,
    canary: bool = False,
) -> Turns:
    """Run blocks in ABBA groups: one side works while the other one is stopped.

    Each group gives one log ratio, the mean over its two pairs.

    A drift that is linear over a group cancels out. So does the advantage of a second block in a row, which finds its
    caches warm (counterbalancing; Fisher, *The Design of Experiments*, 1935, on balanced orders). A block takes as long
    as its slowest rank, as a synchronous step does.

    Groups in which a side traced are run again. After ``LATE_TRACES`` such blocks they are used, because tracing is
    then a part of what the program does.

    :param steps: requested steps of a block; see :func:`calibrate`.
    :param deadline: ``time.monotonic`` at which to give up.
    :param head_first: use BAAB instead of ABBA.
    :param canary: after each group, time small all-reduces of both sides, which take turns as the side that is first.
    :raises pytest_ddl.bench.launching.pacing.PacingError: if a rank leaves or is late.
    """
    with ExitStack() as stack:
        for lane in (base, head):
            stack.callback(lane.resume)
        first, second = (head, base) if head_first else (base, head)
        pair = _Pair(base, head, deadline)
        # The calibration ends with ``first``, so that the first block finds its caches as the first block of each
        # later group does.
        turns = Turns(calibrate(pair.run, (second, first), steps))
        begun = time.monotonic()
        while len(turns.ratios) < groups:
            if len(turns.ratios) >= FEWEST_GROUPS and time.monotonic() - begun > LAUNCH_SECONDS:
                break
            pair.run_group((first, second, second, first), turns)
            if canary and len(turns.base_canary) < len(turns.ratios):
                for lane in (first, second) if len(turns.ratios) % 2 else (second, first):
                    (turns.base_canary if lane is base else turns.head_canary).append(pair.run_canary(lane))
        return turns


class _Pair(Alternation):
    """Lanes of both sides."""

    def __init__(self, base: Lane, head: Lane, deadline: float) -> None:
        super().__init__((base, head), deadline)
        self._base = base

    def run(self, lane: Lane, steps: int) -> float:
        """Run a block of a side. Return the seconds of its slowest rank."""
        return max(self.run_alone(lane, steps, max(1, steps // SETTLING)))

    def run_canary(self, lane: Lane) -> float:
        return lane.run_canary(CANARY_CALLS, self.deadline, self.begin(lane))

    def run_group(self, order: Sequence[Lane], turns: Turns) -> None:
        """Run blocks in this order and add what they give, unless a side traced."""
        seconds: dict[bool, list[float]] = {True: [], False: []}
        traced = {True: 0, False: 0}
        for lane in order:
            of_base, before = lane is self._base, lane.traces
            seconds[of_base].append(self.run(lane, turns.steps))
            traced[of_base] += lane.traces != before
        if any(traced.values()) and turns.base_dropped + turns.head_dropped < LATE_TRACES:
            turns.base_dropped += traced[True]
            turns.head_dropped += traced[False]
            return
        turns.base_steps += [one / turns.steps for one in seconds[True]]
        turns.head_steps += [one / turns.steps for one in seconds[False]]
        pairs = zip(seconds[False], seconds[True], strict=True)
        turns.ratios.append(sum(math.log(of_head / of_base) for of_head, of_base in pairs) / 2)


def calibrate(run: Callable[[Lane, int], float], lanes: Sequence[Lane], steps: int) -> int:
    """Return the steps of a block, for both sides: as requested, more if steps are very short, fewer if very long."""
    few = min(steps, 5)
    for lane in lanes:
        run(lane, few)  # not timed: the rest of the warm-up
    step = min(run(lane, few) / few for lane in lanes)
    enough = max(steps, math.ceil(BLOCK_SECONDS / step))
    return min(enough, max(1, math.floor(MOST_BLOCK_SECONDS / step)))


@dataclass(frozen=True)
class Paired:
    """Result of one launch of both versions."""

    log_ratio: float
    """Median over ABBA groups of the log of the step times' ratio, HEAD over BASE. Above 0, HEAD is slower."""
    ratios: tuple[float, ...] = field(repr=False)
    """Log ratio of each group."""
    base: Launch
    head: Launch
    provenance: Mapping[str, Mapping[str, str]]
    """``BASE`` and ``HEAD`` -> origin of the code: ``program``, ``commit``, ``python``, ``pytest_ddl`` …"""
    load: Load
    steps_per_block: int
    seconds: float
    dropped_blocks: tuple[int, int] = (0, 0)
    """Blocks of BASE and of HEAD in which a function was traced; their groups were not used."""
    total_ratio: float = 0.0
    """Log of the ratio of all blocks' time, HEAD over BASE. It shows rare long steps, which no median shows."""
    step_seconds: tuple[float, float] = (math.nan, math.nan)
    """Median seconds of a step of BASE and of HEAD."""
    canary: tuple[float, float] | None = None
    """Median seconds of the canary of BASE and of HEAD; ``None`` if there was none."""

    def as_json(self) -> dict[str, Any]:
        return {
            "log_ratio": self.log_ratio,
            "ratios": list(self.ratios),
            "step_seconds": {"base": self.step_seconds[0], "head": self.step_seconds[1]},
            "steps_per_block": self.steps_per_block,
            "total_ratio": self.total_ratio,
            "dropped_blocks": {"base": self.dropped_blocks[0], "head": self.dropped_blocks[1]},
            "canary": None if self.canary is None else {"base": self.canary[0], "head": self.canary[1]},
            "hosts": {name: list(launch.hosts) for name, launch in (("base", self.base), ("head", self.head))},
            "seconds": self.seconds,
            "load": self.load.as_json(),
            "provenance": {name: dict(origin) for name, origin in self.provenance.items()},
        }


class VersionPair:
    """Both versions, each in its own interpreter. This is a context manager, which ends the interpreters on exit.

    Interpreters import TensorFlow and last for several launches. The ranks of a launch are separate processes, forked
    from them. Both have the same hash seed, so that the order of a set does not look like a difference of the versions.

    :param ranks: number of ranks of one launch of one version.
    :param groups: number of ABBA groups of a launch, if the time allows.
    :param canary: time small all-reduces of each side in turn with the groups.
    """

    def __init__(
        self,
        base: Side,
        head: Side,
        target: VersionTarget,
        strategy: str,
        ranks: int,
        bench: BenchSpec,
        *,
        groups: int = GROUPS,
        cores_per_replica: int = 0,
        canary: bool = False,
    ) -> None:
        self._sides, self._ranks, self._bench, self._groups = (base, head), ranks, bench, groups
        self._canary = canary
        self._asked = (target, strategy, bench, cores_per_replica, canary)
        self._stack = ExitStack()
        self._left = 0

    def __enter__(self) -> VersionPair:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def launch(self, number: int = 0) -> Paired:
        """Launch both versions in fresh processes and let them take turns.

        A launch is the unit of the gate's statistics. The memory and the cores of the ranks vary from launch to launch.
        The addresses of libraries and the hash seed vary from one pair of interpreters to the next.

        :param number: index of the launch. BASE starts first and has the first turn if it is even, else HEAD.
        :raises MeasurementError: if a side fails; there is no further launch then.
        """
        started = time.monotonic()
        deadline = started + self._bench.timeout
        load_average = os.getloadavg()[0]
        head_first = number % 2 == 1
        if not self._left:
            self._renew()
        self._left -= 1
        with ExitStack() as stack:
            for run in reversed(self._runs) if head_first else self._runs:
                run.ask(stack.enter_context(Pacer(self._folder)), *self._asked, number)
            watch = Watch(self._runs)
            stack.callback(watch.end)
            try:
                lanes = [run.pacer.accept(self._ranks, deadline) for run in self._runs]
                own = self._processes.pids()
                before = Reading.take(own)
                steps = self._bench.steps_per_block
                order = {"head_first": head_first, "canary": self._canary}
                turns = take_turns(lanes[0], lanes[1], steps, deadline, self._groups, **order)
                load = before.until(Reading.take(own), load_average)
                gpu = foreign_gpu_processes(own)
            except PacingError as error:
                watch.end()
                raise explained(self._runs, error, time.monotonic() > deadline) from None
            watch.end()
            for lane in lanes:
                lane.stop()
            reports = [run.report(deadline + PARTING) for run in self._runs]
        return self._paired(turns, reports, replace(load, foreign_gpu=gpu), time.monotonic() - started)

    def _renew(self) -> None:
        """End the current interpreters and prepare new ones, which start with their first launch."""
        self._stack.close()
        self._folder = self._stack.enter_context(held_folder("launch-"))
        self._processes = self._stack.enter_context(Processes(self._folder.name))
        hash_seed = random.SystemRandom().randrange(1, 2**32)
        self._runs = [Running(side, self._folder / side.name, self._processes, hash_seed) for side in self._sides]
        self._left = LAUNCHES

    def _paired(self, turns: Turns, reports: Sequence[Mapping[str, Any]], load: Load, seconds: float) -> Paired:
        base, head = (Launch.from_json(report["launch"], other_version=True) for report in reports)
        canary = None
        if turns.base_canary:
            canary = statistics.median(turns.base_canary), statistics.median(turns.head_canary)
        return Paired(
            log_ratio=statistics.median(turns.ratios),
            ratios=tuple(turns.ratios),
            base=base,
            head=head,
            provenance={side.name: provenance(side, report) for side, report in zip(self._sides, reports, strict=True)},
            load=load,
            steps_per_block=turns.steps,
            seconds=seconds,
            dropped_blocks=(turns.base_dropped, turns.head_dropped),
            total_ratio=turns.total_ratio,
            step_seconds=(statistics.median(turns.base_steps), statistics.median(turns.head_steps)),
            canary=canary,
        )
