"""Find in records how a run computes: its floating point types, their roundoff, its sums, if kernels round alike."""

from __future__ import annotations

import math

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import same
from pytest_ddl.records import GradientStage, TrainingRecord, VariableKind

_UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "complex64": 2.0**-24,
    "complex128": 2.0**-53,
}
_HALF = ("bfloat16", "float16")
"""Half precision types, coarsest first."""


def unit_roundoff(dtype: str) -> float:
    """Return the unit roundoff of a dtype by name; 0 for exact dtypes (integers, booleans, strings)."""
    return _UNIT_ROUNDOFF.get(dtype, 0.0)


def half_precision(record: TrainingRecord) -> str | None:
    """Name the coarsest half precision type in which a run computes; ``None`` if there is none."""
    used = _types(record)
    return next((name for name in _HALF if name in used), None)


def uses_float16(record: TrainingRecord) -> bool:
    """Return whether a run computes in float16, whose numbers overflow long before those of the other types."""
    return "float16" in _types(record)


def _types(record: TrainingRecord) -> set[str]:
    """Return the types of the weights, the layers and the casts of a run."""
    return {
        *(v.dtype for v in record.variables if v.kind in (VariableKind.TRAINABLE, VariableKind.FROZEN)),
        *(str(layer.settings.get("compute_dtype")) for rank in record.ranks[:1] for layer in rank.layers),
        *(name for rank in record.ranks[:1] for name in rank.casts),
    }


def compute_roundoff(reference: TrainingRecord) -> float:
    """Return the roundoff of the coarsest arithmetic in the program: of its weights, its layers or its casts."""
    return max(map(unit_roundoff, _types(reference)), default=0.0)


def longest_chain(reference: TrainingRecord) -> int:
    """Count the most half precision operations that follow on each other in a step.

    A step that runs eagerly leaves no graph. Each cast to half precision then stands for three operations: the cast,
    the operation that it is made for, and the gradient of that operation.
    """
    rank = reference.ranks[0]
    longest = max((graph.half for graph in rank.graphs), default=0)
    return max(longest, 3 * math.ceil(sum(rank.casts.values()) / max(1, reference.num_steps)) if not longest else 0, 1)


def scalar_roundoff(reference: TrainingRecord, name: str | None) -> float:
    """Return the roundoff of a reported number; ``None`` names the loss.

    The record holds Python floats, without the original type. A float64 number fits into float32 by chance only once in
    2**29 times. So if all numbers fit into float32, they were float32.
    """
    steps = [step for rank in reference.ranks[:1] for step in rank.steps]
    found = [step.loss if name is None else step.values.get(name) for step in steps]
    numbers = [number for number in found if number is not None and math.isfinite(number)]
    with np.errstate(over="ignore"):
        narrow = all(float(np.float32(number)) == number for number in numbers)
    around = {dtype for rank in reference.ranks[:1] for dtype in rank.casts_around}
    for dtype in _HALF:
        # A cast outside the step may belong to something else. The numbers must show it too.
        if dtype in around and numbers and all(_fits(number, dtype) for number in numbers):
            return unit_roundoff(dtype)
    return unit_roundoff("float32" if narrow else "float64")


def _fits(number: float, dtype: str) -> bool:
    """Return whether a number has no more significant bits than a type holds."""
    significand, _exponent = math.frexp(number)
    return (significand / unit_roundoff(dtype)).is_integer()


def made_apart(reference: TrainingRecord, distributed: TrainingRecord) -> bool:
    """Return whether a GPU was used, and initial values differ.

    Some strategies make initial values on the CPU, and one device makes them on the GPU. The kernels of both round
    differently: an orthogonal initializer needs a QR decomposition, and a normal one logarithms and cosines.
    """
    if not any(rank.facts.get("device") for record in (reference, distributed) for rank in record.ranks):
        return False
    pairs = (
        (reference.value(variable.index, 0), value)
        for variable in distributed.variables
        for _rank, _replica, value in distributed.components(variable.index, 0)
    )
    return any(ours is not None and not same(ours, np.asarray(theirs)) for ours, theirs in pairs)


def not_deterministic(record: TrainingRecord) -> str:
    """Return the error of an operation that has no deterministic kernel there; empty if all operations have one."""
    return next((str(found) for rank in record.ranks if (found := rank.facts.get("not_deterministic"))), "")


def reduction_length(reference: TrainingRecord, batch: int) -> int:
    """Estimate the length of the longest sum from above: over the batch and over one dimension.

    No sum over examples runs over the rows of a table from which the program only takes rows. The gradient of a row is
    a sum over the places in the batch that take it, and there are no more of them than numbers in the batch.
    """
    sizes = {size for variable in reference.variables for size in variable.shape}
    longest = batch * max(sizes, default=1)
    numbers = max((sum(b.numbers for b in reference.batches(s + 1)) for s in range(reference.num_steps)), default=0)
    rows = {reference.variables[index].shape[0] for index in _tables(reference)}
    if not rows or not numbers:
        return longest
    return min(longest, max(batch * max(sizes - rows, default=1), numbers))


def _tables(reference: TrainingRecord) -> set[int]:
    """Return the indices of the variables from which the program only takes rows: all their gradients are sparse."""
    given = [gradient for rank in reference.ranks for step in rank.steps for gradient in step.gradients]
    computed = [gradient for gradient in given if gradient.stage is GradientStage.COMPUTED]
    sparse = {index for gradient in computed for index in gradient.sparse}
    return sparse - {i for g in computed for i, value in g.values.items() if value is not None and i not in g.sparse}
