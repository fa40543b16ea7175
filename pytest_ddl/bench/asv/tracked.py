"""Metrics that an asv suite tracks for a measured matrix, each with its unit, its direction and its samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pytest_ddl.bench.launching.records import BenchSpec, Launch
from pytest_ddl.bench.matrix import Matrix
from pytest_ddl.bench.metrics import METRICS, Metric, baseline_of
from pytest_ddl.bench.metrics.counts import COUNTS, Count

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
    suites = ("always", spec.scaling, *(["energy"] if spec.energy else []))
    metrics = (_of_metric(metric) for metric in METRICS.values() if metric.tracked in suites)
    return (*metrics, *(_of_count(count) for count in COUNTS.values()))


def _of_metric(metric: Metric) -> Tracked:
    meaning = f"{metric.summary}\n{metric.name} = {metric.formula}\n{metric.source}"
    by_blocks = metric.by_blocks or metric.scope == "pair"

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

    return Tracked(metric.name, metric.unit, metric.higher_is_better, metric.gated, meaning, False, read)


def _of_count(count: Count) -> Tracked:
    def read(matrix: Matrix, variant: str) -> int:
        return max(count.read(launch.counters) for launch in matrix.of(variant))

    return Tracked(count.name, count.unit, False, True, count.meaning, count.exact, read)


def _baseline(matrix: Matrix) -> list[Launch]:
    from pytest_ddl.bench.launching.ranks import BenchError

    if "one_device" in matrix.failed:
        raise BenchError(f"there is no baseline, because one_device failed: {matrix.failed['one_device']}")
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
