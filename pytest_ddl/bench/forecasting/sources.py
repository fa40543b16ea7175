"""Get what a forecast starts from: launches that are measured or in a file, or an earlier forecast."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddl.bench.forecasting.evidence import UNKNOWN_LINK, ForecastEvidence, Link, Observation, Size
from pytest_ddl.bench.forecasting.predicting import ForecastPoint
from pytest_ddl.bench.launching.records import Launch
from pytest_ddl.bench.matrix import Matrix, matrix_of, measure, read_object
from pytest_ddl.bench.metrics.of_pair import UNSCALED
from pytest_ddl.bench.outcome import UsageError

FEWEST_BLOCKS = 8
"""Blocks on one replica from which the spread of its steps is computed."""


class NoEvidenceError(ValueError):
    """Raised if launches cannot be the start of a forecast. The message says what to measure."""


@dataclass(frozen=True)
class Stated:
    """Facts about the machines from the user, because launches do not show them."""

    per_node: int | None = None
    """Replicas of one node; ``None``: as many as the largest launch has."""
    nodes: int | None = None
    """Nodes of the largest launch; ``None``: one. Smaller launches have the same number of replicas on each node."""
    within: Link = UNKNOWN_LINK
    between: Link = UNKNOWN_LINK


def evidence_of(
    matrices: Sequence[Matrix], strategy: str | None = None, stated: Stated | None = None, name: str = ""
) -> ForecastEvidence:
    """Return the evidence of the launches of one strategy, and of those on one device.

    :param matrices: measurements of the same program on the same machine, for example with several batch sizes.
    :param strategy: name of a synchronous strategy (default: that of the launch with the most replicas).
    :raises NoEvidenceError: if there is no launch of it, or its examples per step are not known.
    """
    given = stated or Stated()
    launches = [one for matrix in matrices for one in matrix.launches]
    chosen = strategy or _largest(launches)
    used, sharing = _with_own_cores(_launches_of(chosen, launches))
    _refuse_other_batches(used)
    groups: dict[tuple[str, int | None], list[Launch]] = {}
    for one in used:
        if one.replicas < 1 or not one.global_batch_size or one.counters.reduced_bytes < 0:
            raise NoEvidenceError(f"{one.strategy}: replicas, batch and bytes must be positive")
        groups.setdefault((one.strategy, one.global_batch_size), []).append(one)
    most = max(used, key=lambda one: one.replicas)
    on_each = _on_each_node(most, given)
    observations = tuple(_observed(group, math.ceil(group[0].replicas / on_each)) for group in groups.values())
    return ForecastEvidence(
        f"{name or 'the training function'} under {chosen}",
        observations,
        per_node=given.per_node or on_each,
        gradient_bytes=float(most.counters.reduced_bytes) if most.counters.reduced_bytes else None,
        collectives=sum(most.counters.collectives.values()) or None,
        within=given.within,
        between=given.between,
        jitter=_jitter([one for one in used if one.replicas == 1]),
        strategy=chosen,
        shares_cores=sharing,
    )


def _largest(launches: Sequence[Launch]) -> str:
    """Return the synchronous strategy of the launch with the most replicas.

    :raises NoEvidenceError: if none has replicas that step together.
    """
    fit = [one for one in launches if _name(one) not in UNSCALED]
    if not fit:
        raise NoEvidenceError("no launch has replicas that step together: measure one_device and multi_worker_mirrored")
    return _name(max(fit, key=lambda one: one.replicas))


def _launches_of(strategy: str, launches: Sequence[Launch]) -> list[Launch]:
    """Return the launches of a strategy, and those on one device.

    :raises NoEvidenceError: if the strategy cannot be forecast, or has no launch.
    """
    if strategy in UNSCALED:
        raise NoEvidenceError(f"{strategy} is not forecast: {UNSCALED[strategy]}")
    names = {_name(launch) for launch in launches}
    if strategy not in names:
        raise NoEvidenceError(f"no launch of {strategy} was measured; there are {', '.join(sorted(names)) or 'none'}")
    return [launch for launch in launches if _name(launch) in (strategy, "one_device")]


def _on_each_node(largest: Launch, stated: Stated) -> int:
    """Return how many replicas of the largest launch ran on each node.

    :raises NoEvidenceError: if this contradicts the number that a node has room for.
    """
    on_each, rest = divmod(largest.replicas, stated.nodes or 1)
    if rest or on_each < 1:
        raise NoEvidenceError(
            f"nodes={stated.nodes} does not divide the {largest.replicas} replicas of {largest.strategy}"
        )
    if stated.per_node is not None and stated.per_node < on_each:
        raise NoEvidenceError(
            f"per_node={stated.per_node}, but {largest.strategy} had {on_each} replicas on a node: give the nodes on "
            "which it ran"
        )
    return on_each


def _name(launch: Launch) -> str:
    return launch.strategy.partition("[")[0]


def _observed(launches: Sequence[Launch], nodes: int) -> Observation:
    first = launches[0]
    assert first.global_batch_size is not None
    times = [one.median_step_seconds for one in launches]
    if not all(math.isfinite(time) and time > 0 for one in launches for time in one.step_seconds):
        raise NoEvidenceError(f"{first.strategy}: a block of steps has no positive time")
    if len(times) > 1:
        spread = statistics.stdev(math.log(time) for time in times) / math.sqrt(len(times))
    else:
        blocks = first.step_seconds
        spread = statistics.stdev(blocks) / statistics.fmean(blocks) if len(blocks) > 1 else 0.0
    size = Size(first.replicas, nodes, first.global_batch_size / first.replicas)
    return Observation(size, math.exp(statistics.fmean(math.log(time) for time in times)), spread)


def _jitter(launches: Sequence[Launch]) -> float | None:
    """Return the standard deviation of one step as a share of its mean, from the spread of blocks of steps.

    The mean of m independent steps has a spread that is smaller by the root of m.
    """
    spreads = []
    for one in launches:
        blocks = one.step_seconds
        if len(blocks) >= FEWEST_BLOCKS:
            spread = statistics.stdev(blocks) / statistics.fmean(blocks)
            spreads.append(spread * math.sqrt(one.steps_per_block))
    return statistics.median(spreads) if spreads else None


def _refuse_other_batches(launches: Sequence[Launch]) -> None:
    for one in launches:
        if problem := one.batch_problem:
            raise NoEvidenceError(f"{one.strategy}: {problem}")


def _with_own_cores(launches: Sequence[Launch]) -> tuple[list[Launch], str]:
    """Return the launches whose replicas had their own cores; all of them with the reason if they are not enough."""
    own = [one for one in launches if one.device != "cpu" or one.pinned]
    if any(one.replicas > 1 for one in own):
        return own, ""
    loose = [one.strategy for one in launches if one.replicas > 1]
    if not loose:
        return list(launches), ""
    return list(launches), f"replicas of {loose[0]} were not pinned and shared cores when they were measured"


SMALLER = (2, 4)
"""Divisors of the batch for further launches on one replica. They separate the fixed cost of a step."""


@dataclass(frozen=True)
class Earlier:
    """Forecast that was made and saved before."""

    program: str
    strategy: str
    points: tuple[ForecastPoint, ...]


def measured(paths: Sequence[Path], strategy: str | None, stated: Stated) -> ForecastEvidence:
    """Return the evidence of files of launches, written by ``Matrix.save`` or by ``pytest-ddl evaluate``.

    :raises UsageError: if one cannot be read, or the launches are not enough.
    """
    matrices = [matrix_of(path, read_object(path)) for path in paths]
    try:
        return evidence_of(matrices, strategy, stated, name=f"{', '.join(map(str, paths))}")
    except ValueError as error:
        raise UsageError(f"{', '.join(map(str, paths))}: {error}") from None


def earlier(path: Path) -> Earlier | None:
    """Return the forecast that a file holds; ``None`` if it is another kind of file.

    :raises UsageError: if it cannot be read.
    """
    data = read_object(path)
    if not {"program", "points", "evidence"} <= data.keys():
        return None
    try:
        points = tuple(ForecastPoint.from_json(point) for point in data["points"])
        return Earlier(data["program"], data["evidence"]["strategy"], points)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is no forecast of this version ({type(error).__name__}: {error})") from None


def measured_program(
    train: Callable[[Any], Any],
    strategy: str,
    batch: int,
    *,
    launches: int,
    device: str,
    timeout: float,
    tell: Callable[[str], None],
) -> list[Matrix]:
    """Measure a training function on one replica with three batch sizes, and under a strategy with two replicas.

    :param strategy: synchronous strategy, or a variant of it with more replicas.
    :param batch: examples of one replica.
    :param device: ``auto``, ``cpu`` or ``gpu``. On CPUs, each replica gets its own cores.
    :param tell: function that gets a line before each part.
    :raises BenchError: if a launch fails, or the variant cannot run here.
    :raises NoEvidenceError: if the first launches took other batches, before the smaller ones are measured.
    :raises ValueError: if there are fewer cores than replicas.
    """
    common: dict[str, Any] = {"launches": launches, "device": device, "timeout": timeout, "pin": device != "gpu"}
    tell(f"measuring one device and {strategy}, {batch} examples on each replica …")
    matrices = [measure(train, ["one_device", strategy], batch_per_replica=batch, **common)]
    if strategy in matrices[0].skipped:
        raise ValueError(f"{strategy} cannot run here: {matrices[0].skipped[strategy]}")
    _refuse_other_batches(matrices[0].launches)
    for divisor in SMALLER:
        if batch % divisor == 0:
            tell(f"measuring one device, {batch // divisor} examples …")
            matrices.append(measure(train, ["one_device"], batch_per_replica=batch // divisor, **common))
    return matrices
