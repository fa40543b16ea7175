"""Candidates for variables that do not move, or are frozen and move, and for mistakes of the optimizer itself."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit, Motion, agrees, reproduces
from pytest_ddl.equivalence.diagnosis.candidates.clipping import clipped_parts
from pytest_ddl.equivalence.diagnosis.candidates.shared import adds_up
from pytest_ddl.equivalence.evidence.arrays import coefficient, difference, magnitude
from pytest_ddl.equivalence.evidence.effective import rate_of, settings_of
from pytest_ddl.equivalence.evidence.observe import component_updates, of_kind
from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.records import GradientStage, VariableKind


def standing_still(case: Case) -> Fit | None:
    """Test for some variables that do not move at all."""
    still = [m for m in case.weights if magnitude(m.ours) > m.slack and not any(np.any(theirs) for theirs in m.theirs)]
    if not still or clipped_parts(case) is not None:
        return None  # limits with opposite signs add up to 0
    names = ", ".join(motion.variable.name for motion in still[:3])
    evidence = f"the change of {names} is exactly 0 on every replica"
    for source in case.sources:
        indices = [motion.variable.index for motion in still]
        sizes = [magnitude(part[index]) for index in indices for part in source.parts if index in part]
        if sizes:
            evidence += f", and the {source} the replicas reach {max(sizes):.4g}"
            break
    return Fit("variable-did-not-move", evidence)


def skipped(case: Case) -> Fit | None:
    """Test for a step that moves no variable at all, although other steps do."""
    moving = [m for m in case.weights if magnitude(m.ours) > m.slack]
    if not moving or any(np.any(theirs) for m in case.weights for theirs in m.theirs):
        return None
    others = [step for step in range(1, case.distributed.num_steps + 1) if step != case.step]
    moved = [step for step in others if all(_moves(case, m, step) for m in moving)]
    if not moved:
        return None
    evidence = (
        f"no weight moves in step {case.step}, and all {len(moving)} that move on one device do in step {moved[0]}"
    )
    return Fit("lost-update", evidence)


def _moves(case: Case, motion: Motion, step: int) -> bool:
    changes = component_updates(case.distributed, motion.variable.index, step)
    return any(np.any(change) for _rank, _replica, change in changes)


def applied_late(case: Case) -> Fit | None:
    """Test for a step in which no variable moves, if a later step makes the change that one device makes here."""
    moving = [m for m in case.weights if magnitude(m.ours) > m.slack]
    if not moving or any(np.any(theirs) for m in case.weights for theirs in m.theirs):
        return None
    for step in range(case.step + 1, case.distributed.num_steps + 1):
        later = {m.variable.index: component_updates(case.distributed, m.variable.index, step) for m in moving}
        if not any(np.any(change) for changes in later.values() for _rank, _replica, change in changes):
            continue
        if all(
            difference(change, m.ours).error <= m.slack
            for m in moving
            for _rank, _replica, change in later[m.variable.index]
        ):
            evidence = (
                f"no weight moves in step {case.step}, and step {step} makes the change that one device makes there"
            )
            return Fit("staleness-exceeded", evidence)
        return None
    return None


def moved_without_a_gradient(case: Case) -> Fit | None:
    """Test for weights that only the optimizer's momentum moves, because its gradients are zero in this step."""
    moving = [m for m in case.pulls if magnitude(m.ours) > m.slack]
    if case.step == 1 or not moving or any(magnitude(theirs) > m.slack for m in case.pulls for theirs in m.theirs):
        return None
    return Fit(
        "lost-update",
        f"the gradient computed back from the update of step {case.step} is 0 for every weight: only the state of the "
        "optimizer moved them",
    )


def of_an_earlier_step(case: Case) -> Fit | None:
    """Test for an update by the gradient that one device applied in an earlier step."""
    earlier = case
    while earlier.step > 1:
        earlier = earlier.before
        gradients = {m.variable.index: m.ours for m in earlier.effective}
        if case.in_gradient_units is earlier.in_gradient_units and reproduces(
            case.effective,
            lambda m, found=gradients: found.get(m.variable.index),  # type: ignore[misc]
        ):
            return Fit(
                "staleness-exceeded",
                f"the update of every weight in step {case.step} is made with the gradient that one device applies in "
                f"step {earlier.step}",
            )
    return None


def applied_again(case: Case) -> Fit | None:
    """Test, under a parameter server, for an update that is applied several times after steps that applied it once."""
    if not case.distributed.capabilities.coordinator or case.step == 1:
        return None
    for times in (2, 3, 4):
        if reproduces(case.weights, lambda m, k=times: float(k) * m.ours, times):  # type: ignore[misc]
            return Fit(
                "duplicate-update",
                f"the change of every weight is {times} times that of one device, and was right in the "
                f"{case.step - 1} step(s) before: the update was applied {times} times",
                grounds=Grounds.RATIO,
            )
    return None


