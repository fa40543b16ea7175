"""Candidates for wrong clipping: on parts of the batch, with a limit for another size, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit, Motion, Source, reproduces
from pytest_ddl.equivalence.diagnosis.candidates.shared import (
    adds_up,
    combined,
    configured_limit,
    grounds_behind,
    limits_of,
    total_of,
)
from pytest_ddl.equivalence.evidence.arrays import Float, coefficient, difference, flat, magnitude, norm
from pytest_ddl.equivalence.evidence.combination import Clip, clips_between, global_norm, solve
from pytest_ddl.equivalence.evidence.gradients import sparse_variables
from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.records import GradientStage

BEFORE = "gradient-clipped-before-aggregation"
LOST = "clipping-lost"
MEAN = "mean-of-replica-means"
_OWN = 1e-3
"""Smallest relative difference of factors that replicas compute from their own gradients."""


def clipped_parts(case: Case) -> Fit | None:
    """Test for an update from the replicas' gradients that were cut one by one and then summed (or averaged)."""
    if case.replicas == 1 or not case.pulls:
        return None
    for source in case.sources:
        for clip in _limits(case, source):
            cut = Source(source.stage, source.own, [clip.apply(part) for part in source.parts])
            if not any(clip.active(part) for part in source.parts) and not clip.active(total_of(source)):
                continue
            for share, how in ((1.0, "sum"), (1.0 / case.replicas, "mean")):
                summed = combined(cut, [share] * case.replicas)
                # Clipping explains something only if the whole is larger than the limit or a part is cut.
                whole = combined(source, [share] * case.replicas)
                if not any(clip.active(part) for part in source.parts) and not clip.active(whole):
                    continue
                if _reproduced(case, summed, share * case.replicas):
                    lost = () if any(clip.active(part) for part in source.parts) else (LOST,)
                    sizes = ", ".join(f"{clip.size(part):.4g}" for part in source.parts)
                    evidence = f"the {how} of the {source} the replicas (sizes {sizes}), each cut by {clip}, "
                    fit = Fit(BEFORE, f"{evidence}reproduces the update", also=lost)
                    fit = _grounded(case, source, fit, share)
                    return fit if _is_of_one_device(case, clip) else replace(fit, is_grounded=False)
    return None


def clipped_at_another_size(case: Case) -> Fit | None:
    """Test for a limit that was applied to 1/N (or N) times the gradient, which was scaled back afterwards."""
    for source in case.sources if case.replicas > 1 and case.pulls else ():
        if not adds_up(case, source):
            continue  # the gradients themselves have another scale
        if _received_whole(case, source):
            continue  # the whole gradient was cut, perhaps by another limit
        for clip in limits_of(case) if source is case.sources[-1] else ():
            for factor in (1.0 / case.replicas, float(case.replicas)):
                cut = clip.apply({index: factor * value for index, value in source.own.items()})
                if _reproduced(case, {index: value / factor for index, value in cut.items()}, 1.0 / factor):
                    return Fit(
                        BEFORE,
                        f"{clip} was applied to {factor:.4g} x the single-device gradient, which was scaled back "
                        "afterwards: that reproduces the update",
                    )
    return None


def _received_whole(case: Case, source: Source) -> bool:
    """Return whether the program's own reductions gave the replicas the gradient of the whole batch."""
    received = [np.ravel(r.received) for r in case.distributed.ranks[0].steps[case.step - 1].reductions]
    close = case.close(case.replicas)
    return any(
        value.size == own.size > 1 and close(index, np.asarray(value, np.float64), own.ravel())
        for index, own in source.own.items()
        for value in received
    )


