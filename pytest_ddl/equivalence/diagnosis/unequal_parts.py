"""Explain a state that differs from one device only because the step does: recompute it from the parts of the replicas.

One device runs on the examples of each replica separately. The state under the strategy follows from an uneven batch if
it is what its declared aggregation makes of the values of these runs. It follows from the weights if its difference is
a fraction of theirs, as in a moving average of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.state_updates import KNOWN, NOT_AGGREGATED, declared, readings
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, is_numeric
from pytest_ddl.equivalence.evidence.comparison import Comparison, Place
from pytest_ddl.equivalence.evidence.observe import WEIGHTS, is_uneven, of_kind, sizes
from pytest_ddl.equivalence.findings import Diagnosis, Grounds
from pytest_ddl.records import VariableRecord

MEAN = "mean-of-replica-means"
_LARGEST_SHARE = 1.0 + 1e-6


def of_unequal_parts(comparison: Comparison, place: Place, theirs: VariableRecord) -> Diagnosis | None:
    """Explain a mean in which replicas with different numbers of examples count equally.

    Without runs on the parts, only a declared mean is suspected. ``None`` if the runs contradict it.
    """
    if not is_uneven(comparison.distributed, place.step):
        return None
    evidence = "replicas with different numbers of examples count equally in the mean"
    alone = _of_parts(comparison, place)
    if alone is None and declared(theirs) == "mean":
        return Diagnosis(MEAN, f"consistent with it: {evidence}", approximation=True, grounds=Grounds.PATTERN)
    if alone is None or not _fits(comparison, place, theirs, np.mean(alone, axis=0)):
        return None
    if not _is_over_examples(comparison, place, alone):
        return None
    return Diagnosis(MEAN, evidence, approximation=True, grounds=Grounds.RECOMPUTED, follows=True)


def of_weights(comparison: Comparison, place: Place, theirs: VariableRecord) -> Diagnosis:
    """Recompute a state of a step in which weights differ. It has no cause of its own if it follows from the step.

    The parts give the same value also if the state is combined wrongly. It follows from the weights only if these are
    combined in the same way.
    """
    kind, alone = declared(theirs), _of_parts(comparison, place)
    combined = _COMBINED.get(kind)
    if alone is not None and combined is not None:
        before = np.asarray(comparison.reference.value(place.variable.index, place.step - 1), np.float64)
        if _fits(comparison, place, theirs, combined(before, alone)):
            text = f"it is the {kind} of the values that the examples of each replica give"
            if _are_weights(comparison, place, combined):
                return Diagnosis(None, text, grounds=Grounds.RECOMPUTED, follows=True)
            return Diagnosis(NOT_AGGREGATED, text, grounds=Grounds.RECOMPUTED, fix=SPECIAL[KNOWN[kind]])
    weight = _averaged(comparison, place, theirs)
    if weight is not None:
        text = f"its difference is a fraction of the difference of {weight}, as that of a moving average"
        return Diagnosis(None, text, grounds=Grounds.RECOMPUTED, follows=True)
    return Diagnosis(None, "")


_Combine = Callable[[Float, Sequence[Float]], Float]
_COMBINED: dict[str, _Combine] = {
    "mean": lambda _before, alone: np.mean(alone, axis=0),
    "sum": lambda before, alone: before + np.sum([value - before for value in alone], axis=0),
    "first": lambda _before, alone: alone[0],
}
"""Declared aggregation -> the value that it makes of those that the examples of each replica give."""


def _is_over_examples(comparison: Comparison, place: Place, alone: Sequence[Float]) -> bool:
    """Return whether one device has the mean over the examples of what the parts give.

    A largest value or a variance is no such mean, and a mean of the replicas gives it for no batch.
    """
    desired = comparison.reference.value(place.variable.index, place.step)
    counts = sizes(comparison.distributed, place.step)
    if desired is None or len(counts) != len(alone):
        return False
    mean = np.average(alone, axis=0, weights=[counts[replica] for replica in sorted(counts)])
    return difference(np.asarray(desired, np.float64), mean).error <= 2 * place.bound.value


def _are_weights(comparison: Comparison, place: Place, combined: _Combine) -> bool:
    """Return whether a weight that differs in this step is combined from the parts in the same way."""
    reference, distributed = comparison.records
    for ours, weight in zip(of_kind(reference, *WEIGHTS), of_kind(distributed, *WEIGHTS), strict=False):
        moved = _difference(comparison, ours, weight, place.step)
        before = reference.value(ours.index, place.step - 1)
        bound = comparison.tolerance.variable(ours.index, place.step)
        if moved is None or before is None or not np.any(np.abs(moved) > bound.value):
            continue
        own = replace(place, variable=ours, bound=bound)
        alone = _of_parts(comparison, own)
        if alone is None or not _fits(comparison, own, weight, combined(np.asarray(before, np.float64), alone)):
            return False
        # A state that follows from means over the examples is such a mean too.
        return not _is_over_examples(comparison, own, alone)
    return False


def _of_parts(comparison: Comparison, place: Place) -> Sequence[Float] | None:
    """Return the value of a state for the examples of each replica; ``None`` if the runs do not give it."""
    runs = comparison.tolerance.parts_at(place.step)
    if len(runs) != comparison.distributed.num_replicas:
        return None
    found = [runs[replica].value(place.variable.index, place.step) for replica in sorted(runs)]
    desired = comparison.reference.value(place.variable.index, place.step)
    values = [np.asarray(v, np.float64) for v in found if v is not None and is_numeric(v) and all_finite(v)]
    if desired is None or len(values) != len(found) or any(value.shape != desired.shape for value in values):
        return None
    return values


def _fits(comparison: Comparison, place: Place, theirs: VariableRecord, expected: Float) -> bool:
    """Return whether the value that the program reads is the expected one. Each of both sides rounds once more."""
    read = readings(comparison.distributed, theirs, place.step)
    return bool(read) and all(difference(value, expected).error <= 2 * place.bound.value for _r, _c, value in read)


def _averaged(comparison: Comparison, place: Place, theirs: VariableRecord) -> str | None:
    """Name a weight of which the state is a moving average. A single number fits any factor and proves nothing."""
    reference, distributed = comparison.records
    state = _difference(comparison, place.variable, theirs, place.step)
    if state is None or state.size < 2:
        return None
    for ours, weight in zip(of_kind(reference, *WEIGHTS), of_kind(distributed, *WEIGHTS), strict=False):
        moved = _difference(comparison, ours, weight, place.step)
        if moved is None or moved.shape != state.shape or not np.any(moved):
            continue
        share = coefficient(state, moved)
        slack = 2 * (place.bound.value + comparison.tolerance.variable(ours.index, place.step).value)
        if share is not None and 0 < share <= _LARGEST_SHARE and difference(state, share * moved).error <= slack:
            return weight.name
    return None


def _difference(comparison: Comparison, ours: VariableRecord, theirs: VariableRecord, step: int) -> Float | None:
    desired, read = comparison.reference.value(ours.index, step), readings(comparison.distributed, theirs, step)
    if desired is None or not read or not is_numeric(desired) or read[0][2].shape != desired.shape:
        return None
    return np.asarray(read[0][2], np.float64) - np.asarray(desired, np.float64)
