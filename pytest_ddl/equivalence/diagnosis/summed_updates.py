"""PS: after concurrent steps of plain gradient descent, weights have moved by the sum of all gradients.

The order of the updates does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, magnitude
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import of_kind, update
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.records import Array, GradientStage, StepRecord, TrainingRecord, VariableKind, VariableRecord

CHECK = "PS"
MOST_MISSING = 0.25
"""Share of the smallest update that must be missing. Rounding is far less, and a lost update is more."""


def lost_from_weights(comparison: Comparison, closures: int) -> tuple[list[Finding], list[str]]:
    """Compare the movement of each weight with the sum of the gradients of all closures, times the learning rate.

    Return the findings, and the names of the weights that moved correctly.
    """
    reference, distributed, tolerance = comparison.reference, comparison.distributed, comparison.tolerance
    rank = distributed.ranks[0]
    right = []
    for variable in of_kind(reference, VariableKind.TRAINABLE):
        rate = _rate(reference, variable, tolerance)
        handed = _gradients(all_steps(distributed), variable.index)
        before = () if variable.since else rank.initial.get(variable.index, ())
        after = (rank.final or {}).get(variable.index, rank.steps[-1].snapshot.get(variable.index, ()))
        # All closures run the same function. So a number that they do not divide means that some were not observed.
        if rate is None or not handed or len(handed) % closures or len(before) != 1 or len(after) != 1:
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
            return [_finding(variable, moved, wanted, error, rounding, len(updates))], []
        if error <= rounding and smallest > rounding:
            right.append(variable.name)
    return [], right


def numbers_of_updates(reference: TrainingRecord, distributed: TrainingRecord) -> tuple[int, int] | None:
    """Return how many gradients one device and the strategy computed for a weight; ``None`` if that is unknown."""
    for variable in of_kind(reference, VariableKind.TRAINABLE):
        ours, theirs = (len(_gradients(all_steps(record), variable.index)) for record in (reference, distributed))
        if ours and theirs:
            return ours, theirs
    return None


def _rate(reference: TrainingRecord, variable: VariableRecord, tolerance: Tolerance) -> float | None:
    """Return the factor of gradient descent, or ``None`` if the steps of one device do not share one factor.

    With momentum or weight decay there is no such factor.
    """
    rates: list[float] = []
    differ = False
    for step in range(1, reference.num_steps + 1):
        change = update(reference, variable.index, step)
        gradients = _gradients([rank.steps[step - 1] for rank in reference.ranks], variable.index)
        if change is None or not gradients or any(gradient.shape != change.shape for gradient in gradients):
            return None
        total = np.sum(gradients, axis=0)
        rate = coefficient(change, total)
        slack = 2 * tolerance.variable(variable.index, step).value
        if rate is None or difference(change, (rates or [rate])[0] * total).error > slack:
            return None
        if magnitude(change) > 100 * slack:
            rates.append(rate)
            differ = differ or _differ_in_direction(gradients)
    return rates[0] if len(rates) > 1 or (rates and differ) else None


def all_steps(record: TrainingRecord) -> list[StepRecord]:
    """Return the recorded steps, and what was observed after the last of them."""
    late = [rank.facts["late"] for rank in record.ranks if "late" in rank.facts]
    return [*(step for rank in record.ranks for step in rank.steps), *late]


def _gradients(steps: Sequence[StepRecord], index: int) -> list[Float]:
    """Return all gradients of a weight in some steps, of the latest stage that was observed in any of them.

    A step that is recorded while closures run may have the gradient that a closure computed, and a later step the
    one that it applied.
    """
    found = [item for step in steps for item in step.gradients]
    for stage in (GradientStage.APPLIED, GradientStage.COMPUTED):
        values: list[Array | None] = [item.values.get(index) for item in found if item.stage is stage]
        if values:
            return [np.asarray(value, np.float64) for value in values if value is not None]
    return []


def _differ_in_direction(gradients: list[Float]) -> bool:
    """Return whether the gradients point in different directions, so that only one common factor fits their sum.

    Momentum would weight them differently.
    """
    first = gradients[0]
    return any(
        difference(gradient, (coefficient(gradient, first) or 0.0) * first).error > 1e-3 * magnitude(gradient)
        for gradient in gradients[1:]
    )


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
        fix=fix_of(cause) if share > 1 else SPECIAL["lost-by-closures"],
        observed=f"{share * number:.3g} of {number} updates",
        expected="the sum of all updates, in any order",
        origin="rounding of as many additions",
        evidence="the gradients of all concurrent steps were recorded; in every step of one device the weight moves by "
        "the same multiple of its gradient",
    )
