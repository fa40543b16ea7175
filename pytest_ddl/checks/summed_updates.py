"""PS: weights after concurrent steps of plain gradient descent have moved by the sum of all gradients, in any order."""

from __future__ import annotations

import numpy as np

from pytest_ddl.checks.arrays import Float, all_finite, coefficient, difference, magnitude
from pytest_ddl.checks.causes import fix_of
from pytest_ddl.checks.findings import Finding
from pytest_ddl.checks.gradients import calls
from pytest_ddl.checks.observe import of_kind, update
from pytest_ddl.checks.tolerance import Tolerance, unit_roundoff
from pytest_ddl.records import Array, GradientStage, TrainingRecord, VariableKind, VariableRecord

CHECK = "PS"
MOST_MISSING = 0.25
"""Of the smallest update, how much must be missing: rounding is far less, a lost update is more."""


def lost_from_weights(reference: TrainingRecord, distributed: TrainingRecord, tolerance: Tolerance) -> list[Finding]:
    """Weights that moved by less or more than ``-rate x`` the sum of the gradients of all closures."""
    rank = distributed.ranks[0]
    for variable in of_kind(reference, VariableKind.TRAINABLE):
        rate = _rate(reference, variable, tolerance)
        handed = _gradients(distributed, variable.index)
        before = rank.initial.get(variable.index, ())
        after = (rank.final or {}).get(variable.index, rank.steps[-1].snapshot.get(variable.index, ()))
        if rate is None or len(handed) != rank.num_steps or len(before) != 1 or len(after) != 1:
            continue
        updates = [rate * gradient for gradient in handed]
        if any(one.shape != after[0].shape for one in updates) or not all(map(all_finite, (*updates, after[0]))):
            continue
        moved = np.asarray(after[0], np.float64) - np.asarray(before[0], np.float64)
        wanted = np.sum(updates, axis=0)
        error = difference(moved, wanted).error
        largest = max(magnitude(np.asarray(value)) for value in (before[0], after[0], wanted))
        rounding = 4 * len(updates) * max(unit_roundoff(variable.dtype), tolerance.compute_roundoff) * largest
        smallest = min((size for one in updates if (size := magnitude(one)) > 0), default=0.0)
        if smallest and error > rounding and error > MOST_MISSING * smallest:
            return [_finding(variable, moved, wanted, error, rounding, len(updates))]
    return []


def _rate(reference: TrainingRecord, variable: VariableRecord, tolerance: Tolerance) -> float | None:
    """The factor of gradient descent, if the same one makes every step of one device; momentum and decay have none."""
    found: list[float] = []
    for step in range(1, reference.num_steps + 1):
        change = update(reference, variable.index, step)
        gradients = [
            item.values.get(variable.index)
            for stage in (GradientStage.APPLIED, GradientStage.COMPUTED)
            for item in calls(reference, step, stage)
        ][:1]
        if change is None or not gradients or gradients[0] is None or gradients[0].shape != change.shape:
            return None
        gradient = np.asarray(gradients[0], np.float64)
        rate = coefficient(change, gradient)
        slack = 2 * tolerance.variable(variable.index, step).value
        if rate is None or difference(change, (found or [rate])[0] * gradient).error > slack:
            return None
        if magnitude(change) > 100 * slack:
            found.append(rate)
    return found[0] if len(found) > 1 else None


def _gradients(distributed: TrainingRecord, index: int) -> list[Float]:
    """Every closure's gradient of a weight, of the later stage that was seen."""
    steps = range(1, distributed.num_steps + 1)
    for stage in (GradientStage.APPLIED, GradientStage.COMPUTED):
        found: list[Array | None] = [item.values.get(index) for s in steps for item in calls(distributed, s, stage)]
        if found:
            return [np.asarray(value, np.float64) for value in found if value is not None]
    return []


def _finding(
    variable: VariableRecord, moved: Float, wanted: Float, error: float, rounding: float, number: int
) -> Finding:
    share = coefficient(moved, wanted) or 0.0
    cause = "duplicate-update" if share > 1 else "lost-update"
    return Finding(
        check=CHECK,
        message=f"{variable.name} moved by {share:.3g} x the sum of the {number} updates that were computed for it",
        cause=cause,
        step=number,
        variable=variable.name,
        error=error,
        tolerance=rounding,
        fix=fix_of(cause),
        observed=f"{share * number:.3g} of {number} updates",
        expected="the sum of all updates, in any order",
        origin="rounding of as many additions",
        evidence="the gradients of all concurrent steps were recorded; in every step of one device the weight moves by "
        "the same multiple of its gradient",
    )
