"""Variables of metrics: their values when read, and the sources of wrong values."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Float, difference, farthest
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import of_kind
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord


@dataclass(frozen=True)
class Pair:
    """One variable of a metric in both runs."""

    ours: VariableRecord
    theirs: VariableRecord


@dataclass(frozen=True)
class Mean:
    """State of a mean: the sum of the values and their number."""

    total: Pair
    count: Pair


def pairs(reference: TrainingRecord, distributed: TrainingRecord) -> list[Pair]:
    """Pair the metric variables that both runs watch, by their order."""
    ours, theirs = (of_kind(record, VariableKind.METRIC) for record in (reference, distributed))
    if len(ours) != len(theirs):
        return []
    return [Pair(a, b) for a, b in zip(ours, theirs, strict=True) if a.shape == b.shape]


def components(record: TrainingRecord, variable: VariableRecord, step: int) -> list[Float]:
    """Return the value on every replica, or one value per rank if the variable is not distributed."""
    return [np.asarray(value, np.float64) for _rank, _replica, value in record.components(variable.index, step)]


def combined(record: TrainingRecord, variable: VariableRecord, step: int) -> Float | None:
    """Return the value of a variable if it is read outside of the replicas."""
    parts = components(record, variable, step)
    if not parts:
        return None
    if variable.distributed and "on_read" in variable.synchronization and variable.aggregation in ("sum", "mean"):
        total = np.sum(parts, axis=0)
        return np.asarray(total if variable.aggregation == "sum" else total / len(parts))
    return parts[0]


def means(reference: TrainingRecord, distributed: TrainingRecord) -> list[Mean]:
    """Return neighboring ``total`` and ``count`` variables, as the means of Keras keep them."""
    known = pairs(reference, distributed)
    return [
        Mean(total, count)
        for total, count in pairwise(known)
        if total.ours.name.endswith("total") and count.ours.name.endswith("count")
    ]


def counted_by_replica(comparison: Comparison, step: int) -> set[int]:
    """Return the indices of totals and counts that are N times those of one device, with the same quotient.

    If each replica adds its own mean with a count of 1, the mean of N of them equals one mean of the whole.
    """
    reference, distributed = comparison.records
    counted: set[int] = set()
    for item in means(reference, distributed):
        values = [
            (reference.value(pair.ours.index, step), combined(distributed, pair.theirs, step))
            for pair in (item.total, item.count)
        ]
        if any(ours is None or theirs is None for ours, theirs in values):
            continue
        (total, totals), (count, counts) = ((np.asarray(a, np.float64), np.asarray(b)) for a, b in values)
        number = distributed.num_replicas
        slack = number * comparison.tolerance.variable(item.total.ours.index, step).value
        if number > 1 and np.array_equal(counts, number * count) and difference(totals, number * total).error <= slack:
            counted |= {item.total.ours.index, item.count.ours.index}
    return counted


def jumps(tolerance: Tolerance, index: int, step: int, error: float) -> bool:
    """Return whether only rounding can move a variable of a metric as far after a step; see :attr:`Tolerance.far`."""
    far = farthest([run.value(index, step) for run in tolerance.far], tolerance.reference.value(index, step))
    bound = tolerance.variable(index, step).value
    return bound < error <= far + bound


def state_agrees(comparison: Comparison, step: int) -> bool:
    """Return whether all metric state equals one device after a step; False if none was watched."""
    reference, distributed = comparison.records
    states = pairs(reference, distributed)
    alike = counted_by_replica(comparison, step)
    for pair in states:
        desired, actual = (
            reference.value(pair.ours.index, step),
            combined(distributed, pair.theirs, step),
        )
        if desired is None or actual is None:
            return False
        if pair.ours.index in alike:
            continue
        if difference(actual, desired).error > comparison.tolerance.variable(pair.ours.index, step).value:
            return False
    return bool(states)


def growth(reference: TrainingRecord, index: int, step: int, replicas: int) -> Float | None:
    """Return the value of a variable if each update first sums the value that the replicas already share.

    ``assign(value + x)`` on N replicas, combined by a sum, makes N x value plus the x of all replicas.
    """
    values = [reference.value(index, at) for at in range(step + 1)]
    resets = _resets(reference, index, step)
    total = before = np.zeros(())
    for at, value in enumerate(values):
        if value is None:
            return None
        now = np.asarray(value, np.float64)
        total = now if at == 0 or at in resets else replicas * total + now - before
        before = now
    return total


def _resets(record: TrainingRecord, index: int, step: int) -> set[int]:
    """Return the steps before which the metric of a variable was reset, because an epoch began anew.

    A sum of signed values may fall at any step. The sums of values that have no sign, such as the number of examples,
    fall only then. The number may also stand still while another sum changes, if epochs have one step.
    """
    metric = {one.index: one.name.rpartition("/") for one in of_kind(record, VariableKind.METRIC)}
    own = [one for one, (path, _, _name) in metric.items() if path == metric[index][0]]
    read = {one: [record.value(one, at) for at in range(step + 1)] for one in own}
    known = {one: [value for value in values if value is not None] for one, values in read.items()}
    known = {one: values for one, values in known.items() if len(values) == step + 1}
    unsigned = {one: values for one, values in known.items() if all(np.all(value >= 0) for value in values)}
    numbers = [values for one, values in unsigned.items() if metric[one][2] == "count"]

    def is_reset(at: int) -> bool:
        fell = any(np.any(values[at] < values[at - 1]) for values in (unsigned or known).values())
        still = any(np.array_equal(values[at], values[at - 1]) for values in numbers)
        return fell or (still and any(not np.array_equal(values[at], values[at - 1]) for values in known.values()))

    return {at for at in range(1, step + 1) if is_reset(at)}


def resummed(reference: TrainingRecord, distributed: TrainingRecord, pair: Pair, step: int, slack: float) -> str | None:
    """Return evidence that every update sums the state over the replicas again; ``None`` if there is none."""
    number = distributed.num_replicas
    if number < 2:
        return None
    predicted, actual = growth(reference, pair.ours.index, step, number), combined(distributed, pair.theirs, step)
    if predicted is None or actual is None:
        return None
    if difference(actual, predicted).error > slack * number ** min(step, 60):
        return None
    return f"every update multiplies the previous value by {number}: the replicas' shared state is summed again"
