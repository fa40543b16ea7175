"""Study ``model-parallel``: compare model with data parallelism on wide layers, and find their crossover."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from asv_bench.studies.comparing import LEVEL, Ratio, joint, ratio, shown, written
from asv_bench.studies.published import LARGER, WIDE, published_table
from asv_bench.studies.report import Report
from asv_bench.studies.running import add_common, conduct, numbers, tell
from asv_bench.studies.wide_program import bytes_on_devices, train_wide
from pytest_ddl.bench.launching.ranks import BenchError, fresh_ranks
from pytest_ddl.bench.launching.records import BenchSpec, Launch
from pytest_ddl.bench.matrix import measure
from pytest_ddl.bench.metrics.costs import MEBIBYTE, peak_memory
from pytest_ddl.bench.metrics.estimates import interval
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.harness import process_harness
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.web.results import NONE, Table

NAME = "model-parallel"
WIDTHS, QUICK_WIDTHS = "128,512,1024,2048,4096", "128,1024"
REPEATS, QUICK_REPEATS = 5, 3
DEVICES, BATCH, CHECK_STEPS = 2, 32, 3
DATA, MODEL = "mirrored[replicas={}]", "model_parallel[mesh=model:{}]"


@dataclass(frozen=True)
class Cell:
    """Launches of both kinds of parallelism with one width of the layers; launch k of both followed each other."""

    width: int
    data: tuple[Launch, ...]
    model: tuple[Launch, ...]
    data_bytes: int
    """Largest number of bytes of variables on a device under data parallelism."""
    model_bytes: int
    level: float = LEVEL
    """Level of the interval of the ratio, which several widths share."""

    @property
    def ratio(self) -> Ratio:
        """Step time of model parallelism divided by that of data parallelism."""
        return ratio(_seconds(self.model), _seconds(self.data), level=self.level)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    quick = f"widths {QUICK_WIDTHS}, {QUICK_REPEATS} launches"
    add_common(parser, NAME, repeats=REPEATS, quick=quick, timeout=300.0)
    add = parser.add_argument
    add("--widths", metavar="N,...", help=f"Units of both wide layers (default: {WIDTHS}).")
    add("--devices", type=int, default=DEVICES, metavar="N", help="Devices, 2 to 8 (default: %(default)s).")
    add("--batch", type=int, default=BATCH, metavar="N", help="Examples of a step (default: %(default)s).")
    text = "auto (default): GPUs if there are any."
    add("--device", default="auto", choices=["auto", "cpu", "gpu"], help=text)


def main(options: argparse.Namespace) -> int:
    """Run the study and return the exit status."""
    return conduct(options, run)


def run(options: argparse.Namespace) -> Report:
    """Check the training function, measure both kinds in turn, and report.

    :raises UsageError: if an option cannot be used.
    :raises BenchError: if a kind trains wrongly, or a launch fails.
    """
    devices, batch = options.devices, options.batch
    if not 2 <= devices <= 8:
        raise UsageError(f"--devices={devices} must be 2 to 8")
    if batch < 1 or batch % devices:
        raise UsageError(f"--batch={batch} cannot be split evenly over {devices} devices; give a multiple of {devices}")
    widths = numbers("widths", options.widths or (QUICK_WIDTHS if options.quick else WIDTHS), least=1, most=32768)
    uneven = [width for width in widths if width % devices]
    if uneven:
        raise UsageError(f"--widths: {uneven[0]} cannot be split over {devices} devices; give a multiple of {devices}")
    harness = process_harness()
    device = harness.device(DdlMark(device=options.device))
    variants = {"data": DATA.format(devices), "model": MODEL.format(devices)}
    for variant in variants.values():
        if reason := harness.unavailable(harness.registry.parse_variant(variant), DdlMark(device=device)):
            raise UsageError(f"--devices={devices} --device={options.device}: {variant} cannot run here: {reason}")
    repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    checks = check(widths[0], list(variants.values()), batch, device, options.timeout)
    bench = BenchSpec(
        global_batch_size=batch, warm_up=5, steps_per_block=10, blocks=5, seconds=0.5,
        timeout=options.timeout, device=device,
    )  # fmt: skip
    cells = []
    for width in widths:
        matrix = measure(partial(train_wide, width=width), list(variants.values()), bench, launches=repeats)
        sizes = {kind: device_bytes(variant, width, device, options.timeout) for kind, variant in variants.items()}
        data, model = (tuple(matrix.of(variant)) for variant in variants.values())
        cell = Cell(width, data, model, sizes["data"], sizes["model"], joint(len(widths)))
        cells.append(cell)
        tell(f"width {width}: step time of model / data parallelism {cell.ratio}")
    return report(cells, checks, device)


def check(width: int, variants: Sequence[str], batch: int, device: str, timeout: float) -> str:
    """Compare the training function under both variants with one device, and return the result in one line.

    :raises BenchError: if a comparison did not pass. The speed of wrong training has no meaning.
    """
    from pytest_ddl.equivalence.runs.api import check_training

    tell(f"checking the training function under {' and '.join(variants)} against one device …")
    lines = []
    for variant in variants:
        report = check_training(
            partial(train_wide, width=width),
            variant,
            global_batch_size=batch,
            steps=CHECK_STEPS,
            device=device,
            timeout=timeout,
        )
        if not report.passed:
            raise BenchError(f"the training under {variant} is wrong, or could not be compared:\n{report}")
        lines.append(str(report).splitlines()[0])
    return "; ".join(lines)


def device_bytes(variant: str, width: int, device: str, timeout: float) -> int:
    """Return the largest number of bytes of variables (network and optimizer) on a device, as counted in a rank.

    :raises BenchError: if the rank fails.
    """
    harness = process_harness()
    spec = harness.registry.parse_variant(variant)
    with fresh_ranks(harness, spec, device) as ranks:
        doing = f"while variables were counted under {variant}"
        deadline = time.monotonic() + timeout
        found: list[Mapping[str, int]] = ranks.call(bytes_on_devices, width, deadline=deadline, doing=doing)
    return max(size for rank in found for size in rank.values())


def _seconds(launches: Sequence[Launch]) -> list[float]:
    return [launch.median_step_seconds for launch in launches]


def crossover(cells: Sequence[Cell]) -> str:
    """Say between which widths model parallelism becomes faster, if intervals on both sides show it."""
    ordered = sorted(cells, key=lambda cell: cell.width)
    slower = [cell.width for cell in ordered if cell.ratio.verdict == "more"]
    faster = [cell.width for cell in ordered if cell.ratio.verdict == "less"]
    if not slower and not faster:
        return "no width separates the step times of model and data parallelism"
    if not faster:
        return f"data parallelism is faster at {_list(slower)} units; no width was found where model parallelism is"
    if not slower:
        return f"model parallelism is faster at {_list(faster)} units; no width was found where data parallelism is"
    if max(slower) < min(faster):
        return f"model parallelism becomes faster between {max(slower)} and {min(faster)} units"
    both = f"data parallelism is faster at {_list(slower)} units, model parallelism at {_list(faster)}"
    return f"no single crossover: {both}"


def _list(widths: Sequence[int]) -> str:
    return ", ".join(map(str, widths))


def report(cells: Sequence[Cell], checks: str, device: str) -> Report:
    """Make tables and a picture of all widths."""
    headline = crossover(cells)
    headline = headline[0].upper() + headline[1:]
    runs = len(cells[0].data)
    notes = []
    if device == "cpu":
        cores = len(os.sched_getaffinity(0))
        notes.append(f"All devices are parts of one CPU and share {cores} cores and one memory: no link was measured.")
    if runs == 1:
        notes.append("One launch: there are no intervals, so no kind is called faster.")
    first = cells[0].data[0]
    tables = (
        _times(cells),
        _bytes(cells),
        published_table(
            (LARGER, WIDE),
            headline,
            [
                (
                    "split",
                    "parts of a network on machines of their own",
                    "columns and rows of two dense layers (DTensor)",
                ),
                ("hardware", "thousands of CPU cores; GPUs", f"devices of kind {device} on one machine"),
                ("layers", "locally connected and convolutional too", "dense layers only"),
            ],
        ),
    )
    return Report(
        study=NAME,
        title="Model parallelism against data parallelism on wide layers",
        headline=headline,
        tables=tables,
        figures={NAME: partial(draw, cells)},
        data={
            "device": device,
            "crossover": headline,
            "cells": [
                {
                    "width": cell.width,
                    "data_bytes_per_device": cell.data_bytes,
                    "model_bytes_per_device": cell.model_bytes,
                    "data": [launch.as_json() for launch in cell.data],
                    "model": [launch.as_json() for launch in cell.model],
                }
                for cell in cells
            ],
        },
        notes=tuple(notes),
        settings={
            "network": "64 inputs, two layers of the given width, 10 classes; SGD with momentum",
            "batch": f"{first.global_batch_size} examples of scikit-learn's digits in a step",
            "variants": f"{first.strategy} and {cells[0].model[0].strategy}",
            "check": checks,
            "step time": "median of the blocks of a launch; geometric mean over launches",
            "bytes": "reductions and gathers in the graphs of the devices in one step, for one device",
            "memory": "variables of network and optimizer on one device, counted; and the process's peak",
            "intervals": f"t intervals at {LEVEL:.0%} over {runs} launch(es) of each, which took turns; "
            "the ratios have it as a joint level",
        },
    )


def _times(cells: Sequence[Cell]) -> Table:
    rows: list[tuple[str, ...]] = [("width", "data parallel, ms", "model parallel, ms", "model / data", "faster")]
    names = {"less": "model parallel", "more": "data parallel"}
    for cell in cells:
        times = (shown(_seconds(launches), scale=1e3) for launches in (cell.data, cell.model))
        rows.append((str(cell.width), *times, str(cell.ratio), names.get(cell.ratio.verdict, cell.ratio.verdict)))
    return Table("Time of a step", tuple(rows))


def _bytes(cells: Sequence[Cell]) -> Table:
    head = ("exchanged by data parallel", "by model parallel", "variables on a device, data", "model")
    rows: list[tuple[str, ...]] = [("width", *head, "process peak, data", "model")]
    for cell in cells:
        exchanged = (_mebibytes(_exchanged(launches[0])) for launches in (cell.data, cell.model))
        peaks = (max(map(peak_memory, launches)) for launches in (cell.data, cell.model))
        held = (_mebibytes(size) for size in (cell.data_bytes, cell.model_bytes))
        rows.append((str(cell.width), *exchanged, *held, *(f"{written(peak)} MiB" for peak in peaks)))
    return Table("Bytes: exchanged in a step, and in memory", tuple(rows))


def _exchanged(launch: Launch) -> int | None:
    """Return the bytes that one device gives to collectives in a step; ``None`` if they could not be counted."""
    counters = launch.counters
    return None if counters.uncounted or counters.eager else counters.reduced_bytes + counters.gathered_bytes


def _mebibytes(size: int | None) -> str:
    return NONE if size is None else f"{written(size / MEBIBYTE)} MiB"


def draw(cells: Sequence[Cell], figure: Any) -> None:
    """Draw the step time (left) and the bytes (right) over the width."""
    from pytest_ddl.web.drawing import ALL, MANY, SINGLE

    left, right = figure.subplots(1, 2)
    widths = [cell.width for cell in cells]
    for name, color in (("data", SINGLE), ("model", MANY)):
        found = [interval([1e3 * one for one in _seconds(getattr(cell, name))], level=LEVEL) for cell in cells]
        below = [0.0 if low is None else mean - low for mean, low, _high in found]
        above = [0.0 if high is None else high - mean for mean, _low, high in found]
        means = [mean for mean, _low, _high in found]
        label = f"{name} parallel"
        left.errorbar(widths, means, [below, above], fmt="-o", color=color, label=label, capsize=3, markersize=4)
        sizes = [getattr(cell, f"{name}_bytes") / MEBIBYTE for cell in cells]
        right.plot(widths, sizes, "-o", color=color, label=f"variables on a device, {name}", markersize=4)
        moved = [_exchanged(getattr(cell, name)[0]) for cell in cells]
        shares = [math.nan if size is None else size / MEBIBYTE for size in moved]
        hue = color if name == "data" else ALL
        right.plot(widths, shares, "--s", color=hue, label=f"exchanged, {name}", markersize=4)
    left.set(title="Time of a step in ms", xlabel="units of a layer", xscale="log", yscale="log")
    right.set(title="MiB", xlabel="units of a layer", xscale="log", yscale="log")
    for axes in (left, right):
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.minorticks_off()
        axes.legend(fontsize=8)
