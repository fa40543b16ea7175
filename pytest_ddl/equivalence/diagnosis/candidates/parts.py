"""Candidates for a wrong loss: each replica's gradient is right, but they do not add up to that of the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit, Source, reproduces
from pytest_ddl.equivalence.diagnosis.candidates.data import counted_another_number_of_times
from pytest_ddl.equivalence.diagnosis.candidates.shared import (
    adds_up,
    combined,
    computed_alone,
    factor_of,
    factors_alone,
    is_one,
    random_sources,
    silent_replicas,
    tells,
)
from pytest_ddl.equivalence.diagnosis.candidates.terms import (
    INVERSE,
    SCALED,
    are_alike,
    divided_too_often,
    mean_term,
    summed_term,
    terms_of,
)
from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.arrays import (
    all_finite,
    coefficient,
    difference,
    flat,
    magnitude,
    ratio_of_norms,
)
from pytest_ddl.equivalence.evidence.combination import Weights, solve
from pytest_ddl.equivalence.evidence.gradients import calls
from pytest_ddl.equivalence.evidence.observe import is_uneven, update
from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.messages import listed
from pytest_ddl.records import GradientStage

MASKED = "masked-loss-normalised-per-replica"
_ABOUT = 0.25
"""Largest relative distance from the number of replicas of a ratio that is called about this number."""


def empty_replica(case: Case) -> Fit | None:
    """Test for fewer examples than replicas, so that empty replicas count in the divisor."""
    empty = case.sizes.count(0)
    if not empty or empty == len(case.sizes):
        return None
    factor = (len(case.sizes) - empty) / len(case.sizes)
    evidence = f"{empty} of {len(case.sizes)} replicas had no example"
    for value in (factor, 1 / factor):
        if reproduces(case.effective, lambda m, value=value: value * m.ours, value):  # type: ignore[misc]
            evidence += f", and {value:.4g} x the single-device update reproduces the change"
            return Fit("empty-replica", evidence, grounds=Grounds.RATIO)
    return Fit("empty-replica", evidence, grounds=Grounds.PATTERN, also=("mean-of-replica-means",))


def counted_without_weight(case: Case) -> Fit | None:
    """Test for replicas whose examples count nothing, and which still count as one part in the mean of the parts.

    One device divides by the weights of all examples. If only one replica has any, its gradient is N times that of the
    update, as it also is if the program divides by the number of replicas too often.
    """
    source = _used(case)
    silent = silent_replicas(source) if source is not None else []
    if source is None or not silent or 0 in case.sizes:
        return None
    share, heard = _share(case, source), [part for i, part in enumerate(source.parts) if i not in silent]
    weights = solve(source.own, heard, case.gradient_slack)
    if share is None or weights is None or not weights.all_positive or not weights.total_is(share * case.replicas):
        return None
    which = listed([f"replica {replica}" for replica in silent])
    evidence = (
        f"the gradient of {which} is 0; one device's gradient is the sum of those of the others weighted by "
        f"{weights.total:.4g} together, and the update weights each by {share:.4g}"
    )
    also = (INVERSE,) if len(heard) == 1 else ()
    return Fit(MASKED, evidence, grounds=Grounds.PATTERN, also=also)


def shares_of_examples(case: Case) -> Fit | None:
    """Test whether the update weights all replicas equally, although the gradient of one device does not.

    One device weights them, for example, by their number of examples.
    """
    source = _used(case)
    if source is None or 0 in case.sizes:
        return None
    share = _share(case, source)
    weights = solve(source.own, source.parts, case.gradient_slack)
    if share is None or weights is None or not weights.all_positive:
        return None
    # The weights have the same sum as those of the update: the scale is right, and only the shares are wrong.
    if not weights.total_is(share * case.replicas) or weights.are([share] * case.replicas):
        return None
    evidence = _described(source, weights, share)
    if _are_by_size(case, weights, share):
        return Fit(
            "mean-of-replica-means", f"{evidence}, as the replicas had {case.sizes} examples", approximation=True
        )
    return Fit(MASKED, evidence)


def _are_by_size(case: Case, weights: Weights, share: float) -> bool:
    """Return whether one device weights the replicas by their numbers of examples, which differ."""
    counts = case.sizes
    if len(counts) != case.replicas or len(set(counts)) == 1:
        return False
    return weights.are([share * case.replicas * size / sum(counts) for size in counts])


def shares_of_some(case: Case) -> Fit | None:
    """Test whether the update weights the replicas equally, although one device does not, in only some variables.

    Other variables do not show it, because several terms of the loss, or statistics of the whole batch, act on them.
    """
    source = _used(case)
    if source is None or 0 in case.sizes:
        return None
    share = _share(case, source)
    off = [motion.variable for motion in case.pulls if not motion.is_right and motion.variable.index in source.own]
    found: list[tuple[str, Weights]] = []
    for variable in off:
        weights = solve({variable.index: source.own[variable.index]}, source.parts, case.gradient_slack)
        if weights is not None:
            found.append((variable.name, weights))
    if share is None or not found or len(found) == len(case.pulls):
        return None
    if any(
        not weights.all_positive or not weights.total_is(share * case.replicas) or weights.are([share] * case.replicas)
        for _name, weights in found
    ):
        return None
    names = ", ".join(name for name, _weights in found[:3])
    evidence = f"for {names}, {_described(source, found[0][1], share)}"
    if all(_are_by_size(case, weights, share) for _name, weights in found):
        evidence += f", as the replicas had {case.sizes} examples"
        return Fit("mean-of-replica-means", evidence, grounds=Grounds.PATTERN)
    return Fit(MASKED, evidence, grounds=Grounds.PATTERN)


def normalised_by_its_part(case: Case) -> Fit | None:
    """Test whether each replica divides by a number of its own part, for example by its longest sequence.

    One device's gradient is a weighted sum of the replicas' gradients. If one device trains on only a replica's
    examples, it computes the gradient of this replica, up to one factor for all replicas.
    """
    source = _used(case)
    if source is None:
        return None
    weights = solve(source.own, source.parts, case.gradient_slack)
    if weights is None or not weights.all_positive or weights.are([weights.values[0]] * case.replicas):
        return None
    factors = factors_alone(case, source)
    if len(factors) != case.replicas:
        return None
    first = factors[0]
    if not all(factor and first and is_one(factor / first) for factor in factors):
        return None
    return Fit(
        MASKED,
        f"{_described(source, weights, _share(case, source) or 1.0)}; one device that trains on only a replica's "
        "examples gets the gradient of this replica",
    )


def _described(source: Source, weights: Weights, share: float) -> str:
    shares = ", ".join(f"{weight:.4g}" for weight in weights.values)
    return (
        f"one device's gradient is the sum of the {source} the replicas weighted by ({shares}), "
        f"and the update weights each by {share:.4g}"
    )


def _used(case: Case) -> Source | None:
    """Return the recorded gradients, preferably as computed, if the update is a multiple of their sum."""
    computed = [source for source in case.sources if source.stage is GradientStage.COMPUTED]
    for source in computed or case.sources:
        if case.replicas > 1 and case.pulls and _share(case, source) is not None:
            return source
    return None


def _share(case: Case, source: Source) -> float | None:
    """Return which weight, 1, 1/N or N for N replicas, gives the update from these gradients; ``None`` if none fits."""
    for share in (1.0, 1.0 / case.replicas, float(case.replicas)):
        summed = combined(source, [share] * case.replicas)
        factor = max(1.0, share) * case.replicas
        if all(
            difference(theirs, summed.get(motion.variable.index, np.zeros_like(theirs))).error <= motion.slack * factor
            for motion in case.pulls
            for theirs in motion.theirs
        ):
            return share
    return None


def coupled(case: Case) -> Fit | None:
    """Test for a loss that couples examples: no weighting of the replicas' gradients gives that of one device.

    If the loss takes the first examples of its batch, one device has the gradient of only some replicas. That no
    weighting fits is so too if a replica changed something before its forward pass. Only runs on each replica's
    examples decide.
    """
    source = _used(case)
    if source is None or not case.same_examples or 0 in case.sizes:
        return None
    weights = solve(source.own, source.parts, case.gradient_slack)
    if weights is not None and (not weights.omitted or silent_replicas(source)):
        return None
    if not tells(case, source):
        return None
    if case.layers("BatchNormalization*") or random_sources(case) or not _as_often(case, source):
        return None
    share = _share(case, source) or 1.0
    told = _is_coupled_as_told(case, source)
    off = [m for m in case.pulls if not m.is_right]
    if not told and len(off) < sum(magnitude(m.ours) > m.slack for m in case.pulls) and share * case.replicas != 1.0:
        terms = terms_of(case, source)
        if not terms or are_alike(case, terms):
            return None  # a term of only some weights may be a penalty, which is no term of the examples
    nearer = (mean_term, summed_term, divided_too_often, shares_of_some, counted_another_number_of_times)
    if any(candidate(case) is not None for candidate in nearer):
        return None
    of_one_device = "no weighting of these makes the gradient of one device"
    if weights is not None:
        of_one_device = f"one device has nothing of {listed([f'replica {replica}' for replica in weights.omitted])}"
    evidence = f"the update is the sum of the {source} the replicas, and {of_one_device}"
    one_device = "one device that trains on only a replica's examples"
    also = _masks(case)
    if told:
        # A mean over the valid positions of each part changes with the parts too.
        one_device, also = f"{one_device} and reads {case.replicas} as the number of replicas", (MASKED,)
    elif not all(computed_alone(case, source).values()) or len(case.slices) != case.replicas:
        return Fit("batch-coupled-loss", evidence, also=also, grounds=Grounds.EXCLUSION)
    besides, described = _scale_besides(case, source, share)
    # The effect of each example on the others is not recomputed. A replica may also leave out some of its examples.
    evidence += (
        f"{described}; {one_device} gets the gradient of this replica. So the loss or weight of an example comes from "
        "other examples too (statistics, class weights), or the replica function leaves out or selects examples"
    )
    return Fit("batch-coupled-loss", evidence, also=also, grounds=Grounds.PATTERN, besides=besides)


def _is_coupled_as_told(case: Case, source: Source) -> bool:
    """Return whether each replica's gradient is that of its examples, for a device that reads N replicas, and couples.

    A term may be divided by N, so that one device gets another sum of terms. Parts ``p`` of a replica's examples show
    whether a term depends on the others: their gradients add up to the replica's, apart from means over each part and
    from penalties. For one mean, what they add up to in excess is a multiple of what the replicas lack.
    """
    if sorted(case.told) != list(range(case.replicas)):
        return False
    close, excess = case.close(4 * case.replicas), []
    for replica, part in enumerate(source.parts):
        runs = [gradients.by_replica(run, case.step, source.stage).get(0, {}) for run in case.told[replica]]
        if len(runs) < 3 or not all(set(part) <= set(run) for run in runs):
            return False
        whole, *pieces = runs
        if not all(close(index, whole[index], value) for index, value in part.items()):
            return False
        excess.append({index: np.sum([p[index] for p in pieces], axis=0) - value for index, value in part.items()})
    if any(all(close(i, e, np.zeros_like(e)) for i, e in one.items()) for one in excess) or are_alike(case, excess):
        return False
    summed = combined(source, [1.0] * case.replicas)
    shared = [index for index in summed if index in source.own]
    lacking = {index: source.own[index] - summed[index] for index in shared}
    added = {index: np.sum([one[index] for one in excess if index in one], axis=0) for index in shared}
    factor = coefficient(flat(list(lacking.values())), flat(list(added.values()))) or 0.0
    return not all(close(index, value, factor * added[index]) for index, value in lacking.items())


def _scale_besides(case: Case, source: Source, share: float) -> tuple[tuple[str, ...], str]:
    """Return the cause and its description if the scale of the update is wrong too.

    The coupling changes the size as well, so that a wrong size shows nothing. The factor between each replica's
    gradient and the one that one device computes for the same examples shows whether the program divides by N.
    """
    number, factors = case.replicas, factors_alone(case, source)
    if len(factors) != number or any(factor is None for factor in factors):
        return (), ""
    summed = combined(source, [share] * number)
    moving = [index for index, own in source.own.items() if magnitude(own) > case.gradient_slack.get(index, 0.0)]
    ratios = [ratio_of_norms(summed[index], source.own[index]) for index in moving if index in summed]
    if all(is_one(factor and factor * share) for factor in factors) and _are_about(ratios, number):
        return (SCALED,), f", and all are about {number} times too large: each replica's loss counts in full, too"
    if all(is_one(factor and factor * share * number) for factor in factors):
        by = f"the program divides by the number of replicas, {number}"
        if _divides_by_the_batch(case, source):
            return (INVERSE,), f"; {by}, and by the size of the global batch, too"
        if _are_about(ratios, 1 / number):
            return (INVERSE,), f", and all are about {number} times too small; {by}, once too often"
    return (), ""


def _divides_by_the_batch(case: Case, source: Source) -> bool:
    """Return whether the first replica's examples have a larger gradient if they are the whole global batch."""
    run, alone = case.smaller, case.slices.get(0)
    if run is None or alone is None:
        return False
    ours, theirs = ([batch.examples for batch in record.batches(case.step)] for record in (alone, run))
    if ours != theirs or not all(ours):
        return False
    sliced, whole = (factor_of(case, source, source.parts[0], record) for record in (alone, run))
    return bool(sliced and whole) and is_one((sliced or 0.0) / (whole or 1.0) / case.replicas)


