"""Facts about a case that several families of candidates need."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Source, is_of_type
from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.arrays import Float, coefficient, flat
from pytest_ddl.equivalence.evidence.combination import Clip, clips_between, solve, weighted_sum
from pytest_ddl.records import GradientStage, LayerRecord, TrainingRecord

_RANDOM_LAYERS = ("Dropout", "SpatialDropout*", "AlphaDropout", "Gaussian*", "Random*")
_ALIKE = 1e-6
"""Largest relative difference of factors that are the same: a loss may be divided by a number in float32."""
CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")


def random_sources(case: Case) -> list[str]:
    """Return the names of the sources of random numbers in the runs; empty if randomness was switched off.

    The observed draws decide. Layers count only if draws could not be observed.
    """
    if "random" in case.neutralized:
        return []
    return draws_of(case.reference, case.distributed) or random_layers(case.distributed)


def draws_of(*records: TrainingRecord) -> list[str]:
    """Return the names of the random operations that were observed, each once."""
    draws = (draw for record in records for rank in record.ranks for step in rank.steps for draw in step.draws)
    return list(dict.fromkeys(draw.name for draw in draws))


def random_layers(record: TrainingRecord) -> list[str]:
    """Return the names of layers that may have drawn numbers without being observed."""
    if not record.ranks or all(rank.draws_observed for rank in record.ranks):
        return []
    return [layer.name for layer in record.ranks[0].layers if is_of_type(layer, *_RANDOM_LAYERS) and _can_draw(layer)]


def drew_unseen(record: TrainingRecord) -> bool:
    """Return whether a replica function drew numbers that could not be observed."""
    return any(rank.facts.get("drew_unseen") for rank in record.ranks)


def _can_draw(layer: LayerRecord) -> bool:
    """Return whether a layer's settings let it draw. Keras skips the draw if the rate is 0."""
    rates = [layer.settings[name] for name in ("rate", "stddev", "factor") if name in layer.settings]
    return not rates or any(rate != 0 for rate in rates)


def plain_normalization(case: Case) -> list[str]:
    """Return the names of batch normalization layers that use each replica's own statistics."""
    if "normalization" in case.neutralized:
        return []
    return [
        layer.name
        for layer in (case.distributed.ranks[0].layers if case.distributed.ranks else ())
        if is_of_type(layer, "BatchNormalization*")
        and not layer.settings.get("synchronized")
        and layer.settings.get("trainable", True)
    ]


def total_of(source: Source) -> dict[int, Float]:
    """Map each variable to the sum of the replicas' gradients."""
    return combined(source, [1.0] * len(source.parts))


def combined(source: Source, shares: list[float]) -> dict[int, Float]:
    """Map each variable to the weighted sum of the replicas' gradients."""
    indices = {index for part in source.parts for index in part}
    sums = ((index, weighted_sum(source.parts, shares, index)) for index in indices)
    return {index: value for index, value in sums if value is not None}


def tells(case: Case, source: Source) -> bool:
    """Return whether an existing weighting would have been found: the parts are no multiples of each other."""
    return solve(total_of(source), source.parts, case.gradient_slack) is not None


def silent_replicas(source: Source) -> list[int]:
    """Return the replicas whose gradients are zero in a step in which others' are not: weights of 0, or masks."""
    silent = [replica for replica, part in enumerate(source.parts) if not any(map(np.any, part.values()))]
    return silent if len(silent) < len(source.parts) else []


def has_silent_replicas(case: Case) -> bool:
    return case.computed is not None and bool(silent_replicas(case.computed))


def tell_apart(case: Case, source: Source) -> bool:
    """Return whether replicas differ in a gradient. Equal gradients were reduced, or come from equal data."""
    close, first = case.close(), source.parts[0]
    return any(not close(i, part[i], first[i]) for part in source.parts[1:] for i in first if i in part)


def computed_alone(case: Case, source: Source) -> dict[int, bool]:
    """Map each replica to whether its gradient is the one that one device computes for only its examples.

    The result is empty if one device did not train on each replica's examples. A mean over the replica's examples
    differs from a part of the global mean by one factor.
    """
    factors = factors_alone(case, source)
    return {replica: factor is not None for replica, factor in zip(sorted(case.slices), factors, strict=False)}


def factors_alone(case: Case, source: Source) -> list[float | None]:
    """Return for each replica its gradient divided by the one that one device computes for only its examples.

    An entry is ``None`` if no single factor fits. The result is empty if one device did not train on each replica's
    examples.
    """
    if len(case.slices) != case.replicas:
        return []
    runs = [case.slices[replica] for replica in sorted(case.slices)]
    return [factor_of(case, source, part, run) for part, run in zip(source.parts, runs, strict=True)]


def factor_of(case: Case, source: Source, part: Mapping[int, Float], run: TrainingRecord) -> float | None:
    """Return a replica's gradient divided by that of a run on one device; ``None`` if no single factor fits."""
    close = case.close(case.replicas)
    alone = gradients.by_replica(run, case.step, source.stage).get(0, {})
    shared = [i for i in part if i in alone and alone[i].shape == part[i].shape]
    factor = coefficient(flat([part[i] for i in shared]), flat([alone[i] for i in shared])) if shared else None
    if factor is None or len(shared) < len(part):
        return None
    return factor if all(close(i, part[i], factor * alone[i]) for i in shared) else None