def clipped_by_another_norm(case: Case) -> Fit | None:
    """Test for gradients that a limit on a norm has scaled, if a gradient is sparse.

    TensorFlow takes the norm of a sparse gradient from the rows as they are handed over, so that a row that occurs
    twice counts as two. Records have the sums of such rows. So only the factors show, not whether they are right.
    """
    clip, sparse = configured_limit(case), sparse_variables(case.distributed, case.step)
    if clip is None or clip.kind == "clipvalue" or case.replicas == 1 or not case.pulls or not sparse:
        return None
    source = case.sources[-1] if case.sources else None
    if source is None or not adds_up(case, source) or any(m.components_differ for m in case.pulls):
        return None
    pulls = {motion.variable.index: motion for motion in case.pulls}
    groups = [list(pulls)] if clip.kind == "global_clipnorm" else [[index] for index in pulls]
    factors: list[tuple[float, ...]] = []
    for group in groups:
        ours = solve({i: pulls[i].ours for i in group}, [source.own], case.gradient_slack)
        theirs = solve({i: pulls[i].theirs[0] for i in group}, source.parts, case.gradient_slack)
        for weights in (ours, theirs):
            if weights is None or not weights.all_positive or max(weights.values) > 1.0 + max(weights.slack):
                return None
        assert ours is not None
        assert theirs is not None
        if not theirs.are([ours.values[0]] * case.replicas):
            factors.append((*ours.values, *theirs.values))
    if not factors:
        return None
    own, *parts = (f"{factor:.4g}" for factor in factors[0])
    return Fit(
        BEFORE,
        f"{clip} scales the gradient of one device by {own}; the update is the sum of the {source} the replicas, "
        f"scaled by {', '.join(parts)}",
        grounds=Grounds.RATIO,
    )


def scaled_parts(case: Case) -> Fit | None:
    """Test for replicas that scale their right gradients by numbers of their own before they are summed.

    One device scales too, for example by the norm of the gradient: no constant factor is the reason.
    """
    sources = {source.stage: source for source in case.sources}
    computed, applied = (sources.get(stage) for stage in (GradientStage.COMPUTED, GradientStage.APPLIED))
    if case.replicas == 1 or computed is None or applied is None or not adds_up(case, computed):
        return None
    if adds_up(case, applied) or not _reproduced(case, total_of(applied), case.replicas):
        return None
    names = []
    for index in computed.own:
        pairs = [(computed.own, applied.own), *zip(computed.parts, applied.parts, strict=True)]
        if not all(index in before and index in after for before, after in pairs):
            return None
        factors = [_factor(case, index, before[index], after[index]) for before, after in pairs]
        if any(factor is None or factor < 0 for factor in factors):
            return None
        known = [factor for factor in factors if factor is not None]
        if abs(known[0] - 1.0) > _OWN and max(known[1:]) - min(known[1:]) > _OWN * max(known):
            names += [motion.variable.name for motion in case.weights if motion.variable.index == index]
    if not names:
        return None
    return Fit(
        BEFORE,
        f"each replica multiplies its gradient of {', '.join(names[:3])} by a number of its own before the sum, and "
        "one device multiplies its own by another",
        grounds=Grounds.PATTERN,
        fix=SPECIAL["norms-of-parts"],
    )


def _factor(case: Case, index: int, before: Float, after: Float) -> float | None:
    """Return the factor between two gradients of a weight; ``None`` if there is no single one.

    A gradient of zeros has any factor.
    """
    if not np.any(after):
        return 0.0 if np.any(before) else 1.0
    factor = coefficient(after, before)
    if factor is None:
        return None
    return factor if case.close(max(1.0, abs(factor)))(index, after, factor * before) else None


def unlimited(case: Case) -> Fit | None:
    """Test for an update by the whole, uncut gradient, if one device cuts it."""
    if not case.pulls:
        return None
    for source in case.sources:
        for clip in limits_of(case):
            if clip.active(source.own) and _reproduced(case, source.own, 1.0):
                return Fit(LOST, f"the single-device gradient without {clip} reproduces the update")
    return None


def another_limit(case: Case) -> Fit | None:
    """Test for a whole gradient that is cut by a larger limit than on one device."""
    if not case.pulls or any(motion.components_differ for motion in case.pulls):
        return None
    theirs = {motion.variable.index: motion.theirs[0] for motion in case.pulls}
    for source in case.sources:
        both = {index: theirs[index] for index in source.own if index in theirs}
        own = {index: source.own[index] for index in both}
        for ours in limits_of(case):
            for clip in clips_between(own, both, case.close()):
                if clip.kind == ours.kind and clip.limit > ours.limit and _reproduced(case, clip.apply(own), 1.0):
                    factor = clip.limit / ours.limit
                    return Fit(
                        LOST,
                        f"the single-device gradient cut by {clip}, which is {factor:.4g} times the limit on one "
                        "device, reproduces the update",
                    )
    return None