def _are_about(ratios: Sequence[float | None], desired: float) -> bool:
    return bool(ratios) and all(ratio is not None and abs(ratio / desired - 1.0) <= _ABOUT for ratio in ratios)


def _as_often(case: Case, source: Source) -> bool:
    """Return whether every replica computed gradients as often as one device did, and so at the same weights."""
    ours, theirs = (calls(record, case.step, source.stage) for record in (case.reference, case.distributed))
    return len(theirs) == case.replicas * len(ours)


def _masks(case: Case) -> tuple[str, ...]:
    return (MASKED,) if masked_layers(case) else ()


def masked_layers(case: Case) -> list[str]:
    layers = case.distributed.ranks[0].layers if case.distributed.ranks else ()
    return [layer.name for layer in layers if layer.type == "Masking" or layer.settings.get("mask_zero")]


def masking(case: Case) -> Fit | None:
    """Test for masked positions: each replica takes the mean over its own valid positions."""
    layers = masked_layers(case)
    if not layers or case.replicas == 1:
        return None
    evidence = f"consistent with it: {', '.join(layers[:3])} masks positions"
    return Fit(MASKED, evidence, grounds=Grounds.PATTERN)


def counted_equally(case: Case) -> Fit | None:
    """Test whether one device makes the same step if all replicas count equally in an uneven batch."""
    run = case.tolerance.equal_parts
    if run is None or run.num_steps < case.step or not is_uneven(case.distributed, case.step):
        return None
    if not reproduces([*case.weights, *case.slots], lambda motion: update(run, motion.variable.index, case.step)):
        return None
    evidence = f"one device makes the same step if the replicas' {case.sizes} examples count equally as parts"
    return Fit("mean-of-replica-means", evidence, approximation=True)


