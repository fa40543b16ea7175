"""Candidates for gradients that were not summed over replicas: all, those of some variables, or one replica's only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.candidates import parts as parts_of_loss
from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit, Motion, Source, agrees, reproduces
from pytest_ddl.equivalence.diagnosis.candidates.shared import (
    CLIPS,
    adds_up,
    configured_limit,
    factors_alone,
    grounds_behind,
    plain_normalization,
    random_sources,
    tell_apart,
    total_of,
)
from pytest_ddl.equivalence.diagnosis.candidates.terms import summed_term
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, magnitude, mean
from pytest_ddl.equivalence.evidence.combination import solve
from pytest_ddl.equivalence.evidence.observe import combines, is_uneven
from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.records import GradientStage

CAUSE = "gradient-not-aggregated"


def overwritten_attributes(case: Case) -> Fit | None:
    """Test whether one replica overwrote an attribute that another one, which waited in a collective, still uses."""
    places = {name: line for rank in case.distributed.ranks for name, line in rank.facts.get("overwritten", {}).items()}
    computed = [source for source in case.sources if source.stage is GradientStage.COMPUTED]
    if not places or any(adds_up(case, source) for source in computed):
        return None
    named = ", ".join(f"{name} ({line})" for name, line in list(places.items())[:3])
    evidence = f"one replica set {named} while another one waited in a collective of the same object"
    return Fit("attribute-shared-by-replicas", evidence, grounds=Grounds.PATTERN)


def own_gradient(case: Case) -> Fit | None:
    """Test for variables that moved by only a part of the gradient, using the replicas' recorded gradients."""
    for source in case.sources if case.replicas > 1 else ():
        if source.stage is GradientStage.APPLIED and not tell_apart(case, source):
            continue  # reduced before they were handed over: not a part of the gradient
        # If the replicas have equal gradients, N times one of them is their sum.
        scales = (1.0, 1.0 / case.replicas, *([float(case.replicas)] if tell_apart(case, source) else []))
        for how, part_of in _parts_used(case, source):
            apart, unexplained = [], False
            for motion in case.pulls:
                if motion.is_right:
                    continue
                paired = len(motion.theirs) in (1, case.replicas)
                fits = paired and not _alike(case, source, motion) and _moved_by(motion, part_of, scales)
                unexplained = unexplained or not fits
                apart += [motion] if fits else []
            if apart and not unexplained:
                names = ", ".join(motion.variable.name for motion in apart[:3])
                whole = f"all {len(apart)} weights" if len(apart) == len(case.pulls) else names
                evidence = f"{whole} moved {how}: the {source} replicas reproduce the update of each"
                return Fit(CAUSE, evidence, is_grounded=grounds_behind(case, source, 1.0, 1.0 / case.replicas))
    return None


def handed_over_zeros(case: Case) -> Fit | None:
    """Test for a replica that computes a gradient and hands only zeros to the optimizer, while others do not."""
    sources = {source.stage: source for source in case.sources}
    computed, applied = (sources.get(stage) for stage in (GradientStage.COMPUTED, GradientStage.APPLIED))
    if computed is None or applied is None or not case.pulls:
        return None
    silent = [r for r, part in enumerate(applied.parts) if not any(map(np.any, part.values()))]
    left_out = [r for r in silent if any(map(np.any, computed.parts[r].values()))]
    if not left_out or len(silent) == case.replicas:
        return None
    summed = total_of(applied)
    if not all(m.variable.index in summed for m in case.pulls) or not reproduces(
        case.pulls, lambda m: summed[m.variable.index]
    ):
        return None
    replicas = ", ".join(map(str, left_out))
    return Fit(
        CAUSE,
        f"replica {replicas} computes a gradient and hands zeros to the optimizer: the update is the sum of the other "
        "gradients",
        fix=SPECIAL["shared-decision"],
    )


