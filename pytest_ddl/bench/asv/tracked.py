"""Metrics that an asv suite tracks for a measured matrix, each with its unit, its direction and its samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pytest_ddl.bench.counters.retraces import SETTLED
from pytest_ddl.bench.matrix import Matrix
from pytest_ddl.bench.metrics import METRICS, NoNumberError, baseline_of
from pytest_ddl.bench.records import Counters, Launch
from pytest_ddl.bench.spec import BenchSpec

SAMPLES = 10
"""Samples of one launch: in a stored result, ``samples[i * 10 : (i + 1) * 10]`` are those of launch ``i``."""


@dataclass(frozen=True)
class Tracked:
    """One ``track_`` method: the metric that it reads for one variant of a matrix."""

    name: str
    unit: str
    """Unit as asv shows it; asv scales ``seconds`` and ``bytes`` for display."""
    higher_is_better: bool
    gated: bool
    """True if the metric is better when lower and on a ratio scale; asv 0.6.6 has no notion of direction."""
    meaning: str
    """Text that asv shows as the code of the benchmark: the formula and its source."""
    exact: bool
    """True if the value is the same in every launch, so that any change is real."""
    read: Callable[[Matrix, str], Any]
    """Function that returns samples in asv's format, launch by launch, or one number that is the same in every launch.

    asv_runner documents ``{"samples": [...], "number": 1}`` only for ``time_`` benchmarks, but ``asv/runner.py``
    (0.6.6) reads it from every kind.

    :raises NoNumberError: if the variant does not have the metric.
    """


def tracked(spec: BenchSpec) -> tuple[Tracked, ...]:
    """Return the metrics to track for a training function that is measured with these settings."""
    names = [*_BY_BLOCKS, *_BY_LAUNCH]
    if spec.scaling != "none":
        names += [f"{spec.scaling}_scaling_overhead", f"{spec.scaling}_scaling_efficiency"]
    if spec.scaling == "weak":
        names += ["communication_time", "communication_share"]
    if spec.energy:
        names += ["joules_per_example", "examples_per_joule"]
    return (*(_of_metric(name) for name in names), *_COUNTS)


_BY_BLOCKS = ("step_time", "throughput")
"""Metrics with several samples per launch, one for each piece of its blocks; other launch metrics have one number."""
_BY_LAUNCH = ("time_to_first_step", "peak_memory", "peak_device_memory")


def _of_metric(name: str) -> Tracked:
    metric = METRICS[name]
    assert metric.of is not None
    meaning = f"{metric.summary}\n{metric.name} = {metric.formula}\n{metric.source}"
    by_blocks = name in _BY_BLOCKS or metric.scope == "pair"

    def read(matrix: Matrix, variant: str) -> dict[str, Any]:
        assert metric.of is not None
        given: list[tuple[Launch, ...]] = [()] * len(matrix.of(variant))
        if metric.scope == "pair":
            # Pair by launch: variants take turns, so both launches of a pair ran under the same conditions.
            given = [(one,) for one in _baseline(matrix)]
        samples = [
            metric.of(*one, piece)
            for one, launch in zip(given, matrix.of(variant), strict=True)
            for piece in (pieces(launch) if by_blocks else [launch])
        ]
        return {"samples": samples, "number": 1}

    return Tracked(name, metric.unit, metric.higher_is_better, metric.gated, meaning, False, read)


def _baseline(matrix: Matrix) -> list[Launch]:
    from pytest_ddl.bench.launching.answers import BenchError

    if "one_device" in matrix.failed:
        raise BenchError(f"there is no baseline, as one_device failed: {matrix.failed['one_device']}")
    return matrix.of(baseline_of(matrix))


def pieces(launch: Launch, number: int = SAMPLES) -> list[Launch]:
    """Split a launch into consecutive pieces with nearly equal numbers of blocks; fewer if it has too few blocks."""
    blocks = len(launch.ranks[0].blocks)
    number = min(number, blocks)
    edges = [blocks * index // number for index in range(number + 1)]
    return [
        replace(launch, ranks=tuple(replace(rank, blocks=rank.blocks[start:end]) for rank in launch.ranks))
        for start, end in pairwise(edges)
    ]


def _count(
    name: str,
    unit: str,
    meaning: str,
    of: Callable[[Counters], int],
    *,
    exact: bool = True,
    of_eager: bool = False,
) -> Tracked:
    """Create a metric for a counter with a single number; if launches differ, it is the largest.

    :param exact: True if the number is the same in every launch.
    :param of_eager: True if the counter exists for steps that ran eagerly.
    """

    def read(matrix: Matrix, variant: str) -> int:
        counters = [launch.counters for launch in matrix.of(variant)]
        if any(one.eager for one in counters) and not of_eager:
            raise NoNumberError("steps ran eagerly: what they do is in no graph and was not counted")
        return max(of(one) for one in counters)

    return Tracked(name, unit, False, True, meaning, exact, read)


def _traces_on(counters: Counters) -> int:
    """Return 1 if a program may trace at any time: it has not settled, so its ``retraces`` are up to chance."""
    return int(counters.retraces > 0 or counters.traces > SETTLED)


def _copies(counters: Counters) -> int:
    if counters.copies is None:
        raise NoNumberError("copies between host and devices were not counted")
    return sum(counters.copies.values())


_COUNTS = (
    _count("collectives", "", "collectives per step, of one replica", lambda one: sum(one.collectives.values())),
    _count(
        "reduced_bytes", "bytes", "bytes that one replica puts into reductions per step", lambda one: one.reduced_bytes
    ),
    # More parameters may explain more reduced bytes.
    _count("parameter_bytes", "bytes", "bytes of trainable variables", lambda one: one.parameter_bytes),
    _count("unpacked", "", "reductions per step that carry a single tensor", lambda one: one.unpacked),
    _count("nodes", "", "operations in the graphs of a step", lambda one: one.nodes),
    _count("traces", "", "functions traced up to the first steady step", lambda one: one.traces),
    # With ragged batches, their number is up to chance, but not whether there are any.
    _count(
        "retraces", "", "traces within the steady steps; of a correct program 0", lambda one: one.retraces, exact=False
    ),
    _count(
        "traces_on",
        "",
        f"1 where functions were traced within the steady steps, or more than {SETTLED} before them; else 0",
        _traces_on,
    ),
    # This counter exists for every measured cell, while the others end if a step is no longer compiled.
    _count("eager", "", "1 where steps ran eagerly, else 0", lambda one: int(one.eager), of_eager=True),
    _count("copies", "", "tensors per step that are copied between host and devices", _copies),
    _count("misplaced", "", "variables that are not on a device of their replica", lambda one: len(one.misplaced)),
)
