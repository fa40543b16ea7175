"""The candidate causes of a wrong update, each a function that recomputes what it would have done.

Add a cause by adding a function and listing it in ``CANDIDATES``: the order is from specific and
recomputed to merely consistent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pytest_ddl.checks.arrays import Float, all_finite, coefficient, difference, magnitude, mean, norm
from pytest_ddl.checks.case import Candidate, Case, Fit, Motion, reproduces
from pytest_ddl.checks.observe import is_uneven, of_kind
from pytest_ddl.records import VariableKind

_RANDOM_LAYERS = ("Dropout", "SpatialDropout*", "AlphaDropout", "Gaussian*", "Random*")


def not_finite(case: Case) -> Fit | None:
    """NaN where one device is finite: an empty replica divides zero by zero."""
    broken = [m for m in case.weights if all_finite(m.ours) and not all(map(all_finite, m.theirs))]
    if not broken:
        return None
    name = broken[0].variable.name
    if 0 in case.sizes:
        return Fit(
            "empty-replica",
            f"{name} is not finite, and a replica had no example: sizes {case.sizes}",
            exact=False,
        )
    if not all(all(map(all_finite, m.theirs)) == all_finite(m.theirs[0]) for m in broken):
        return Fit("non-finite-not-synchronised", f"{name} is not finite on some replicas only", exact=False)
    return None


def standing_still(case: Case) -> Fit | None:
    """Some variables do not move at all, the others as on one device."""
    still = [m for m in case.weights if magnitude(m.ours) > m.slack and not any(np.any(theirs) for theirs in m.theirs)]
    if not still:
        return None
    names = ", ".join(motion.variable.name for motion in still[:3])
    return Fit("variable-did-not-move", f"the change of {names} is exactly 0 on every replica")


def frozen_moved(case: Case) -> Fit | None:
    """A frozen variable follows the optimizer, which one device does not let it."""
    moved = [m for m in case.frozen if not np.any(m.ours) and any(np.any(theirs) for theirs in m.theirs)]
    if not moved:
        return None
    names = ", ".join(motion.variable.name for motion in moved[:3])
    return Fit("frozen-variable-moved", f"{names} stands still on one device")


def _scaled(case: Case, factor: float) -> str | None:
    """Say where a factor on the gradient shows: in the updates, or in the slots of adaptive optimizers."""
    if reproduces(case.weights, lambda m: factor * m.ours, factor):
        return f"{factor:.4g} x the single-device update reproduces all {len(case.weights)} trainable variables"
    slots = [motion for motion in case.slots if magnitude(motion.ours) > motion.slack]

    def first_or_second_moment(motion: Motion) -> Float:
        errors = {power: difference(motion.theirs[0], factor**power * motion.ours).error for power in (1, 2)}
        return factor ** min(errors, key=lambda power: errors[power]) * motion.ours

    # Moments are linear (quadratic) in the gradient only as long as they start from zero.
    if case.step == 1 and slots and reproduces(slots, first_or_second_moment, factor**2):
        times = f"{factor:.4g}x (first) and {factor**2:.4g}x (second)"
        return f"the optimizer's moments are {times} those of one device"
    return None


def scaled_by_replicas(case: Case) -> Fit | None:
    """N times the update: a mean per replica, summed over replicas; or reduced twice."""
    told = _scaled(case, float(case.replicas)) if case.replicas > 1 else None
    return Fit("gradient-scaled-by-replica-count", told) if told else None


def scaled_by_inverse(case: Case) -> Fit | None:
    """1/N of the update: divided by the number of replicas twice."""
    told = _scaled(case, 1.0 / case.replicas) if case.replicas > 1 else None
    return Fit("gradient-scaled-by-inverse-replica-count", told) if told else None


def _along_weights(motion: Motion, vector: Float, slack: float) -> float | None:
    """The ``c`` of ``vector = c * W`` or ``c * sign(W)``, 0 for rounding, ``None`` where neither fits."""
    if magnitude(vector) <= slack:
        return 0.0
    for direction in (motion.before, np.sign(motion.before)):
        c = coefficient(vector, direction)
        if c is not None and difference(vector, c * direction).error <= slack:
            return c
    return None


def _tells_direction(motion: Motion) -> bool:
    return int(np.count_nonzero(motion.before)) >= 2


def regularization(case: Case) -> Fit | None:
    """What is left over points along the weights themselves: a penalty counted more than once."""
    if case.replicas == 1:
        return None
    told = []
    for motion in case.weights:
        for theirs in motion.theirs:
            c = _along_weights(motion, theirs - motion.ours, motion.slack)
            if c is None:
                return None
            if c and _tells_direction(motion):
                told.append(f"{motion.variable.name}: {c:.4g} x W")
    if not told:
        return None
    expected = ""
    rate, decay = case.setting("learning_rate"), case.setting("l2")
    if rate and decay:
        expected = f" (lr * 2 * l2 * (N - 1) = {rate * 2 * decay * (case.replicas - 1):.4g})"
    excess = ", ".join(list(dict.fromkeys(told))[:3])
    return Fit(
        "regularization-scaled-by-replica-count",
        f"the excess over the single-device update is parallel to the weights: {excess}{expected}",
    )


def data_part_scaled(case: Case) -> Fit | None:
    """N or 1/N times the data's gradient, with regularisation or weight decay counted correctly."""
    if case.replicas == 1:
        return None
    for factor, cause in (
        (float(case.replicas), "gradient-scaled-by-replica-count"),
        (1.0 / case.replicas, "gradient-scaled-by-inverse-replica-count"),
    ):
        informative = 0
        for motion in case.weights:
            # theirs - ours = (factor - 1) * (ours + c * W): what remains must be along the weights.
            remainder = (motion.theirs[0] - motion.ours) / (factor - 1) - motion.ours
            slack = motion.slack * max(1.0, factor) / abs(factor - 1)
            c = _along_weights(motion, remainder, slack)
            if c is None:
                break
            informative += bool(c) and _tells_direction(motion)
        else:
            if informative:
                return Fit(
                    cause,
                    f"{factor:.4g} x the data's gradient plus unscaled weight decay reproduces the update",
                )
    return None


