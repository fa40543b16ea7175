"""Candidates for gradients that are N or 1/N times too large, with any optimizer, at any step, beside other terms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit, Motion, reproduces
from pytest_ddl.equivalence.diagnosis.candidates.shared import (
    has_silent_replicas,
    is_never_reduced,
    limits_of,
    plain_normalization,
    random_sources,
    tell_apart,
    total_of,
)
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, flat, magnitude, norm
from pytest_ddl.equivalence.evidence.combination import Weights, solve
from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.records import GradientStage

_BY_COUNTS = "masked-loss-normalised-per-replica"
CAUSES = {1: "gradient-scaled-by-replica-count", -1: "gradient-scaled-by-inverse-replica-count"}

_OWN = 1e-3
"""Smallest relative difference of factors that replicas compute from their own examples."""
_LEAST_SCALE = 16.0
"""Smaller factors may be numbers of replicas, of micro-batches or of examples."""


def _factors(case: Case) -> Iterator[tuple[float, str]]:
    silent = has_silent_replicas(case)
    for number in case.parallel:
        for power, cause in CAUSES.items():
            if power > 0 or not silent:  # with a silent replica, a mean over replicas is smaller for another reason
                yield float(number) ** power, cause


def scaled(case: Case) -> Fit | None:
    """Test for N (or 1/N) times the gradient in every variable: in the update, in the moments, or before clipping."""
    for factor, cause in _factors(case):
        if factor < 1 and is_never_reduced(case):
            continue  # replicas with equal data apply equal parts of the gradient
        evidence = _in_update(case, factor) or _in_moments(case, factor) or _in_gradients(case, factor)
        if evidence:
            return Fit(cause, evidence, grounds=Grounds.RATIO, fix=_multiplied_by_own(case) if factor < 1 else None)
    return None


def _multiplied_by_own(case: Case) -> str | None:
    """Return the fix for replicas that hand over the whole gradient, each times a number of its own."""
    applied = next((source for source in case.sources if source.stage is GradientStage.APPLIED), None)
    if case.computed is None or applied is None or case.replicas == 1:
        return None
    whole, factors = total_of(case.computed), []
    for part in applied.parts:
        factor = coefficient(flat([part[i] for i in whole if i in part]), flat([whole[i] for i in whole if i in part]))
        if factor is None or not all(i in part and case.close(2.0)(i, part[i], factor * whole[i]) for i in whole):
            return None
        factors.append(factor)
    apart = max(factors) - min(factors) > _OWN * max(map(abs, factors))
    return SPECIAL["factors-of-parts"] if apart else None


def unscaled(case: Case) -> Fit | None:
    """Test for a large power of two on every weight: a loss scale that only divides or only multiplies."""
    motions = case.effective
    factors = [coefficient(theirs, m.ours) for m in motions if magnitude(m.ours) > m.slack for theirs in m.theirs]
    if not factors or not all(f and np.isfinite(f) for f in factors):
        return None
    factor = 2.0 ** round(float(np.log2(max(abs(f) for f in factors if f))))
    numbers = (*case.parallel, *(number**2 for number in case.parallel), *case.sizes, sum(case.sizes))
    known = {float(number) for number in numbers if number}
    if max(factor, 1 / factor) < _LEAST_SCALE or {factor, 1 / factor} & known:
        return None
    if not reproduces(motions, lambda m: factor * m.ours, factor):
        return None
    did = "divided by a loss scale of" if factor < 1 else "multiplied by a loss scale and not divided by it, of"
    return Fit(
        "gradient-unscaled-without-scale",
        f"{factor:.6g} x the single-device {motions[0].label} reproduces the change of every weight: it is {did} "
        f"{max(factor, 1 / factor):.6g}",
        grounds=Grounds.RATIO,
    )


def _in_update(case: Case, factor: float) -> str | None:
    if reproduces(case.effective, lambda m: factor * m.ours, factor):
        what = case.effective[0].label
        return (
            f"{factor:.4g} x the single-device update reproduces all {len(case.weights)} trainable variables"
            if what == "update"
            else f"{factor:.4g} x the single-device {what} reproduces all {len(case.weights)} trainable variables"
        )
    return None


def _in_moments(case: Case, factor: float) -> str | None:
    shapes = {motion.ours.shape for motion in case.weights}
    # An optimizer by hand keeps its moments beside the weights, so they count as state.
    by_hand = [motion for motion in case.state if motion.ours.shape in shapes and not motion.is_right]
    kept = case.slots or (by_hand if len(by_hand) >= len(case.weights) else [])
    slots = [motion for motion in kept if magnitude(motion.ours) > motion.slack]
    if len(case.distributed.ranks[0].optimizers) > 1:
        # One of several optimizers may get the right gradients. Those of a wrong gradient are all wrong.
        right = {motion.variable.slot_of for motion in slots if motion.is_right}
        slots = [motion for motion in slots if motion.variable.slot_of not in right]

    def first_or_second_moment(motion: Motion) -> Float:
        errors = {power: difference(motion.theirs[0], factor**power * motion.ours).error for power in (1, 2)}
        return factor ** min(errors, key=lambda power: errors[power]) * motion.ours

    # Moments are linear (quadratic) in the gradient only if they start from zero. The first update of one of several
    # optimizers may come late.
    fresh = case.step == 1 or not any(motion.before.any() for motion in slots)
    if fresh and slots and reproduces(slots, first_or_second_moment, factor**2):
        times = f"{factor:.4g}x (first) and {factor**2:.4g}x (second)"
        return f"the optimizer's moments are {times} those of one device"
    return None


def _in_gradients(case: Case, factor: float) -> str | None:
    """Test the gradients handed to the optimizer, if it clips or its update cannot be computed back."""
    source = next((source for source in case.sources if source.stage is GradientStage.APPLIED), None)
    if source is None:
        return None
    summed, close = total_of(source), case.close(1 + max(1.0, factor))
    if not all(close(index, summed[index], factor * own) for index, own in source.own.items() if index in summed):
        return None
    if set(summed) != set(source.own) or all(close(index, summed[index], own) for index, own in source.own.items()):
        return None
    if not case.in_gradient_units and not tell_apart(case, source):
        return None  # already reduced: it is not known whether the optimizer sums them again
    if case.in_gradient_units:
        wanted = {index: factor * own for index, own in source.own.items()}
        for clip in limits_of(case):
            cut = clip.apply(wanted)
            if reproduces(case.pulls, lambda m, cut=cut: cut.get(m.variable.index), factor):  # type: ignore[misc]
                return f"{factor:.4g} x the single-device gradient, cut by {clip}, reproduces the update"
        return None
    return f"the {source} the replicas add up to {factor:.4g} x that of one device"


def scaled_parts(case: Case) -> Fit | None:
    """Test for replicas whose shares of the true gradient are uneven and are summed instead of averaged.

    The single-device gradient is ``sum(w * g)`` over the replicas' gradients with weights of sum 1. The update is the
    plain sum: a mean on each replica, and N times their mean.
    """
    for source in case.sources if case.pulls else ():
        if any(
            difference(m.ours, source.own.get(m.variable.index, np.zeros_like(m.ours))).error > m.slack
            for m in case.pulls
        ):
            continue  # one device updates by something else: several micro-batches, or a cut gradient
        weights = solve(source.own, source.parts, case.gradient_slack)
        if weights is None or not weights.all_positive:
            continue
        for share in (1.0, 1.0 / case.replicas, float(case.replicas)):
            ratio = share * case.replicas / weights.total
            for factor, cause in _factors(case):
                if not weights.total_is(share * case.replicas / factor):
                    continue
                summed = total_of(source)
                if reproduces(
                    case.pulls,
                    lambda m, s=summed, k=share: k * s[m.variable.index] if m.variable.index in s else None,  # type: ignore[misc]
                    share * case.replicas,
                ):
                    shares = ", ".join(f"{weight:.3g}" for weight in weights.values)
                    evidence = (
                        f"one device's gradient is the sum of the {source} the replicas weighted by ({shares}); the "
                        f"update weights each by {share:.3g}: {ratio:.4g}x together"
                    )
                    if _are_of_counts(case, weights):
                        return Fit(cause, evidence)
                    # The name stays: a declared per-replica divisor must not excuse a factor.
                    return Fit(cause, evidence, fix=fix_of(_BY_COUNTS))
    return None


def _are_of_counts(case: Case, weights: Weights) -> bool:
    """Return whether one device weights the replicas by their numbers of examples, or these numbers are not known.

    Otherwise it divides by something else than the number of examples: valid tokens, or weights.
    """
    counts = case.sizes
    if len(counts) != case.replicas or not sum(counts):
        return True
    return weights.are([weights.total * count / sum(counts) for count in counts])


def scaled_sum(case: Case) -> Fit | None:
    """Test as :func:`scaled_parts` if an optimizer, whose rule is not known, gets the replicas' gradients to sum."""
    source = next((s for s in case.sources if s.stage is GradientStage.APPLIED), None)
    if source is None or case.pulls or case.replicas == 1 or not tell_apart(case, source):
        return None
    weights = solve(source.own, source.parts, case.gradient_slack)
    if weights is None or not weights.all_positive:
        return None
    for factor, cause in _factors(case):
        if weights.total_is(case.replicas / factor) and not weights.are([1 / factor] * case.replicas):
            shares = ", ".join(f"{weight:.3g}" for weight in weights.values)
            return Fit(
                cause,
                f"one device's gradient is the sum of the {source} the replicas weighted by ({shares}), and the "
                f"optimizer adds them up: {factor:.4g}x together",
            )
    return None


