"""One launch of the gate: both versions alive at once, blocks of steps in turn, one log ratio out of it."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pytest_ddl.bench.answers import PARTING
from pytest_ddl.bench.gate.folders import held_folder
from pytest_ddl.bench.gate.overload import Load, Reading, foreign_gpu_processes
from pytest_ddl.bench.gate.sides import Running, Side, Watch, explained, provenance
from pytest_ddl.bench.gate.target import Target
from pytest_ddl.bench.gate.turns import take_turns
from pytest_ddl.bench.pacing import Pacer, PacingError
from pytest_ddl.bench.processes import Processes
from pytest_ddl.bench.records import Launch
from pytest_ddl.bench.spec import BenchSpec

GROUPS = 150
"""ABBA groups of a launch, where the time allows: their median is what the launch says."""


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


def launch_pair(
    base: Side,
    head: Side,
    target: Target,
    strategy: str,
    ranks: int,
    bench: BenchSpec,
    *,
    number: int = 0,
    groups: int = GROUPS,
    cores_per_replica: int = 0,
) -> Paired:
    """Launch both versions in fresh interpreters and let them take turns.

    The unit of the gate's statistics: memory layout, placement and hash seeds are drawn anew.

    :param number: of the launch; sides are started, and turns begun, by BASE and by HEAD in turn.
    :param groups: ABBA groups to run.
    :raises MeasurementError: where a side fails.
    """
    started = time.monotonic()
    deadline = started + bench.timeout
    load_average = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = stack.enter_context(held_folder("launch-"))
        processes = stack.enter_context(Processes(folder.name))
        runs = [
            Running(side, folder / side.name, processes, stack.enter_context(Pacer(folder)), deadline)
            for side in (base, head)
        ]
        for run in runs if number % 2 == 0 else reversed(runs):
            run.start(target, strategy, bench, cores_per_replica)
        watch = Watch(runs)
        stack.callback(watch.end)
        try:
            lanes = [run.pacer.accept(ranks, deadline) for run in runs]
            own = processes.pids()
            before = Reading.take(own)
            turns = take_turns(lanes[0], lanes[1], bench.steps_per_block, deadline, groups, head_first=number % 2 == 1)
            load = before.until(Reading.take(own), load_average)
            gpu = foreign_gpu_processes(own)
        except PacingError as error:
            watch.end()
            raise explained(runs, error, time.monotonic() > deadline) from None
        watch.end()
        for lane in lanes:
            lane.stop()
        reports = [run.report(deadline + PARTING) for run in runs]
    launches = [Launch.from_json(report["launch"]) for report in reports]
    return Paired(
        log_ratio=statistics.median(turns.ratios),
        ratios=tuple(turns.ratios),
        base=launches[0],
        head=launches[1],
        provenance={run.side.name: provenance(run.side, report) for run, report in zip(runs, reports, strict=True)},
        load=replace(load, foreign_gpu=gpu),
        steps_per_block=turns.steps,
        seconds=time.monotonic() - started,
        dropped_blocks=(turns.base_dropped, turns.head_dropped),
        total_ratio=turns.total_ratio,
        step_seconds=(statistics.median(turns.base_steps), statistics.median(turns.head_steps)),
    )