def not_aggregated(case: Case) -> Fit | None:
    """Replicas (or workers) moved each on its own, and together they make the single-device update."""
    for motions, what in ((case.weights, "updates"), (case.slots, "optimizer slots")):
        apart = [motion for motion in motions if motion.components_differ]
        if not apart:
            continue
        parts = [
            ("mean", [1.0 / len(apart[0].theirs)] * len(apart[0].theirs)),
            ("sum", [1.0] * len(apart[0].theirs)),
        ]
        total = sum(case.sizes)
        if total and len(case.sizes) == len(apart[0].theirs):
            parts.append(("mean weighted by examples", [size / total for size in case.sizes]))
        for name, shares in parts:
            # Of a weight's slots, second moments are no sums: it is enough that one of them combines.
            fitting = {_owner(motion) for motion in apart if _combines(motion, shares)}
            if fitting == {_owner(motion) for motion in apart}:
                return Fit(
                    "gradient-not-aggregated",
                    f"replicas differ, and the {name} of their {what} is that of one device",
                )
    return None


def _owner(motion: Motion) -> int:
    owner = motion.variable.slot_of
    return motion.variable.index if owner is None else owner


def _combines(motion: Motion, shares: Sequence[float]) -> bool:
    if len(motion.theirs) != len(shares):
        return False
    return difference(mean(motion.theirs, shares), motion.ours).error <= motion.slack * max(1.0, sum(shares))


