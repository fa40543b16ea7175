"""The variables of metrics: what reading them gives, and how wrong values come about."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pytest_ddl.checks.arrays import Float, difference
from pytest_ddl.checks.observe import of_kind
from pytest_ddl.checks.tolerance import Tolerance
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord


@dataclass(frozen=True)
class Pair:
    """One variable of a metric in both runs."""

    ours: VariableRecord
    theirs: VariableRecord


@dataclass(frozen=True)
class Mean:
    """The state of a mean: what it adds up, and how much of it."""

    total: Pair
    count: Pair


def pairs(reference: TrainingRecord, distributed: TrainingRecord) -> list[Pair]:
    """The metric variables that both runs watch, by their order."""
    ours, theirs = (of_kind(record, VariableKind.METRIC) for record in (reference, distributed))
    if len(ours) != len(theirs):
        return []
    return [Pair(a, b) for a, b in zip(ours, theirs, strict=True) if a.shape == b.shape]


def components(record: TrainingRecord, variable: VariableRecord, step: int) -> list[Float]:
    """What every replica holds; of a variable that is not distributed, one value per rank."""
    return [np.asarray(value, np.float64) for _rank, _replica, value in record.components(variable.index, step)]


def combined(record: TrainingRecord, variable: VariableRecord, step: int) -> Float | None:
    """What reading a variable outside of the replicas gives."""
    parts = components(record, variable, step)
    if not parts:
        return None
    if variable.distributed and "on_read" in variable.synchronization and variable.aggregation in ("sum", "mean"):
        total = np.sum(parts, axis=0)
        return np.asarray(total if variable.aggregation == "sum" else total / len(parts))
    return parts[0]


def means(reference: TrainingRecord, distributed: TrainingRecord) -> list[Mean]:
    """Neighbouring ``total`` and ``count``, as Keras' means keep them."""
    found = pairs(reference, distributed)
    return [
        Mean(total, count)
        for total, count in pairwise(found)
        if total.ours.name.endswith("total") and count.ours.name.endswith("count")
    ]


def counted_by_replica(
    reference: TrainingRecord, distributed: TrainingRecord, tolerance: Tolerance, step: int
) -> set[int]:
    """Indices of totals and counts that are N times those of one device and have its quotient.

    Where a replica adds its own mean, with a count of 1, N of them are as good as one mean of the whole.
    """
    found: set[int] = set()
    for item in means(reference, distributed):
        values = [
            (reference.value(pair.ours.index, step), combined(distributed, pair.theirs, step))
            for pair in (item.total, item.count)
        ]
        if any(ours is None or theirs is None for ours, theirs in values):
            continue
        (total, totals), (count, counts) = ((np.asarray(a, np.float64), np.asarray(b)) for a, b in values)
        number = distributed.num_replicas
        slack = number * tolerance.variable(item.total.ours.index, step).value
        if number > 1 and np.array_equal(counts, number * count) and difference(totals, number * total).error <= slack:
            found |= {item.total.ours.index, item.count.ours.index}
    return found


def state_agrees(reference: TrainingRecord, distributed: TrainingRecord, tolerance: Tolerance, step: int) -> bool:
    """Say whether all metric state is that of one device after a step; False where none was watched."""
    found = pairs(reference, distributed)
    alike = counted_by_replica(reference, distributed, tolerance, step)
    for pair in found:
        desired, actual = reference.value(pair.ours.index, step), combined(distributed, pair.theirs, step)
        if desired is None or actual is None:
            return False
        if pair.ours.index in alike:
            continue
        if difference(actual, desired).error > tolerance.variable(pair.ours.index, step).value:
            return False
    return bool(found)


def growth(reference: TrainingRecord, index: int, step: int, replicas: int) -> Float | None:
    """What a variable comes to if each update first adds up what the replicas already share.

    ``assign(value + x)`` on N replicas, combined by a sum, makes N x value + the x of all.
    """
    grown: Float | None = None
    for at in range(step + 1):
        value = reference.value(index, at)
        if value is None:
            return None
        now = np.asarray(value, np.float64)
        if grown is None:
            grown, before = now, now
            continue
        # A value that fell was reset: the epoch begins anew.
        added = now - before if np.all(now >= before) else now
        grown = (replicas * grown if np.all(now >= before) else 0.0) + added
        before = now
    return grown


def resummed(reference: TrainingRecord, distributed: TrainingRecord, pair: Pair, step: int, slack: float) -> str | None:
    """Evidence that the state is summed anew over the replicas in every update."""
    number = distributed.num_replicas
    if number < 2:
        return None
    predicted, actual = growth(reference, pair.ours.index, step, number), combined(distributed, pair.theirs, step)
    if predicted is None or actual is None:
        return None
    if difference(actual, predicted).error > slack * number ** min(step, 60):
        return None
    return f"every update multiplies what was there by {number}: the replicas' shared state is summed again each time"