def is_one(factor: float | None) -> bool:
    """Return whether a factor is 1, up to a divisor that the program keeps in float32."""
    return factor is not None and abs(factor - 1.0) <= _ALIKE


def odd_replicas(case: Case) -> list[int]:
    """Return the replicas whose gradient is not the one that one device computes for the same examples.

    The result is empty if that is so for all replicas, because the reason is then not how a replica treats examples.
    """
    source = case.computed
    alone = computed_alone(case, source) if source is not None else {}
    odd = [replica for replica, right in alone.items() if not right]
    return odd if len(odd) < len(alone) else []


def adds_up(case: Case, source: Source, share: float = 1.0, by_size: bool = False) -> bool:
    """Return whether the gradients of the replicas, each with the same share, add up to that of one device.

    :param by_size: True to give each replica a share by its number of examples, as means over them need.
    """
    sizes = case.sizes if by_size else [1] * case.replicas
    shares = [share * case.replicas * size / sum(sizes) for size in sizes]
    summed, close = combined(source, shares), case.close(case.replicas)
    return set(summed) == set(source.own) and all(close(i, summed[i], own) for i, own in source.own.items())


def grounds_behind(case: Case, source: Source, *shares: float, by_size: bool = False) -> bool:
    """Return whether gradients up to a stage are those of one device, in the sum or with another share of each replica.

    An update that is recomputed from wrong gradients shows how they were combined, and not that they are right.
    """
    if by_size and (len(case.sizes) != case.replicas or 0 in case.sizes or len(set(case.sizes)) == 1):
        return False
    stages = list(GradientStage)
    before = [other for other in case.sources if stages.index(other.stage) <= stages.index(source.stage)]
    return any(all(adds_up(case, other, share, by_size) for other in before) for share in shares or (1.0,))


def assigned_by_the_program(case: Case) -> list[str]:
    """Name the wrong weights if no tape of either run gave a gradient for any of them: the program assigns them.

    A target network is an example. What is wrong about gradients does not explain them.
    """
    trained = [
        {index for part in gradients.by_replica(record, case.step, GradientStage.COMPUTED).values() for index in part}
        for record in (case.reference, case.distributed)
    ]
    wrong = [motion.variable for motion in case.weights if not motion.is_right]
    if not all(trained) or any(variable.index in indices for variable in wrong for indices in trained):
        return []
    return [variable.name for variable in wrong]


def is_never_reduced(case: Case) -> bool:
    """Return whether an update by hand takes place in a step that reduces nothing larger than a number."""
    by_hand = GradientStage.COMPUTED in case.parts and GradientStage.APPLIED not in case.parts
    reductions = [r for rank in case.distributed.ranks for r in rank.steps[case.step - 1].reductions]
    return by_hand and bool(reductions) and all(np.size(reduction.given) == 1 for reduction in reductions)


def configured_limit(case: Case) -> Clip | None:
    """Return the limit that the optimizer was made with."""
    for kind in CLIPS:
        limit = case.setting(kind)
        if limit:
            return Clip(kind, limit)
    return None


def limits_of(case: Case) -> list[Clip]:
    """Return the limits that clipped gradients: that of the optimizer, or those that one device's gradients show.

    Every factor looks like a limit on the norm in one step. So other steps of one device must not contradict it.
    """
    configured = configured_limit(case)
    if configured is not None:
        return [configured]
    clips: dict[tuple[str, str], Clip] = {}
    for stage, (before, after) in enumerate(_changes_of_gradients(case)):
        both = set(before) & set(after)
        for clip in clips_between({i: before[i] for i in both}, {i: after[i] for i in both}, case.close()):
            if (clip.kind, f"{clip.limit:.6g}") not in clips and not _is_contradicted(case, clip, stage):
                clips[clip.kind, f"{clip.limit:.6g}"] = clip
    return list(clips.values())


def _changes_of_gradients(case: Case) -> list[tuple[dict[int, Float], dict[int, Float]]]:
    """List the gradients of one device before and after each part of the step that may clip them."""
    computed, applied = (case.own.get(stage) or {} for stage in GradientStage)
    moved = {m.variable.index: m.ours for m in case.pulls}
    return [(computed, applied), (applied, moved), (computed, moved)]


def _is_contradicted(case: Case, clip: Clip, stage: int) -> bool:
    """Return whether a limit does not explain how the same part of a step near this one changes gradients."""
    steps = [step for step in range(case.step - 1, case.step + 3) if 1 <= step <= case.reference.num_steps]
    for other in (Case.at(case, step) for step in steps if step != case.step):
        before, after = _changes_of_gradients(other)[stage]
        both = [index for index in before if index in after]
        cut, close = clip.apply({index: before[index] for index in both}), other.close()
        if not all(close(index, after[index], cut[index]) for index in both):
            return True
    return False