def frozen_moved(case: Case) -> Fit | None:
    """Test for a variable that moves although one device does not train it."""
    trained = {index for own in case.own.values() for index in own}
    untrained = [m for m in case.weights if trained and m.variable.index not in trained]
    moved = [m for m in (*case.frozen, *untrained) if not np.any(m.ours) and any(np.any(theirs) for theirs in m.theirs)]
    if not moved:
        return None
    names = ", ".join(motion.variable.name for motion in moved[:3])
    return Fit("frozen-variable-moved", f"{names} stands still on one device")


def another_rate(case: Case) -> Fit | None:
    """Test for another learning rate with the same gradients behind the updates."""
    ours, theirs = rate_of(case.reference, case.step), rate_of(case.distributed, case.step)
    if not ours or not theirs or ours == theirs:
        return None
    factor = theirs / ours
    if reproduces(case.weights, lambda m: factor * m.ours, factor):
        how = f"{factor:.4g} x the single-device update reproduces the change"
    elif settings_of(case.reference)[0] == "SGD" and case.pulls and all(m.is_right for m in case.pulls):
        # With momentum, an update is not proportional to its rate. The rates are part of the rule that is inverted.
        how = "each run reproduces its change from its own rate and the same gradients"
    else:
        return None
    return Fit(
        "learning-rate-differs",
        f"the learning rate is {theirs:.6g}, on one device {ours:.6g}, and {how}",
        grounds=Grounds.RATIO,
    )


def one_of_the_rates(case: Case) -> Fit | None:
    """Test for several optimizers, of which one has another learning rate with the same gradients."""
    rates = of_kind(case.reference, VariableKind.LEARNING_RATE)
    if len(rates) < 2 or not case.sources or not adds_up(case, case.sources[-1]):
        return None
    factors = {1.0}
    for rate in rates:
        for step in (case.step - 1, case.step):  # a schedule shows its rate before the update, and others after it
            ours, theirs = (record.value(rate.index, step) for record in (case.reference, case.distributed))
            if ours is not None and theirs is not None and float(ours) and float(theirs):
                factors.add(float(theirs) / float(ours))
    used = [_factor(motion, factors) for motion in case.weights]
    if None in used or all(factor == 1.0 for factor in used):
        return None
    shown = ", ".join(
        f"{motion.variable.name} {factor:.4g} x" for motion, factor in zip(case.weights, used, strict=True)
    )
    return Fit(
        "learning-rate-differs",
        f"the gradients add up to those of one device, and the ratio of the learning rates reproduces each change: "
        f"{shown}",
        grounds=Grounds.RATIO,
    )


def _factor(motion: Motion, factors: Collection[float]) -> float | None:
    """Return the first factor that reproduces all components of a change from that of one device."""
    return next(
        (
            c
            for c in sorted(factors, key=lambda c: c != 1.0)
            if all(agrees(t, c * motion.ours, motion, c) for t in motion.theirs)
        ),
        None,
    )


def optimizer_itself(case: Case) -> Fit | None:
    """Test for an optimizer that gets the right gradient from the replicas but computes a wrong update from it."""
    source = next((s for s in case.sources if s.stage is GradientStage.APPLIED), None)
    if source is None or not source.own or not adds_up(case, source):
        return None
    pulls = [m for m in case.pulls if m.variable.index in source.own]
    if case.in_gradient_units and not pulls:
        return None
    # If the gradient computed back from the update is right too, the error is in the optimizer's own state.
    right = bool(pulls) and all(m.is_right for m in pulls)
    wrong = [m for m in case.slots if not m.is_right]
    if not (right or wrong) or any(m.components_differ for m in case.effective):
        return None
    where = f" ({wrong[0].variable.name})" if wrong else ""
    return Fit(
        "optimizer-state-mismatch",
        f"the {source} the replicas add up to those of one device; the result of the optimizer{where} differs",
        grounds=Grounds.RECOMPUTED if right else Grounds.PATTERN,
    )


def state_of_the_update(case: Case) -> Fit | None:
    """Test for wrong state with the shape of a weight, although the replicas' gradients add up to the right one.

    An optimizer by hand keeps moments beside the weights. If they are wrong, they were not computed
    from the gradient only.
    """
    source = case.computed
    off = [m for m in case.weights if not m.is_right]
    if source is None or case.replicas == 1 or any(m.components_differ for m in case.weights):
        return None
    if not adds_up(case, source):
        return None
    wrong = [m for m in case.state if not m.is_right]
    if not off or not all(any(_keeps_its_own(state, m) for state in wrong) for m in off):
        return None
    names = ", ".join(motion.variable.name for motion in wrong[:3])
    return Fit(
        "optimizer-state-mismatch",
        f"the {source} the replicas add up to those of one device, but the change of {names}, which has the shape of "
        "a weight, differs from one device",
        grounds=Grounds.PATTERN,
    )


def _keeps_its_own(state: Motion, weight: Motion) -> bool:
    """Return whether state has a weight's shape, and its error is no multiple of the weight's error.

    An average of the weight would only follow the weight's error.
    """
    if state.ours.shape != weight.ours.shape:
        return False
    error, wrong = state.theirs[0] - state.ours, weight.theirs[0] - weight.ours
    c = coefficient(error, wrong)
    return c is None or error.size == 1 or difference(error, c * wrong).error > state.slack + abs(c) * weight.slack
