"""Candidates for micro-batches of an update: some do not enter it, or each was clipped before it was added."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit
from pytest_ddl.equivalence.diagnosis.candidates.reduced import Sums, handed_sums
from pytest_ddl.equivalence.evidence.arrays import Float
from pytest_ddl.equivalence.evidence.combination import global_norm, solve
from pytest_ddl.equivalence.evidence.gradients import calls
from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.records import GradientStage, TrainingRecord

CAUSE = "gradient-accumulation-wrong"
CLIPPED = "gradient-clipped-before-aggregation"
Calls = dict[tuple[int, int], dict[int, Float]]
"""(replica, call) -> gradients of the weights."""


def left_out(case: Case) -> Fit | None:
    """Test for gradients of one step that a replica computes one after the other, of which the update lacks some."""
    ours, theirs = _calls(case, case.reference), _calls(case, case.distributed)
    several = len(ours)
    if several < 2 or case.replicas == 1:
        return None
    each = {replica: sum(r == replica for r, _call in theirs) for replica in range(case.replicas)}
    if set(each.values()) == {min(each.values())} and 0 < min(each.values()) < several:
        return Fit(
            CAUSE,
            f"one device computes {several} gradients of the weights in the step, each replica {min(each.values())}",
            grounds=Grounds.PATTERN,
        )
    if set(each.values()) != {several} or not case.pulls or any(motion.components_differ for motion in case.pulls):
        return None
    updates = {motion.variable.index: motion.theirs[0] for motion in case.pulls}
    weights = solve(updates, list(theirs.values()), case.gradient_slack)
    if weights is None:
        return None
    error = max(weights.slack)
    of_call: dict[int, list[float]] = {}
    for (_replica, call), weight in zip(theirs, weights.values, strict=True):
        of_call.setdefault(call, []).append(weight)
    unused = _unused(case, ours)
    nothing = [c for c, found in of_call.items() if c not in unused and all(abs(weight) <= error for weight in found)]
    rest = [weight for call, found in of_call.items() if call not in nothing for weight in found]
    if not nothing or not rest or max(rest) - min(rest) > 2 * error or min(rest) <= error:
        return None
    names = ", ".join(str(call + 1) for call in nothing)
    return Fit(
        CAUSE,
        f"the update is the sum of the replicas' gradients of the step without micro-batch {names} of {several}",
    )


def _unused(case: Case, ours: Calls) -> list[int]:
    """Return the calls whose gradients one device leaves out of its update, too, as those that only move weights."""
    own = {motion.variable.index: motion.ours for motion in case.pulls}
    weights = solve(own, list(ours.values()), case.gradient_slack)
    if weights is None:
        return []
    error = max(weights.slack)
    return [call for (_replica, call), weight in zip(ours, weights.values, strict=True) if abs(weight) <= error]


def _calls(case: Case, record: TrainingRecord, step: int | None = None) -> Calls:
    """Return the gradients that were computed in a step, if each call computed those of the same weights.

    :param step: ``None`` for the step of the case.
    """
    indices = {motion.variable.index for motion in case.weights}
    by_call: Calls = {}
    for item in calls(record, case.step if step is None else step, GradientStage.COMPUTED):
        values = {i: v.astype(float) for i, v in item.values.items() if v is not None and i in indices}
        if values:
            by_call[item.replica, item.call] = values
    return by_call if len({frozenset(values) for values in by_call.values()}) == 1 else {}


def clipped_one_by_one(case: Case) -> Fit | None:
    """Test for micro-batches of which each replica clips its own part, before it adds them up.

    One device clips whole micro-batches with the same limit. It shows in the size with which each of them enters the
    sum that is handed to the optimizer or to a reduction. So the rule of the update need not be known.
    """
    if case.replicas == 1:
        return None
    sums = handed_sums(case)
    # A limit may count all weights together, or each by itself.
    groupings = ([list(sums[0])], [[index] for index in sums[0]]) if sums else ()
    for steps, groups in product(range(1, case.step + 1), groupings):
        rows = [_entered(case, sums, indices, steps) for indices in groups]
        found = [row for row in rows if len(row) > 1 + case.replicas]
        if found and all(map(_is_one_limit, found)) and any(map(_clips, found)):
            sizes = ", ".join(f"{weight * size:.4g}" for weight, size, _slack in found[0])
            return Fit(
                CLIPPED,
                f"the gradients of each micro-batch, of one device and then of each replica, enter the sum with the "
                f"norms {sizes}: one limit explains them, if it cuts each of them before it is added",
                grounds=Grounds.PATTERN,
                fix=SPECIAL["clipped-micro-batches"],
            )
    return None


Entered = list[tuple[float, float, float]]
"""Weight, norm and the rounding of the weight for each micro-batch of one device, and then of each replica."""


def _entered(case: Case, sums: Sums, indices: Sequence[int], steps: int) -> Entered:
    """Solve each sum for the micro-batches of the last steps; empty if it cannot be done for one of them."""
    found: Entered = []
    for place, total in enumerate(sums):
        record, replica = (case.distributed, place - 1) if place else (case.reference, 0)
        parts = [
            {index: values[index] for index in indices if index in values}
            for step in range(case.step - steps + 1, case.step + 1)
            for (of, _call), values in _calls(case, record, step).items()
            if of == replica
        ]
        target = {index: total[index] for index in indices if index in total}
        weights = solve(target, parts, case.gradient_slack) if parts and target else None
        if weights is None:
            return []
        for weight, slack, part in zip(weights.values, weights.slack, parts, strict=True):
            found.append((weight, global_norm(part), slack))
    return found


def _is_one_limit(entered: Entered) -> bool:
    """Return whether one limit, and one factor for smaller gradients, gives all weights."""
    whole, limit = max(w for w, _size, _slack in entered), max(w * size for w, size, _slack in entered)
    return all(size > 0 and abs(w - min(whole, limit / size)) <= 2 * slack for w, size, slack in entered)


def _clips(entered: Entered) -> bool:
    """Return whether the limit cuts several gradients. A single one would only define the limit."""
    whole = max(w for w, _size, _slack in entered)
    return sum(w < whole - 2 * slack for w, _size, slack in entered) > 1
