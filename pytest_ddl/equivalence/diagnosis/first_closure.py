"""Compare the gradients of the first closure with one device: both had the same weights and the same examples."""

from __future__ import annotations

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, norm
from pytest_ddl.records import GradientStage, TrainingRecord

_FITS = 1e-4
"""Largest part of a gradient that a factor may leave over. The factor is only shown, and decides nothing."""
_VERBS = {GradientStage.COMPUTED: "computes", GradientStage.APPLIED: "hands to the optimizer"}


def first_difference(reference: TrainingRecord, distributed: TrainingRecord) -> str | None:
    """Say how the gradients of the first closure differ from those of one device; ``None`` if they are not known."""
    known = False
    for stage, verb in _VERBS.items():
        ours, theirs = _first(reference, stage), _first(distributed, stage)
        if ours is None or theirs is None or ours.shape != theirs.shape or not norm(ours):
            continue
        known = True
        factor = coefficient(theirs, ours) or 0.0
        is_multiple = all_finite(theirs) and norm(theirs - factor * ours) <= _FITS * norm(ours)
        if is_multiple and abs(factor - 1) <= _FITS:
            continue
        what = f"{factor:.3g} x the gradients" if is_multiple else "other gradients than those"
        return f"from the same weights and the same examples, the first closure {verb} {what} of one device"
    return "the first closure computes the gradients of one device" if known else None


def _first(record: TrainingRecord, stage: GradientStage) -> Float | None:
    """Return all gradients of the first call of a stage as one vector."""
    for item in record.ranks[0].steps[0].gradients if record.num_steps else ():
        if item.stage is stage and item.call == 0:
            parts = [np.ravel(value) for _index, value in sorted(item.values.items()) if value is not None]
            return np.concatenate(parts).astype(np.float64) if parts else None
    return None