def mean_of_means(case: Case) -> Fit | None:
    """Test for replicas with different numbers of examples that count equally."""
    counts = case.sizes
    if not counts or 0 in counts or len(set(counts)) == 1 or any(m.components_differ for m in case.weights):
        return None
    if not all(all_finite(motion.theirs[0]) for motion in case.weights):
        return None
    if any(source.stage is GradientStage.COMPUTED and adds_up(case, source) for source in case.sources):
        return None  # the gradients that the replicas computed are right, whatever their numbers of examples
    even = [step for step in range(1, case.step) if not is_uneven(case.distributed, step)]
    evidence = [f"the replicas had {counts} examples"]
    if even:
        evidence.append(f"the {len(even)} even step(s) before agree with one device")
    if _losses_are_means(case):
        evidence.append("each replica's loss is the mean over its own examples")
    # Without the replicas' own gradients nothing is recomputed. Only other evidence can excuse a difference.
    return Fit(
        "mean-of-replica-means",
        f"consistent with it: {'; '.join(evidence)}",
        grounds=Grounds.PATTERN,
        approximation=len(evidence) > 1 and not _contradicted(case),
        also=(MASKED,) if case.layers("Embedding", "Masking") else (),
    )


def _contradicted(case: Case) -> bool:
    """Return whether the replicas' gradients were recorded and contradict this cause."""
    for source in case.sources:
        if source.stage is GradientStage.COMPUTED and case.pulls and tells(case, source):
            return max((magnitude(value) for value in source.own.values()), default=0.0) > 0
    return False


def _losses_are_means(case: Case) -> bool:
    batches = case.distributed.batches(case.step)
    desired = case.reference.ranks[0].steps[case.step - 1].loss
    if desired is None or len(batches) != case.replicas or any(batch.loss is None for batch in batches):
        return False
    total = sum(batch.size for batch in batches)
    weighted = sum(batch.size * (batch.loss or 0.0) for batch in batches) / total
    # A program may divide by the number of replicas before it sums.
    return any(
        abs(scale * weighted - desired) <= scale * case.tolerance.loss(case.step).value for scale in (1, case.replicas)
    )