def empty_replica(case: Case) -> Fit | None:
    """Fewer examples than replicas: the empty ones count in the divisor."""
    empty = case.sizes.count(0)
    if not empty or empty == len(case.sizes):
        return None
    factor = (len(case.sizes) - empty) / len(case.sizes)
    told = f"{empty} of {len(case.sizes)} replicas had no example"
    for value in (factor, 1 / factor):
        if reproduces(case.weights, lambda m, value=value: value * m.ours, value):  # type: ignore[misc]
            return Fit("empty-replica", f"{told}, and {value:.4g} x the single-device update reproduces the change")
    return Fit("empty-replica", told, exact=False, also=("mean-of-replica-means",))


def clipping(case: Case) -> Fit | None:
    """The optimizer clips: was the limit applied to parts of the batch, or not at all?"""
    kind = next((k for k in ("clipnorm", "global_clipnorm", "clipvalue") if case.setting(k)), None)
    if kind is None or case.replicas == 1 or not case.weights:
        return None
    limit, rate = case.setting(kind), case.setting("learning_rate")
    told = f"the optimizer has {kind}={limit}"
    ours, theirs = _flat([m.ours for m in case.weights]), _flat([m.theirs[0] for m in case.weights])
    slack = sum(motion.slack for motion in case.weights)
    if kind == "clipvalue":
        ceiling = magnitude(ours)
        inside = np.abs(ours) < ceiling - slack
        lost = magnitude(theirs) > ceiling + slack and magnitude((theirs - ours)[inside]) <= slack
    else:
        groups = (
            [(m.ours, m.theirs[0], m.slack) for m in case.weights] if kind == "clipnorm" else [(ours, theirs, slack)]
        )
        lost = norm(theirs) > norm(ours) and all(_parallel(*group) for group in groups)
    if lost:
        return Fit("clipping-lost", f"{told}, and the update is that of one device without the limit")
    size = ""
    if limit and rate:
        reached, desired = (norm(change) / (rate * limit) for change in (theirs, ours))
        size = f"; |dW| / (lr * limit) is {reached:.4g}, on one device {desired:.4g}"
    if norm(theirs) > (case.replicas + 1) * norm(ours):
        return None
    return Fit(
        "gradient-clipped-before-aggregation",
        f"{told}; the update is not a multiple of the single-device one{size}",
        exact=False,
    )


def _flat(values: Sequence[Float]) -> Float:
    return np.concatenate([np.ravel(value) for value in values])


def _parallel(ours: Float, theirs: Float, slack: float) -> bool:
    c = coefficient(theirs, ours)
    return c is not None and c > 0 and difference(theirs, c * ours).error <= slack * max(1.0, c)


def from_slices(case: Case) -> Fit | None:
    """With the update of each replica's examples alone at hand: is their plain mean what happened?"""
    if len(case.slices) != case.replicas or case.replicas == 1:
        return None
    parts = {motion.variable.index: case.slice_updates(motion.variable.index) for motion in case.weights}
    one, number = 1.0, case.replicas
    for replica in range(number):
        shares = [one if other == replica else 0.0 for other in range(number)]
        if reproduces(case.weights, _combination(parts, shares)):
            told = f"every replica applied the update of replica {replica}'s examples alone"
            return Fit("gradient-not-aggregated", told)
    for name, share in (("mean", one / number), ("sum", one)):
        if reproduces(case.weights, _combination(parts, [share] * number), share * number):
            told = f"the {name} of the updates of each replica's examples alone reproduces the change"
            return _of_parts(case, told)
    return None


def _combination(parts: dict[int, list[Float]], shares: list[float]) -> Callable[[Motion], Float | None]:
    def predict(motion: Motion) -> Float | None:
        updates = parts[motion.variable.index]
        return mean(updates, shares) if len(updates) == len(shares) else None

    return predict