def scaled_variables(case: Case) -> Fit | None:
    """Test for N (or 1/N) times the gradient in only some variables: one term, or one path, of several is wrong."""
    wrong = [m for m in case.effective if not m.is_right]
    for factor, cause in _factors(case):
        fitting = [m for m in wrong if reproduces([m], lambda m: factor * m.ours, factor)]  # noqa: B023
        if not any(np.count_nonzero(np.abs(m.ours) > m.slack) > 1 for m in fitting):
            continue
        names = ", ".join(m.variable.name for m in fitting[:3])
        evidence = f"{factor:.4g} x the single-device {fitting[0].label} reproduces {names}"
        others = len(case.effective) - len(wrong)
        if len(fitting) == len(wrong):
            return Fit(cause, f"{evidence}; the other {others} weight(s) are right", grounds=Grounds.RATIO)
        return Fit(
            cause,
            f"{evidence}; other weights differ in another way, as if only one of several terms were wrong",
            grounds=Grounds.PATTERN,
        )
    return None


def data_part_scaled(case: Case) -> Fit | None:
    """Test for N (or 1/N) times the data's gradient, with regularization or weight decay counted correctly."""
    for factor, cause in _factors(case):
        informative = 0
        for motion in case.effective:
            # theirs - ours = (factor - 1) * (ours + c * W), so the remainder must be parallel to the weights.
            remainder = (motion.theirs[0] - motion.ours) / (factor - 1) - motion.ours
            slack = motion.slack * max(1.0, factor) / abs(factor - 1)
            c = along_weights(motion, remainder, slack)
            if c is None:
                break
            informative += bool(c) and tells_direction(motion)
        else:
            if informative:
                return Fit(
                    cause, f"{factor:.4g} x the data's gradient plus unscaled weight decay reproduces the update"
                )
    return None


