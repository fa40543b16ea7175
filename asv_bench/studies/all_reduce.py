"""Study ``all-reduce``: time each choice of an all-reduce by message size and number of replicas."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from asv_bench.studies.all_reduce_choices import CHOICES, Choice
from asv_bench.studies.comparing import LEVEL, Best, best, shown
from asv_bench.studies.published import OWN_RING, RING, published_table
from asv_bench.studies.report import Report
from asv_bench.studies.running import add_common, conduct, numbers, tell
from pytest_ddl.bench.collectives import measure_collectives
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.metrics.estimates import interval
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.harness import Harness, process_harness
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.web.results import Table

NAME = "all-reduce"
SIZES, QUICK_SIZES = "64,16384,1048576,8388608", "1024,1048576"
REPLICAS, QUICK_REPLICAS = "2,4", "2"
REPEATS, QUICK_REPEATS = 5, 3
MOST_BYTES = 2**30
SIZED = {"mirrored": "mirrored[replicas={}]", "multi_worker_mirrored": "multi_worker_mirrored[workers={}]"}
"""Strategy -> its variant with a number of replicas."""


@dataclass(frozen=True)
class Cell:
    """Times of one size with one number of replicas under one strategy: the choices that are compared."""

    strategy: str
    replicas: int
    size: int
    """Bytes of the tensor of each replica."""
    seconds: Mapping[str, tuple[float, ...]]
    """Choice -> seconds of one all-reduce in each run; run k of all choices followed each other."""

    @property
    def best(self) -> Best:
        return best(self.seconds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    quick = f"sizes {QUICK_SIZES}, {QUICK_REPLICAS} replicas, {QUICK_REPEATS} runs"
    add_common(parser, NAME, repeats=REPEATS, quick=quick, timeout=120.0)
    add = parser.add_argument
    add("--sizes", metavar="N,...", help=f"Bytes of the tensor of each replica (default: {SIZES}).")
    add("--replicas", metavar="N,...", help=f"Numbers of replicas (default: {REPLICAS}).")
    text = "auto (default): GPUs if there are any."
    add("--device", default="auto", choices=["auto", "cpu", "gpu"], help=text)


def main(options: argparse.Namespace) -> int:
    """Run the study and return the exit status."""
    return conduct(options, run)


def run(options: argparse.Namespace) -> Report:
    """Time all choices in turn, and report them.

    :raises UsageError: if an option cannot be used.
    :raises BenchError: if a choice gives wrong sums, or cannot be timed.
    """
    sizes = numbers("sizes", options.sizes or (QUICK_SIZES if options.quick else SIZES), least=1, most=MOST_BYTES)
    replicas = numbers(
        "replicas", options.replicas or (QUICK_REPLICAS if options.quick else REPLICAS), least=2, most=16
    )
    repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    harness = process_harness()
    device = harness.device(DdlMark(device=options.device))
    runnable, skipped = _available(harness, device, replicas)
    if not runnable:
        raise UsageError(f"--device={options.device}: no choice can run here: {'; '.join(skipped.values())}")
    found: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for repeat in range(repeats):
        for strategy, number in runnable:
            # The first place changes, because a choice may run under other conditions after a pause.
            choices = runnable[strategy, number]
            first = repeat % len(choices)
            for choice in (*choices[first:], *choices[:first]):
                for size, seconds in _timed(choice, number, sizes, device, options.timeout).items():
                    found.setdefault((strategy, number, size), {}).setdefault(choice.name, []).append(seconds)
            tell(f"run {repeat + 1}/{repeats}: {strategy} with {number} replicas, {len(choices)} choices")
    cells = [
        Cell(*key, {choice.name: tuple(times[choice.name]) for choice in runnable[key[:2]]})
        for key, times in found.items()
    ]
    return report(cells, skipped, device)


def _available(
    harness: Harness, device: str, replicas: Sequence[int]
) -> tuple[dict[tuple[str, int], list[Choice]], dict[str, str]]:
    """Return the choices by strategy and number of replicas, and the reasons for those that cannot run here."""
    runnable: dict[tuple[str, int], list[Choice]] = {}
    skipped: dict[str, str] = {}
    for choice in CHOICES:
        for number in replicas:
            variant = SIZED[choice.strategy].format(number)
            reason = harness.unavailable(harness.registry.parse_variant(variant), DdlMark(device=device))
            if not reason and choice.needs_gpus and device != "gpu":
                reason = f"needs GPUs; this run is on {device}"
            if not reason and choice.needs_gpus and harness.machine.gpus < number:
                reason = f"needs {number} physical GPUs; this machine has {harness.machine.gpus}"
            if reason:
                skipped[f"{choice.name} of {variant}"] = reason
            else:
                runnable.setdefault((choice.strategy, number), []).append(choice)
    return runnable, skipped


def _timed(choice: Choice, replicas: int, sizes: Sequence[int], device: str, timeout: float) -> dict[int, float]:
    """Time one choice in fresh processes, and return size in bytes -> seconds.

    :raises BenchError: if a sum is wrong, or a rank fails; it names the choice.
    """
    variant = SIZED[choice.strategy].format(replicas)
    try:
        timings = measure_collectives(variant, sizes, device=device, timeout=timeout, arguments=choice.make)
    except BenchError as error:
        raise BenchError(f"{choice.name} ({choice.summary}) of {variant}: {error}") from None
    return {timing.size: timing.seconds for timing in timings}


def report(cells: Sequence[Cell], skipped: Mapping[str, str], device: str) -> Report:
    """Make tables and pictures of all times.

    :param skipped: choice and variant -> reason why it was not timed.
    """
    groups = dict.fromkeys((cell.strategy, cell.replicas) for cell in cells)
    tables = [_times([cell for cell in cells if (cell.strategy, cell.replicas) == group]) for group in groups]
    if skipped:
        tables.append(Table("Not timed", (("choice", "reason"), *skipped.items())))
    named = sum(cell.best.name is not None for cell in cells)
    headline = f"A best choice is separated from all others in {named} of {len(cells)} cases"
    tables.append(published_table((RING, OWN_RING), f"{headline.lower()}; see above", _differs(device)))
    runs = len(next(iter(cells[0].seconds.values())))
    notes = []
    if runs == 1:
        notes.append("One run: there are no intervals, so no choice is named.")
    if device == "cpu":
        notes.append("All replicas share the cores and the memory of one machine: no network was measured.")
    used = {(one.name, one.strategy): one.summary for one in CHOICES}
    return Report(
        study=NAME,
        title="Choices of an all-reduce by message size and number of replicas",
        headline=headline,
        tables=tuple(tables),
        figures={NAME: partial(draw, cells)},
        data={
            "device": device,
            "cells": [
                {
                    "strategy": cell.strategy,
                    "replicas": cell.replicas,
                    "size": cell.size,
                    "seconds": dict(cell.seconds),
                    "best": cell.best.name,
                    "smallest": cell.best.smallest,
                    "not_separated": list(cell.best.rivals),
                }
                for cell in cells
            ],
            "skipped": dict(skipped),
        },
        notes=tuple(notes),
        settings={
            **{f"{name} ({strategy})": summary for (name, strategy), summary in used.items()},
            "sums": "all values of all replicas were checked for each choice and size, and are right",
            "runs": f"{runs} of each choice in fresh processes, which took turns",
            "intervals": f"t intervals at {LEVEL:.0%} of logarithms over runs",
            "best": "the choice that intervals of paired ratios separate from all others, at a joint level of 95 %",
        },
    )


def _times(cells: Sequence[Cell]) -> Table:
    names = list(cells[0].seconds)
    rows = [("message in bytes", *(f"{name}, µs" for name in names), "best")]
    for cell in sorted(cells, key=lambda one: one.size):
        times = (shown(cell.seconds[name], scale=1e6) for name in names)
        rows.append((str(cell.size), *times, str(cell.best) if len(names) > 1 else "-"))
    return Table(f"{cells[0].strategy}, {cells[0].replicas} replicas: time of one all-reduce", tuple(rows))


def _differs(device: str) -> list[tuple[str, str, str]]:
    here = "one machine: copies between virtual CPU devices, gRPC between workers" if device == "cpu" else "GPUs"
    return [
        ("hardware", "clusters of workstations; 16 H100 GPUs on 2 nodes with InfiniBand", here),
        ("ring", "MPI; Python over NCCL's send and receive", "copies in a graph; TensorFlow's collective ring"),
    ]


def draw(cells: Sequence[Cell], figure: Any) -> None:
    """Draw time over message size for each choice, with intervals; one plot for each strategy and number."""
    from pytest_ddl.web.drawing import ALL, GREY, INK, MANY, SINGLE, STEADY

    groups = list(dict.fromkeys((cell.strategy, cell.replicas) for cell in cells))
    plots = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
    colors = (SINGLE, MANY, ALL, STEADY, GREY, INK)
    for axes, group in zip(plots, groups, strict=True):
        own = sorted((cell for cell in cells if (cell.strategy, cell.replicas) == group), key=lambda one: one.size)
        for color, name in zip(colors, own[0].seconds, strict=False):
            means, below, above = [], [], []
            for cell in own:
                mean, low, high = interval([1e6 * value for value in cell.seconds[name]], level=LEVEL)
                means.append(mean)
                below.append(0.0 if low is None else mean - low)
                above.append(0.0 if high is None else high - mean)
            sizes = [cell.size for cell in own]
            axes.errorbar(sizes, means, [below, above], fmt="-o", color=color, label=name, capsize=3, markersize=4)
        axes.set(xscale="log", yscale="log", xlabel="bytes of a replica's tensor")
        axes.set_title(f"{group[0]}, {group[1]}", fontsize=9)
        axes.legend(fontsize=8)
    plots[0].set_ylabel("µs of one all-reduce")