def equal_sizes(case: Case) -> Fit | None:
    """Test for replicas' gradients whose weights are inversely proportional to their norms, as after clipping.

    This finds clipping in an update by hand.
    """
    for source in case.sources if case.pulls and case.replicas > 1 else ():
        theirs = {m.variable.index: m.theirs[0] for m in case.pulls if not m.components_differ}
        if len(theirs) != len(case.pulls) or set(theirs) != set(source.own):
            continue
        weights = solve(theirs, source.parts, case.gradient_slack)
        needed = solve(source.own, source.parts, case.gradient_slack)
        if weights is None or needed is None or min(weights.values) <= 0:
            continue
        sizes = [global_norm(part) for part in source.parts]
        cut = [weight * size for weight, size in zip(weights.values, sizes, strict=True)]
        allowed = sum(slack * size for slack, size in zip(weights.slack, sizes, strict=True))
        if max(sizes) - min(sizes) > allowed and max(cut) - min(cut) <= allowed:
            norms = ", ".join(f"{size:.4g}" for size in sizes)
            evidence = f"the {source} the replicas (norms {norms}) all enter the update with the same norm"
            return _grounded(case, source, Fit(BEFORE, evidence), *_shares(case))
    return None


def equal_sizes_of_weights(case: Case) -> Fit | None:
    """Test as :func:`equal_sizes`, if each weight's gradient is cut (or normalized) separately."""
    for source in case.sources if case.pulls and case.replicas > 1 else ():
        equal, possible = [], True
        for motion in (m for m in case.pulls if not m.components_differ):
            index = motion.variable.index
            parts = [{index: part[index]} for part in source.parts if index in part]
            weights = (
                solve({index: motion.theirs[0]}, parts, case.gradient_slack) if len(parts) == case.replicas else None
            )
            if weights is None:
                possible = possible and (motion.ours.size <= case.replicas or not np.any(motion.theirs[0]))
                continue
            # In the order of size, larger parts have smaller weights, but none enters with less than a smaller part.
            order = sorted(range(case.replicas), key=lambda r: norm(parts[r][index]))
            sizes = [norm(parts[r][index]) for r in order]
            weight = [weights.values[r] for r in order]
            entered = [w * size for w, size in zip(weight, sizes, strict=True)]
            allowed = max(weights.slack) * max(sizes) * 2
            falls = all(b <= a + 2 * max(weights.slack) for a, b in pairwise(weight))
            possible = possible and min(weight) > 0 and falls and all(b >= a - allowed for a, b in pairwise(entered))
            if sizes[-1] - sizes[0] > allowed and entered[-1] - entered[0] <= allowed:
                equal.append(motion.variable.name)
        if equal and possible:
            evidence = f"the {source} the replicas enter the update of {', '.join(equal[:3])} with equal norms"
            return _grounded(case, source, Fit(BEFORE, evidence), *_shares(case))
    return None


def equal_sizes_by_variable(case: Case) -> Fit | None:
    """Test as :func:`equal_sizes` for each variable with any rate, if each is clipped or normalized separately."""
    for source in case.sources if case.replicas > 1 else ():
        cut, example = 0, ""
        for motion in case.weights:
            index = motion.variable.index
            parts = [{index: part[index]} for part in source.parts if index in part]
            # Weights of the parts always fit a variable with few elements.
            if motion.components_differ or len(parts) != case.replicas or motion.ours.size <= 2 * case.replicas:
                continue
            sizes = [norm(part[index]) for part in parts]
            scale = norm(motion.theirs[0]) / max(sizes) if max(sizes) > 0 else 0.0
            slack = motion.slack + scale * case.gradient_slack[index]
            weights = solve({index: motion.theirs[0]}, parts, {index: slack})
            if weights is None:
                return None
            shares = [weight * size for weight, size in zip(weights.values, sizes, strict=True)]
            allowed = sum(error * size for error, size in zip(weights.slack, sizes, strict=True))
            if max(shares) - min(shares) <= allowed < max(sizes) * max(map(abs, weights.values)) - abs(shares[0]):
                cut += 1
                example = example or f"{motion.variable.name}: norms {', '.join(f'{size:.4g}' for size in sizes)}"
            elif max(weights.values) - min(weights.values) > sum(weights.slack):
                return None
        if cut:
            evidence = f"the {source} the replicas all enter the update of a weight with the same norm ({example})"
            return _grounded(case, source, Fit(BEFORE, evidence), *_shares(case))
    return None