def regularization(case: Case) -> Fit | None:
    """Test for an excess that is parallel to the weights themselves: a penalty that counts more than once."""
    # A penalty on the weights is the same on all replicas, so it cannot make them differ.
    if case.replicas == 1 or any(motion.components_differ for motion in case.effective):
        return None
    parallel = []
    for motion in case.effective:
        for theirs in motion.theirs:
            c = along_weights(motion, theirs - motion.ours, motion.slack)
            if c is None:
                return None
            if c and tells_direction(motion):
                parallel.append(f"{motion.variable.name}: {c:.4g} x W")
    if not parallel:
        return None
    excess = ", ".join(list(dict.fromkeys(parallel))[:3])
    return Fit(
        "regularization-scaled-by-replica-count",
        f"the excess over the single-device {case.effective[0].label} is parallel to the weights: {excess}",
    )


def penalised_variables(case: Case) -> Fit | None:
    """Test for a difference of only those weights whose layers have a regularizer."""
    layers = case.distributed.ranks[0].layers if case.distributed.ranks else ()
    names = [layer.name for layer in layers if any(key.endswith("_regularizer") for key in layer.settings)]
    motions = case.effective
    off = [m for m in motions if not m.is_right]
    # If all weights differ, something other than a regularizer may be wrong.
    if not off or not names or case.replicas == 1 or len(off) == len(motions):
        return None
    if not all(any(name in m.variable.name.split("/") for name in names) for m in off):
        return None
    if not all(map(all_finite, (theirs for m in off for theirs in m.theirs))):
        return None
    differing = ", ".join(m.variable.name for m in off[:3])
    return Fit(
        "regularization-scaled-by-replica-count",
        f"of {len(motions)} weights only those with a regularizer differ: {differing}",
        grounds=Grounds.PATTERN,
    )


def along_weights(motion: Motion, vector: Float, slack: float) -> float | None:
    """Return ``c`` of ``vector = c * W`` or ``c * sign(W)``; 0 if it is only rounding, ``None`` if neither fits."""
    if magnitude(vector) <= slack:
        return 0.0
    for direction in (motion.before, np.sign(motion.before)):
        c = coefficient(vector, direction)
        if c is not None and difference(vector, c * direction).error <= slack:
            return c
    return None


def tells_direction(motion: Motion) -> bool:
    """Return whether the weights have more than one entry, so that they have a direction."""
    return int(np.count_nonzero(motion.before)) >= 2


def scaled_beside_randomness(case: Case) -> Fit | None:
    """Test for a factor N by the sizes of the losses and of the gradient, if random layers change every gradient."""
    if case.replicas == 1 or not (random_sources(case) or plain_normalization(case)):
        return None
    ours = norm(np.array([norm(m.ours) for m in case.effective]))
    theirs = norm(np.array([norm(m.theirs[0]) for m in case.effective]))
    losses = [batch.loss for batch in case.distributed.batches(case.step)]
    desired = case.reference.ranks[0].steps[case.step - 1].loss
    if len(losses) != case.replicas or not desired or not ours or not theirs or any(loss is None for loss in losses):
        return None
    by_loss = sum(loss for loss in losses if loss is not None) / desired
    if by_loss <= 0:
        return None
    # Express both ratios as powers of N. Half a power is the border to the next.
    powers = [float(np.log(ratio) / np.log(case.replicas)) for ratio in (by_loss, theirs / ours)]
    for power, cause in CAUSES.items():
        if all(abs(found - power) < 0.5 for found in powers):
            reason = (
                f"the update is {theirs / ours:.3g}x, the sum of the replicas' losses {by_loss:.3g}x that of one device"
            )
            return Fit(cause, f"consistent with it: {reason}", grounds=Grounds.PATTERN)
    return None