def _parts_used(case: Case, source: Source) -> list[tuple[str, Callable[[int, int], Float | None]]]:
    """List the parts of the gradient that may have moved component ``position`` of variable ``index``."""
    parts = source.parts
    groups = [rank.replicas for rank in case.distributed.ranks for _replica in rank.replicas]

    def of_replica(index: int, position: int) -> Float | None:
        return parts[position].get(index)

    def of_worker(index: int, position: int) -> Float | None:
        values = [parts[replica][index] for replica in groups[position] if index in parts[replica]]
        return sum(values[1:], values[0]) if values else None

    def of_one(replica: int) -> Callable[[int, int], Float | None]:
        return lambda index, _position: parts[replica].get(index)

    used: list[tuple[str, Callable[[int, int], Float | None]]] = [("by each replica's own gradient", of_replica)]
    if 1 < len(case.distributed.ranks) < case.replicas and len(groups) == case.replicas:
        used.append(("by the sum over each worker's own replicas", of_worker))
    # If no other replica contributes anything, the part of one replica is the whole.
    sharing = [replica for replica, part in enumerate(parts) if any(map(np.any, part.values()))]
    if len(sharing) > 1:
        used += [(f"only by the gradient of replica {replica}", of_one(replica)) for replica in sharing]
    return used


def _alike(case: Case, source: Source, motion: Motion) -> bool:
    """Return whether this weight's gradient is equal on all replicas, because it was reduced, while others differ."""
    if not tell_apart(case, source):
        return False
    values = [part.get(motion.variable.index) for part in source.parts]
    close, first = case.close(), values[0]
    return first is not None and all(v is not None and close(motion.variable.index, v, first) for v in values[1:])


def _moved_by(motion: Motion, part_of: Callable[[int, int], Float | None], scales: Sequence[float]) -> bool:
    """Return whether every component moved by its part, plain or scaled as a mean or a sum of copies."""
    if not all(map(all_finite, motion.theirs)):
        return False
    parts = [part_of(motion.variable.index, position) for position in range(len(motion.theirs))]
    if any(part is None or part.shape != motion.ours.shape for part in parts):
        return False
    if max(magnitude(part) for part in parts if part is not None) <= motion.slack:
        return False
    return any(
        all(
            part is not None and difference(theirs, scale * part).error <= motion.slack * max(1.0, scale)
            for theirs, part in zip(motion.theirs, parts, strict=True)
        )
        for scale in scales
    )


def drifting_apart(case: Case) -> Fit | None:
    """Test for replicas (or workers) that each moved separately and together make the single-device update."""
    for motions, what in (
        (case.effective, case.effective[0].label + "s" if case.effective else ""),
        (case.slots, "optimizer slots"),
    ):
        apart = [motion for motion in motions if motion.components_differ]
        if not apart or len(apart[0].theirs) < 2:
            continue
        count = len(apart[0].theirs)
        shares = [("mean", [1.0 / count] * count), ("sum", [1.0] * count)]
        total = sum(case.sizes)
        if total and len(case.sizes) == count:
            shares.append(("mean weighted by examples", [size / total for size in case.sizes]))
        for name, weights in shares:
            # Second moments are no sums. It is enough that one of a weight's slots combines.
            fitting = {_owner(motion) for motion in apart if _combines(motion, weights)}
            if fitting == {_owner(motion) for motion in apart}:
                return Fit(CAUSE, f"replicas differ, and the {name} of their {what} is that of one device")
    return None


def without_reduction(case: Case) -> Fit | None:
    """Test for replicas that compute other gradients and get the whole gradient from no reduction.

    They differ afterwards, unless the variables combine what the replicas assign. The update cannot be recomputed from
    the gradient if its rule is not known, for example that of RMSprop by hand.
    """
    source = case.computed
    apart = [motion for motion in case.weights if motion.components_differ]
    combined_later = not apart and [m for m in case.weights if not m.is_right and combines(m.variable)]
    apart = apart or combined_later or []
    by_hand = GradientStage.APPLIED not in case.parts  # the reductions of an optimizer are not recorded
    if source is None or not apart or not by_hand or case.in_gradient_units or not tell_apart(case, source):
        return None
    summed = total_of(source)
    if any(_is_reduced(case, summed[m.variable.index]) for m in apart if m.variable.index in summed):
        return None
    names = ", ".join(motion.variable.name for motion in apart[:3])
    evidence = f"{names} differ between the replicas, whose gradients differ, and no reduction gave their sum or mean"
    if combined_later:
        evidence = (
            "no reduction gave the sum or mean of the replicas' gradients: each replica computes an update from its "
            f"own gradient, and the aggregation of {names} combines only the results"
        )
    return Fit(CAUSE, evidence, grounds=Grounds.PATTERN)


