"""Read recorded gradients: per replica, summed over the calls of a step, with a bound on their rounding error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, difference, magnitude
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import GradientRecord, GradientStage, TrainingRecord

Gradients = Mapping[int, Float]
"""Variable index -> gradient; a variable without a gradient is absent."""


def calls(record: TrainingRecord, step: int, stage: GradientStage) -> list[GradientRecord]:
    """Return the gradients of one stage in a step, ordered by replica and call."""
    if not 1 <= step <= record.num_steps:
        return []
    records = [item for rank in record.ranks for item in rank.steps[step - 1].gradients if item.stage is stage]
    return sorted(records, key=lambda item: (item.replica, item.call))


def by_replica(record: TrainingRecord, step: int, stage: GradientStage) -> dict[int, dict[int, Float]]:
    """Map replica -> variable -> the gradient, summed over all calls of the step; empty if not observed."""
    gradients: dict[int, dict[int, Float]] = {}
    for item in calls(record, step, stage):
        added = gradients.setdefault(item.replica, {})
        for index, value in item.values.items():
            if value is not None:
                dense = np.asarray(value, np.float64)
                added[index] = added[index] + dense if index in added else dense
    return gradients


def total(parts: Mapping[int, Mapping[int, Float]]) -> dict[int, Float]:
    """Map each variable to the sum over replicas."""
    summed: dict[int, Float] = {}
    for replica in sorted(parts):
        for index, value in parts[replica].items():
            summed[index] = summed[index] + value if index in summed else value
    return summed


def observed(record: TrainingRecord) -> bool:
    """Return whether gradients were recorded at all."""
    return any(step.gradients for rank in record.ranks for step in rank.steps)


def sparse_variables(record: TrainingRecord, step: int) -> frozenset[int]:
    """Return the variables for which the tape gave ``tf.IndexedSlices``."""
    return frozenset(i for item in calls(record, step, GradientStage.COMPUTED) for i in item.sparse)


def largest(parts: Sequence[Mapping[int, Float]], index: int) -> float:
    """Return the largest entry of a variable's gradient over replicas."""
    return max((magnitude(part[index]) for part in parts if index in part), default=0.0)


def slack(tolerance: Tolerance, index: int, step: int, scale: float) -> float:
    """Bound the rounding error of one entry of a gradient whose parts are as large as ``scale``.

    The result is the bound of a sum over the batch, plus the amplification that the perturbed references show
    (:mod:`pytest_ddl.equivalence.evidence.tolerance`).
    """
    reference = tolerance.reference
    dtype = next((v.dtype for v in reference.variables if v.index == index), "float64")
    bound = 2 * tolerance.relative(max(unit_roundoff(dtype), tolerance.compute_roundoff)) * scale
    noise = 0.0
    for stage in GradientStage:
        ours = _on_one_device(reference, step, stage, index)
        for run in tolerance.perturbed if ours is not None else ():
            other = _on_one_device(run, step, stage, index)
            if other is not None and ours is not None and all_finite(other) and all_finite(ours):
                noise = max(noise, difference(other, ours).error)
    return bound + tolerance.amplification * noise


def _on_one_device(record: TrainingRecord, step: int, stage: GradientStage, index: int) -> Float | None:
    """Return the gradient of one variable as :func:`by_replica` does, without adding up those of all others."""
    values = [item.values.get(index) for item in calls(record, step, stage) if item.replica == 0]
    known = [np.asarray(value, np.float64) for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
