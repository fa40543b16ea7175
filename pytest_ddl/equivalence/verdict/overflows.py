"""Find the step in which a gradient overflows on one side only, as it may with a loss scale.

One device adds up the whole batch, and a replica its own examples. Near the largest number of float16 one of these sums
overflows and the other does not. The side that overflows then leaves out its update and lowers its loss scale, as
it must. The weights of both sides differ from that step on, although neither is wrong. So the steps before it are
compared, and all steps are compared with a smaller loss scale, at which nothing overflows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.checks.nonfinite import not_finite
from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff, uses_float16
from pytest_ddl.equivalence.evidence.arrays import all_finite, magnitude, same
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, is_loss_scale, of_kind, shared_steps
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import Array, GradientStage, TrainingRecord, VariableKind

_LARGEST = float(np.finfo(np.float16).max)
_MARGIN = 0.25
"""Further factor on a smaller loss scale, because a later gradient may be larger."""
_SHARED = (VariableKind.TRAINABLE, VariableKind.FROZEN, VariableKind.SLOT, VariableKind.ITERATIONS)


@dataclass(frozen=True)
class Parting:
    """First step in which a gradient overflows on one side only."""

    step: int
    scales: tuple[int, ...]
    """Indices of the loss scales."""
    factor: float
    """Factor on the initial loss scale at which probably neither side overflows."""
    near: bool
    """True if the gradient of the other side is so large that its sum over other examples may overflow."""


@dataclass(frozen=True)
class _Skip:
    """Reaction of a run to a gradient that is not finite."""

    moves: bool
    counted: tuple[float, ...]
    """Growth of each update count."""
    scaled: tuple[float, ...]
    """Factor on each loss scale."""

    @property
    def is_usual(self) -> bool:
        return not self.moves and not any(self.counted) and all(factor < 1 for factor in self.scaled)


def parting(reference: TrainingRecord, distributed: TrainingRecord) -> Parting | None:
    """Return the step in which an overflow parts the runs; ``None`` without one, or if a side handles it wrongly.

    The result is only a claim until both runs are equal with a smaller loss scale, or ``near`` is true. If a gradient
    overflows on both sides in every step, nothing shows an update. The step is then the one after the last.
    """
    records = (reference, distributed)
    if not uses_float16(reference) or any(record.errors or is_asynchronous(record) for record in records):
        return None
    steps = range(1, shared_steps(*records) + 1)
    ours, theirs = ({step for step in steps if not_finite(record, step)} for record in records)
    idle = bool(steps) and ours == theirs == set(steps)
    if not idle and ours == theirs:
        return None
    first = steps[-1] + 1 if idle else min(ours ^ theirs)
    other = distributed if first in ours else reference
    scales = tuple(sorted({scale for record in records for scale in _loss_scales(record)}))
    if not all(_is_sound(record, scales, steps) for record in records):
        return None
    skips, others = ({_skip(r, scales, step) for step in at} for r, at in ((reference, ours), (distributed, theirs)))
    # If one device never leaves out a step, the usual way is assumed: nothing moves or counts, and the scale falls.
    unlike = skips != others if skips and others else not all(skip.is_usual for skip in others)
    if unlike or not (idle or _is_observed(other, first)):
        return None
    # A scale may also grow while nothing overflows.
    spans = [min(values) / max(values) for record in records for scale in scales if (values := _values(record, scale))]
    rounding = Tolerance(reference).relative(unit_roundoff("float16"))
    near = idle or distributed.num_replicas * _largest_gradient(other, first) * (1 + rounding) >= _LARGEST
    return Parting(first, scales, min(spans, default=1.0) * _MARGIN, near)


def _is_observed(record: TrainingRecord, step: int) -> bool:
    """Return whether the gradients of all replicas were recorded in a step."""
    replicas = {
        gradient.replica
        for rank in record.ranks
        for gradient in rank.steps[step - 1].gradients
        if gradient.stage is GradientStage.COMPUTED
    }
    return replicas == set(range(record.num_replicas))


def _is_sound(record: TrainingRecord, scales: Sequence[int], steps: Iterable[int]) -> bool:
    """Return whether all replicas keep equal weights and equal loss scales, and all of them stay finite."""
    shared = [*(variable.index for variable in of_kind(record, *_SHARED)), *scales]
    for step in steps:
        for index in shared:
            parts = [np.asarray(value) for _rank, _replica, value in record.components(index, step)]
            if any(not same(part, parts[0]) or not all_finite(part) for part in parts):
                return False
    return True


def _skip(record: TrainingRecord, scales: Sequence[int], step: int) -> _Skip:
    def around(index: int) -> tuple[Array, Array] | None:
        before, after = (record.value(index, at) for at in (step - 1, step))
        return None if before is None or after is None else (before, after)

    weights, counts = (of_kind(record, kind) for kind in (VariableKind.TRAINABLE, VariableKind.ITERATIONS))
    return _Skip(
        any(not same(*pair) for v in weights if (pair := around(v.index)) is not None),
        tuple(float(pair[1] - pair[0]) for v in counts if (pair := around(v.index)) is not None),
        tuple(float(pair[1] / pair[0]) for index in scales if (pair := around(index)) is not None and pair[0]),
    )


def _loss_scales(record: TrainingRecord) -> list[int]:
    return [v.index for v in of_kind(record, VariableKind.STATE) if is_loss_scale(record, v)]


def _values(record: TrainingRecord, index: int) -> list[float]:
    values = (record.value(index, step) for step in range(record.num_steps + 1))
    return [float(value) for value in values if value is not None and value > 0]


def _largest_gradient(record: TrainingRecord, step: int) -> float:
    return max(
        (
            magnitude(value)
            for rank in record.ranks
            for gradient in rank.steps[step - 1].gradients
            if gradient.stage is GradientStage.COMPUTED
            for value in gradient.values.values()
            if value is not None
        ),
        default=0.0,
    )