def _is_reduced(case: Case, summed: Float) -> bool:
    """Return whether a reduction of the step gave the sum of the gradients of all replicas, or a multiple of it.

    Every single number, such as the loss, is a multiple of another one.
    """
    for reduction in case.distributed.ranks[0].steps[case.step - 1].reductions:
        received = np.asarray(reduction.received, np.float64).ravel()
        if received.size != summed.size or summed.size == 1 or not all_finite(received):
            continue
        c = coefficient(received, summed.ravel())
        if c and difference(received, c * summed.ravel()).error <= 1e-4 * magnitude(received):
            return True
    return False


def partly_apart(case: Case) -> Fit | None:
    """Test for replicas that differ because a part of an update was not reduced: some elements, or one of its terms.

    On each replica ``theirs = shared + own``, and on one device ``ours = shared + sum(own)``. So ``sum(theirs) - ours``
    is ``(N - 1) * shared``. It is 0 for an element that is only the replica's own. For a reduced element it is
    ``(N - 1)`` times the update itself. For a term of several it is a multiple of a value that the replicas got back
    from a reduction.
    """
    apart = [motion for motion in case.effective if motion.components_differ]
    if not apart or not all(map(all_finite, (theirs for m in case.effective for theirs in m.theirs))):
        return None
    if any(not motion.components_differ and not motion.is_right for motion in case.effective):
        return None
    names = []
    for motion in apart:
        count = len(motion.theirs)
        if count != case.replicas:
            return None
        slack = count * motion.slack
        shared = np.sum(motion.theirs, axis=0) - motion.ours
        reduced = np.all([np.abs(theirs - motion.ours) <= motion.slack for theirs in motion.theirs], axis=0)
        own = np.abs(shared) <= slack
        # If each replica takes the mean of its own part, the mean of the replicas makes the update, not their sum.
        own_mean = np.abs(shared - (count - 1) * motion.ours) <= slack
        if np.all(reduced | own) or np.all(reduced | own_mean):
            names.append(f"{int(np.count_nonzero(~reduced))} of {reduced.size} elements of {motion.variable.name}")
        elif _is_received(case, shared, slack):
            names.append(f"a term of {motion.variable.name}")
        else:
            return None
    return Fit(
        CAUSE,
        f"replicas differ: {', '.join(names[:3])} moved by each replica's own part, which add up to the update of one "
        "device; the rest is reduced",
    )


def _is_received(case: Case, shared: Float, slack: float) -> bool:
    """Return whether an array is a multiple of a value that the program got back from one of its reductions."""
    reductions = case.distributed.ranks[0].steps[case.step - 1].reductions
    for reduction in reductions:
        received = np.asarray(reduction.received, np.float64) if reduction.received.size == shared.size > 1 else None
        if received is None or not all_finite(received):
            continue
        c = coefficient(shared.ravel(), received.ravel())
        if c and difference(shared.ravel(), c * received.ravel()).error <= 4 * slack:
            return True
    return False


def _owner(motion: Motion) -> int:
    owner = motion.variable.slot_of
    return motion.variable.index if owner is None else owner


def _combines(motion: Motion, shares: Sequence[float]) -> bool:
    if len(motion.theirs) != len(shares):
        return False
    return difference(mean(motion.theirs, shares), motion.ours).error <= motion.slack * max(1.0, sum(shares))


