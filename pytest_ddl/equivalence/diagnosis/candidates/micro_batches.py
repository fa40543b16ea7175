"""Candidates for micro-batches within one step: computed, but not all of them enter the update."""

from __future__ import annotations

from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit
from pytest_ddl.equivalence.evidence.arrays import Float
from pytest_ddl.equivalence.evidence.combination import solve
from pytest_ddl.equivalence.evidence.gradients import calls
from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.records import GradientStage, TrainingRecord

CAUSE = "gradient-accumulation-wrong"
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


def _calls(case: Case, record: TrainingRecord) -> Calls:
    """Return the gradients that were computed in the step, if each call computed those of the same weights."""
    indices = {motion.variable.index for motion in case.weights}
    found: Calls = {}
    for item in calls(record, case.step, GradientStage.COMPUTED):
        values = {i: v.astype(float) for i, v in item.values.items() if v is not None and i in indices}
        if values:
            found[item.replica, item.call] = values
    return found if len({frozenset(values) for values in found.values()}) == 1 else {}
