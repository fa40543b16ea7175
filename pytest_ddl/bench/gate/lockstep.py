"""One launch of the gate: both versions alive at once, blocks of steps in turn, one log ratio out of it."""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pytest_ddl.bench.gate.folders import held_folder
from pytest_ddl.bench.gate.overload import Load, Reading, foreign_gpu_processes
from pytest_ddl.bench.gate.sides import Running, Side, Watch, explained, provenance
from pytest_ddl.bench.gate.target import Target
from pytest_ddl.bench.gate.turns import Turns, take_turns
from pytest_ddl.bench.launching.answers import PARTING
from pytest_ddl.bench.launching.pacing import Pacer, PacingError
from pytest_ddl.bench.processes import Processes
from pytest_ddl.bench.records import Launch
from pytest_ddl.bench.spec import BenchSpec

GROUPS = 25
"""ABBA groups of a launch, where the time allows: their median is what the launch says. More would cost more time than
they save launches: of 72 launches of a 1 ms step on two shared cores (2 s of groups each), the sd was 3.5 %, and that
which groups explain 2.8 %."""
LAUNCHES = 3
"""Launches for which interpreters last: an odd number, so that BASE and HEAD are started first in turn, and fewer than
the first look of the gate has. Between interpreters, nothing was found (one-way analysis of variance of 168 pairs with
one worker, 20 with two: p = .39 and .37), but a program whose order of work hangs on hashes would differ."""


@dataclass(frozen=True)
class Paired:
    """What one launch of both versions gave."""

    log_ratio: float
    """Median over ABBA groups of the log of step time, HEAD over BASE; above 0 HEAD is slower."""
    ratios: tuple[float, ...] = field(repr=False)
    """The log ratio of each group."""
    base: Launch
    head: Launch
    provenance: Mapping[str, Mapping[str, str]]
    """``BASE`` and ``HEAD`` -> ``program``, ``commit``, ``python``, ``pytest_ddl``, ``tensorflow`` …"""
    load: Load
    steps_per_block: int
    seconds: float
    """Of the whole launch."""
    dropped_blocks: tuple[int, int] = (0, 0)
    """Blocks of BASE and of HEAD that were not used, as something was traced in them."""
    total_ratio: float = 0.0
    """Log of the time of all blocks, HEAD over BASE: what is rare and long shows here, and in no median."""
    step_seconds: tuple[float, float] = (math.nan, math.nan)
    """Median step of BASE and of HEAD."""

    def as_json(self) -> dict[str, Any]:
        return {
            "log_ratio": self.log_ratio,
            "ratios": list(self.ratios),
            "step_seconds": {"base": self.step_seconds[0], "head": self.step_seconds[1]},
            "steps_per_block": self.steps_per_block,
            "total_ratio": self.total_ratio,
            "dropped_blocks": {"base": self.dropped_blocks[0], "head": self.dropped_blocks[1]},
            "seconds": self.seconds,
            "load": {**asdict(self.load), "problem": self.load.problem},
            "provenance": {name: dict(told) for name, told in self.provenance.items()},
        }


class Pair:
    """Both versions, each in an interpreter of its own. A context manager: leaving it ends them.

    Interpreters import TensorFlow and last for several launches, whose ranks are processes of their own, forked
    from them. Both have the same hash seed: the order of a set must not look like a difference of the versions.

    :param ranks: of one launch of one version.
    :param groups: ABBA groups of a launch, where the time allows.
    """

    def __init__(
        self,
        base: Side,
        head: Side,
        target: Target,
        strategy: str,
        ranks: int,
        bench: BenchSpec,
        *,
        groups: int = GROUPS,
        cores_per_replica: int = 0,
    ) -> None:
        self._sides, self._ranks, self._bench, self._groups = (base, head), ranks, bench, groups
        self._asked = (target, strategy, bench, cores_per_replica)
        self._stack = ExitStack()
        self._left = 0

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def launch(self, number: int = 0) -> Paired:
        """Launch both versions in fresh processes and let them take turns.

        The unit of the gate's statistics: what ranks allocate, and the cores that they run on, are drawn anew; the
        addresses of libraries and the hash seed with each pair of interpreters.

        :param number: of the launch; sides are started, and turns begun, by BASE and by HEAD in turn.
        :raises MeasurementError: where a side fails; there is no further launch then.
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
                run.ask(stack.enter_context(Pacer(self._folder)), *self._asked)
            watch = Watch(self._runs)
            stack.callback(watch.end)
            try:
                lanes = [run.pacer.accept(self._ranks, deadline) for run in self._runs]
                own = self._processes.pids()
                before = Reading.take(own)
                steps = self._bench.steps_per_block
                turns = take_turns(lanes[0], lanes[1], steps, deadline, self._groups, head_first=head_first)
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
        """End the interpreters there are; fresh ones are started when they are asked."""
        self._stack.close()
        self._folder = self._stack.enter_context(held_folder("launch-"))
        self._processes = self._stack.enter_context(Processes(self._folder.name))
        hash_seed = random.SystemRandom().randrange(1, 2**32)
        self._runs = [Running(side, self._folder / side.name, self._processes, hash_seed) for side in self._sides]
        self._left = LAUNCHES

    def _paired(self, turns: Turns, reports: Sequence[Mapping[str, Any]], load: Load, seconds: float) -> Paired:
        base, head = (Launch.from_json(report["launch"]) for report in reports)
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
        )
