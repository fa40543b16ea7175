"""Make the evidence of a forecast from measured launches of a training function."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddl.bench.forecasting.evidence import UNKNOWN_LINK, ForecastEvidence, Link, Observation, Size
from pytest_ddl.bench.launching.records import Launch
from pytest_ddl.bench.matrix import Matrix
from pytest_ddl.bench.metrics.of_pair import UNSCALED

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
    if chosen in UNSCALED:
        raise NoEvidenceError(f"{chosen} is not forecast: {UNSCALED[chosen]}")
    used = [one for one in launches if _name(one) in (chosen, "one_device")]
    if not any(_name(one) == chosen for one in used):
        have = ", ".join(sorted({_name(one) for one in launches}))
        raise NoEvidenceError(f"no launch of {chosen} was measured; there are {have or 'none'}")
    used, sharing = _with_own_cores(used)
    groups: dict[tuple[str, int | None], list[Launch]] = {}
    for one in used:
        if problem := one.batch_problem:
            raise NoEvidenceError(f"{one.strategy}: {problem}")
        if one.replicas < 1 or not one.global_batch_size or one.counters.reduced_bytes < 0:
            raise NoEvidenceError(f"{one.strategy}: replicas, batch and bytes must be positive")
        groups.setdefault((one.strategy, one.global_batch_size), []).append(one)
    most = max(used, key=lambda one: one.replicas)
    on_each, rest = divmod(most.replicas, given.nodes or 1)
    if rest or on_each < 1:
        raise NoEvidenceError(f"nodes={given.nodes} does not divide the {most.replicas} replicas of {most.strategy}")
    if given.per_node is not None and given.per_node < on_each:
        raise NoEvidenceError(
            f"per_node={given.per_node}, but {most.strategy} had {on_each} replicas on a node: give the nodes on which "
            "it ran"
        )
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
    found = []
    for one in launches:
        blocks = one.step_seconds
        if len(blocks) >= FEWEST_BLOCKS:
            spread = statistics.stdev(blocks) / statistics.fmean(blocks)
            found.append(spread * math.sqrt(one.steps_per_block))
    return statistics.median(found) if found else None


def _with_own_cores(launches: Sequence[Launch]) -> tuple[list[Launch], str]:
    """Return the launches whose replicas had their own cores; all of them with the reason if they are not enough."""
    own = [one for one in launches if one.device != "cpu" or one.pinned]
    if any(one.replicas > 1 for one in own):
        return own, ""
    loose = [one.strategy for one in launches if one.replicas > 1]
    if not loose:
        return list(launches), ""
    return list(launches), f"replicas of {loose[0]} were not pinned and shared cores when they were measured"