def _is_of_one_device(case: Case, clip: Clip) -> bool:
    """Return whether a limit is that of one device, or its part for a replica, if one device shows a limit.

    A clipped gradient that is multiplied afterwards looks like one with another limit.
    """
    known = [other.limit for other in limits_of(case) if other.kind == clip.kind]
    parts = [limit / number for limit in known for number in (1, case.replicas)]
    return not known or any(abs(clip.limit - part) <= _OWN * part for part in parts)


def _grounded(case: Case, source: Source, fit: Fit, *shares: float) -> Fit:
    """Return a fit with what is known about the gradients that were cut: right, or right but for the parts' sizes."""
    if grounds_behind(case, source, *shares):
        return fit
    if grounds_behind(case, source, *shares, by_size=True):
        evidence = f"{fit.evidence}; the replicas count equally, and one device counts their {case.sizes} examples"
        return replace(fit, evidence=evidence, besides=(MEAN,))
    return replace(fit, is_grounded=False)


def _shares(case: Case) -> tuple[float, float]:
    """Return the shares that a replica's gradient may have: a program sums the gradients or takes their mean."""
    return 1.0, 1.0 / case.replicas


def _limits(case: Case, source: Source) -> Iterator[Clip]:
    """Yield the limits of the optimizer or of one device, and those that act between two stages on a replica."""
    yield from limits_of(case)
    if len(case.sources) == 2 and source is case.sources[0]:
        for before, after in zip(source.parts, case.sources[1].parts, strict=True):
            both = set(before) & set(after)
            yield from clips_between({i: before[i] for i in both}, {i: after[i] for i in both}, case.close())


def _reproduced(case: Case, predicted: dict[int, Float], scale: float) -> bool:
    def predict(motion: Motion) -> Float | None:
        return predicted.get(motion.variable.index, np.zeros_like(motion.ours))

    return reproduces(case.pulls, predict, max(1.0, scale))


def by_updates(case: Case) -> Fit | None:
    """Test by the updates only, without gradients, if the optimizer clips parts of the batch or not at all."""
    clip = configured_limit(case)
    if clip is None or case.replicas == 1 or not case.weights:
        return None
    configured = f"the optimizer has {clip}"
    ours, theirs = flat([m.ours for m in case.weights]), flat([m.theirs[0] for m in case.weights])
    slack = sum(motion.slack for motion in case.weights)
    if clip.kind == "clipvalue":
        # Entries that the limit did not cut must agree. Those at the limit must exceed it.
        ceiling = magnitude(ours)
        inside = np.abs(ours) < ceiling - slack
        lost = magnitude(theirs) > ceiling + slack and magnitude((theirs - ours)[inside]) <= slack
    else:
        each = [(m.ours, m.theirs[0], m.slack) for m in case.weights]
        groups = each if clip.kind == "clipnorm" else [(ours, theirs, slack)]
        lost = norm(theirs) > norm(ours) and all(_parallel(*group) for group in groups)
    if lost:
        return Fit(LOST, f"{configured}, and the update is that of one device without the limit")
    rate = case.setting("learning_rate")
    size = ""
    if rate:
        reached, desired = (norm(change) / (rate * clip.limit) for change in (theirs, ours))
        size = f"; |dW| / (lr * limit) is {reached:.4g}, on one device {desired:.4g}"
    # Each clipped part is at most as long as the limit, so their sum is not much longer than that times the replicas.
    if norm(theirs) > (case.replicas + 1) * norm(ours):
        return None
    evidence = f"{configured}; the update is not a multiple of the single-device one{size}"
    return Fit(BEFORE, evidence, grounds=Grounds.PATTERN)


def _parallel(ours: Float, theirs: Float, slack: float) -> bool:
    c = coefficient(theirs, ours)
    return c is not None and c > 0 and difference(theirs, c * ours).error <= slack * max(1.0, c)
