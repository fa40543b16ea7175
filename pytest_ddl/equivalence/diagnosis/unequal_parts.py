"""Explain a state that differs from one device only because the step does: recompute it from the parts of the replicas.

One device runs on the examples of each replica separately. The state under the strategy follows from an uneven batch if
it is what its declared aggregation makes of the values of these runs. It follows from the weights if its difference is
a fraction of theirs, as in a moving average of weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_ddl.equivalence.diagnosis.state_updates import declared, readings
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, is_numeric
from pytest_ddl.equivalence.evidence.comparison import Comparison, Place
from pytest_ddl.equivalence.evidence.observe import WEIGHTS, is_uneven, of_kind
from pytest_ddl.equivalence.findings import Diagnosis, Grounds
from pytest_ddl.records import VariableRecord

MEAN = "mean-of-replica-means"
_LARGEST_SHARE = 1.0 + 1e-6


def of_unequal_parts(comparison: Comparison, place: Place, theirs: VariableRecord) -> Diagnosis | None:
    """Explain a declared mean in which replicas with different numbers of examples count equally.

    Without runs on the parts, the mean is only suspected. ``None`` if the runs contradict it.
    """
    if declared(theirs) != "mean" or not is_uneven(comparison.distributed, place.step):
        return None
    evidence = "replicas with different numbers of examples count equally in the declared mean"
    alone = _of_parts(comparison, place)
    if alone is None:
        return Diagnosis(MEAN, f"consistent with it: {evidence}", approximation=True, grounds=Grounds.PATTERN)
    if not _fits(comparison, place, theirs, np.mean(alone, axis=0)):
        return None
    return Diagnosis(MEAN, evidence, approximation=True, grounds=Grounds.RECOMPUTED, follows=True)


def of_weights(comparison: Comparison, place: Place, theirs: VariableRecord) -> Diagnosis:
    """Recompute a state of a step in which weights differ. It has no cause of its own if it follows from the step."""
    kind, alone = declared(theirs), _of_parts(comparison, place)
    if alone is not None:
        before = np.asarray(comparison.reference.value(place.variable.index, place.step - 1), np.float64)
        values = {
            "mean": np.mean(alone, axis=0),
            "sum": before + np.sum([value - before for value in alone], axis=0),
            "first": alone[0],
        }
        if kind in values and _fits(comparison, place, theirs, values[kind]):
            text = f"it is the {kind} of the values that the examples of each replica give"
            return Diagnosis(None, text, grounds=Grounds.RECOMPUTED, follows=True)
    weight = _averaged(comparison, place, theirs)
    if weight is not None:
        text = f"its difference is a fraction of the difference of {weight}, as that of a moving average"
        return Diagnosis(None, text, grounds=Grounds.RECOMPUTED, follows=True)
    return Diagnosis(None, "")


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