def _of_parts(case: Case, told: str) -> Fit:
    """Which cause makes a step a plain combination of its parts: what in the program acts on a part."""
    if any(case.setting(k) for k in ("clipnorm", "global_clipnorm", "clipvalue")):
        return Fit("gradient-clipped-before-aggregation", told)
    if case.layers("BatchNormalization*"):
        return Fit("per-replica-normalization", told)
    if case.layers(*_RANDOM_LAYERS):
        # A replica's examples alone draw what the replica drew: all replicas began the same stream.
        return Fit("random-stream-repeated-across-replicas", told)
    if is_uneven(case.distributed, case.step):
        return Fit("mean-of-replica-means", told, approximation=True)
    return Fit("masked-loss-normalised-per-replica", told, also=("batch-coupled-loss",))


def mean_of_means(case: Case) -> Fit | None:
    """Replicas with different numbers of examples count equally."""
    counts = case.sizes
    if not counts or 0 in counts or len(set(counts)) == 1 or any(m.components_differ for m in case.weights):
        return None
    if not all(all_finite(motion.theirs[0]) for motion in case.weights):
        return None
    even = [step for step in range(1, case.step) if not is_uneven(case.distributed, step)]
    told = [f"the replicas had {counts} examples"]
    if even:
        told.append(f"the {len(even)} even step(s) before agree with one device")
    if _losses_are_means(case):
        told.append("each replica's loss is the mean over its own examples")
    # Without the replicas' own gradients this is not recomputed: it needs evidence to excuse a difference.
    return Fit(
        "mean-of-replica-means",
        f"consistent with it: {'; '.join(told)}",
        exact=False,
        approximation=len(told) > 1,
        also=("masked-loss-normalised-per-replica",) if case.layers("Embedding", "Masking") else (),
    )


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


def normalisation(case: Case) -> Fit | None:
    """Batch normalisation by each replica's own statistics acts from the first step on."""
    layers = [
        layer.name
        for layer in (case.distributed.ranks[0].layers if case.distributed.ranks else ())
        if layer.type.startswith("BatchNormalization")
        and not layer.settings.get("synchronized")
        and layer.settings.get("trainable", True)
    ]
    if not layers or case.replicas == 1 or case.step != 1:
        return None
    return Fit(
        "per-replica-normalization",
        f"consistent with it: {', '.join(layers[:3])} is not synchronised",
        exact=False,
    )


def random_streams(case: Case) -> Fit | None:
    """Dropout and its like: other random numbers than one device draws."""
    layers = case.layers(*_RANDOM_LAYERS)
    if not layers or case.replicas == 1:
        return None
    told = f"consistent with it: the model draws random numbers in {', '.join(layers[:3])}"
    for variable in of_kind(case.distributed, VariableKind.STATE):
        values = [value for _r, _c, value in case.distributed.components(variable.index, case.step)]
        if "seed_generator" in variable.name and len(values) > 1:
            if all(np.array_equal(value, values[0]) for value in values):
                told += f"; the state of {variable.name} is the same on all {len(values)} replicas"
                return Fit("random-stream-repeated-across-replicas", told, exact=False)
            break
    return Fit(
        "random-stream-differs-across-replicas",
        told,
        exact=False,
        also=("random-stream-repeated-across-replicas",),
    )


def masking(case: Case) -> Fit | None:
    """Masked positions: a mean over what is valid on each replica."""
    found = case.distributed.ranks[0].layers if case.distributed.ranks else ()
    layers = [layer.name for layer in found if layer.type == "Masking" or layer.settings.get("mask_zero")]
    if not layers or case.replicas == 1:
        return None
    told = f"consistent with it: {', '.join(layers[:3])} masks positions"
    return Fit("masked-loss-normalised-per-replica", told, exact=False)


CANDIDATES: list[Candidate] = [
    not_finite,
    standing_still,
    empty_replica,
    scaled_by_replicas,
    scaled_by_inverse,
    not_aggregated,
    regularization,
    data_part_scaled,
    frozen_moved,
    from_slices,
    clipping,
    masking,
    mean_of_means,
    random_streams,
    normalisation,
]
