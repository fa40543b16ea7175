"""Find weights with a gradient that never change, even if they do not move on one device either."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, magnitude
from pytest_ddl.equivalence.evidence.effective import counted_updates, moved, rate_of
from pytest_ddl.equivalence.evidence.gradients import by_replica, calls, total
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, of_kind, update
from pytest_ddl.equivalence.evidence.tolerance import unit_roundoff
from pytest_ddl.records import GradientStage, TrainingRecord, VariableKind, VariableRecord


def unmoved(record: TrainingRecord) -> Iterator[tuple[VariableRecord, int, str]]:
    """Yield ``(variable, first step, evidence)`` of weights that should have moved in this run but never did.

    A gradient that is computed but not applied may be intended: accumulated, logged, held back as zeros, or used with a
    learning rate of 0. So a weight with a visible gradient is named only if no learning rate is known to be 0, and:

    * its gradient was handed to the optimizer and was not zero,
    * or its gradient was never handed over, and another weight of the same gradient call moved in every step,
    * or no watched weight moved at all, and the optimizer counted an update in each of these steps.
    """
    trainable = of_kind(record, VariableKind.TRAINABLE)
    steps = range(1, record.num_steps + 1)
    moving = {step: {v.index for v in trainable if moved(record, v, step)} for step in steps}
    still = [v for v in trainable if not any(v.index in indices for indices in moving.values())]
    if not still or is_asynchronous(record):
        return
    computed = {step: total(by_replica(record, step, GradientStage.COMPUTED)) for step in steps}
    applied = {step: total(by_replica(record, step, GradientStage.APPLIED)) for step in steps}
    # A program may leave out the whole update if one gradient is not finite.
    finite = [step for step in steps if all(map(all_finite, computed[step].values()))]
    for variable in still:
        visible = [step for step in finite if _large(record, variable, step, computed[step], moving[step])]
        if not visible or any(rate_of(record, step) == 0.0 for step in visible):
            continue
        size = magnitude(computed[visible[0]][variable.index])
        reached = f"its gradient reaches {size:.4g} in step {visible[0]}"
        given = [step for step in visible if np.any(applied[step].get(variable.index, np.zeros(())))]
        if given:
            yield variable, given[0], f"{reached} and was handed to the optimizer"
        elif any(variable.index in handed for handed in applied.values()):
            continue  # handed over as zeros: held back on purpose
        elif visible == finite and all(_companions(record, variable, s) & moving[s] for s in visible):
            yield variable, visible[0], f"{reached}, and others of the same gradient call move in every step"
        elif not any(moving.values()) and all(counted_updates(record, step) for step in visible):
            yield variable, visible[0], f"{reached}, the optimizer counts an update, and no watched weight moves"


def _large(
    record: TrainingRecord, variable: VariableRecord, step: int, gradients: dict[int, Float], moving: set[int]
) -> bool:
    """Return whether a gradient is finite, and so large that its weight must change visibly.

    The weight is assumed to move as far per unit of gradient as the other weights do.
    """
    gradient = gradients.get(variable.index)
    if gradient is None or not all_finite(gradient) or not np.any(gradient):
        return False
    rates = [
        magnitude(update(record, index, step)) / size
        for index in moving
        if index in gradients and (size := magnitude(gradients[index])) > 0
    ]
    spacing = 8 * unit_roundoff(variable.dtype) * magnitude(record.value(variable.index, step))
    return min(rates, default=rate_of(record, step) or 1.0) * magnitude(gradient) > spacing


def _companions(record: TrainingRecord, variable: VariableRecord, step: int) -> set[int]:
    """Return the weights whose gradients came from the same calls."""
    found = calls(record, step, GradientStage.COMPUTED)
    return {index for call in found if variable.index in call.values for index in call.values} - {variable.index}