def from_slices(case: Case) -> Fit | None:
    """Test whether the update combines the updates that each replica's examples make separately."""
    if len(case.slices) != case.replicas or case.replicas == 1:
        return None
    parts_first = (parts_of_loss.coupled, parts_of_loss.counted_without_weight, summed_term)
    if any(nearer(case) is not None for nearer in parts_first):
        return None
    parts = {motion.variable.index: case.slice_updates(motion.variable.index) for motion in case.weights}
    one, number = 1.0, case.replicas
    for replica in range(number):
        shares = [one if other == replica else 0.0 for other in range(number)]
        if reproduces(case.weights, _combination(parts, shares)):
            evidence = f"every replica applied the update of only replica {replica}'s examples"
            return Fit(CAUSE, evidence)
    if case.computed is not None and adds_up(case, case.computed):
        return _processed(case, parts)
    if reproduces(case.weights, _combination(parts, [one / number] * number)):
        return _of_parts(case, "the mean of the updates of each replica's examples alone reproduces the change")
    if reproduces(case.weights, _combination(parts, [one] * number), number):
        evidence = "the sum of the updates of each replica's examples alone reproduces the change"
        if any(case.setting(kind) for kind in CLIPS):
            return Fit("gradient-clipped-before-aggregation", evidence)
        # It is N times their mean only if one device updates by the mean, which a coupled loss or a penalty does not.
        if all(agrees(m.ours, mean(parts[m.variable.index]), m) for m in case.weights):
            return Fit("gradient-scaled-by-replica-count", f"{evidence}: {number} times their mean")
    return None


def _processed(case: Case, parts: dict[int, list[Float]]) -> Fit | None:
    """Test for replicas that each process their right gradient, as one device with only their examples does.

    What they do is not recomputed. It may be a projection, a sign, or the choice of the largest entries. A number that
    multiplies the gradients of all replicas is none of these.
    """
    number = case.replicas
    applied = next((source for source in case.sources if source.stage is GradientStage.APPLIED), None)
    mixed = applied is not None and solve(applied.own, applied.parts, case.gradient_slack) is None
    if any(
        reproduces(case.weights, _combination(parts, [share] * number), number * share) for share in (1.0, 1 / number)
    ):
        grounds, what = Grounds.RECOMPUTED, "the updates of each replica's examples alone add up to the change"
    elif applied is not None and mixed and None not in factors_alone(case, applied):
        grounds = Grounds.PATTERN
        what = "one device that trains on only a replica's examples hands the optimizer the gradient of this replica"
    else:
        return None
    evidence = f"the gradients computed on the replicas add up to those of one device, and {what}"
    fix = None if configured_limit(case) else SPECIAL["norms-of-parts"]
    return Fit("gradient-clipped-before-aggregation", evidence, grounds=grounds, fix=fix)


def _combination(parts: dict[int, list[Float]], shares: list[float]) -> Callable[[Motion], Float | None]:
    def predict(motion: Motion) -> Float | None:
        updates = parts[motion.variable.index]
        # A part that is not finite makes every combination equal to an update that is not finite.
        if len(updates) != len(shares) or not all(map(all_finite, updates)):
            return None
        return mean(updates, shares)

    return predict


def _of_parts(case: Case, evidence: str) -> Fit:
    """Name the cause if a step is the mean of its parts, from those features of the program that act on a part."""
    if any(case.setting(kind) for kind in CLIPS):
        return Fit("gradient-clipped-before-aggregation", evidence)
    if plain_normalization(case):
        return Fit("per-replica-normalization", evidence)
    if random_sources(case):
        # A run on a replica's examples drew what the replica drew. So all replicas began the same stream.
        return Fit("random-stream-repeated-across-replicas", evidence)
    if is_uneven(case.distributed, case.step):
        return Fit("mean-of-replica-means", evidence, approximation=True)
    masked, coupled = "masked-loss-normalised-per-replica", "batch-coupled-loss"
    source = case.computed
    weights = solve(source.own, source.parts, case.gradient_slack) if source is not None else None
    if source is not None and (weights is None or not weights.all_positive):
        # Counts of valid examples weigh the gradients of replicas, and leave none out. A loss that selects examples
        # leaves out whole replicas, and sums of a layer or steps between two averages weigh nothing.
        return Fit(coupled, evidence, also=(masked,))
    return Fit(masked, evidence, also=(coupled,))
