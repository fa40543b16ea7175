"""Find the moving statistics of batch normalization in Keras 3, and recompute them from each replica's own examples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Float, difference
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import of_kind, sizes
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import LayerRecord, TrainingRecord, VariableKind, VariableRecord

_MEAN, _VARIANCE = "moving_mean", "moving_variance"


def is_moving_statistic(record: TrainingRecord, name: str) -> bool:
    """Return whether a variable is a moving statistic of Keras 3 that is not synchronized over replicas."""
    *path, last = name.split("/")
    return last in (_MEAN, _VARIANCE) and bool(path) and path[-1] in {layer.name for layer in _plain(record)}


def are_of_replicas(comparison: Comparison, step: int) -> bool:
    """Return whether every replica's moving statistics after a step are those that its own examples give.

    Runs of one device on only these examples show it for all layers. Without such runs, the replicas' statistics must
    give those of one device together, which holds only for layers that get equal inputs in both runs.
    """
    (reference, distributed), tolerance = comparison.records, comparison.tolerance
    layers = _statistics(distributed)
    parts = tolerance.slices_at(step).replicas
    if not layers or step > min(reference.num_steps, distributed.num_steps):
        return False
    if parts:
        return all(
            _is_of_its_examples(distributed, parts, variable, tolerance, step)
            for _layer, *both in layers
            for variable in both
        )
    return all(_give_one_device(reference, distributed, tolerance, step, *layer) for layer in layers)


def _plain(record: TrainingRecord) -> list[LayerRecord]:
    return [
        layer
        for rank in record.ranks[:1]
        for layer in rank.layers
        if layer.type == "BatchNormalization"
        and layer.settings.get("synchronized") is False
        and layer.settings.get("by_keras")
        and "keras" in rank.versions
    ]


def _statistics(record: TrainingRecord) -> list[tuple[LayerRecord, VariableRecord, VariableRecord]]:
    """Return each batch normalization of Keras 3 that is not synchronized, with its mean and its variance."""
    named = {variable.name: variable for variable in of_kind(record, VariableKind.STATE)}
    pairs = [(named[name], named.get(f"{name.removesuffix(_MEAN)}{_VARIANCE}")) for name in named]
    return [
        (layer, mean, variance)
        for layer in _plain(record)
        for mean, variance in pairs
        if mean.name.split("/")[-2:] == [layer.name, _MEAN] and variance is not None
    ]


def _copies(record: TrainingRecord, variable: VariableRecord, step: int) -> dict[int, Float]:
    parts = record.components(variable.index, step)
    return {replica: np.asarray(value, np.float64) for _rank, replica, value in parts}


def _is_of_its_examples(
    distributed: TrainingRecord,
    parts: Mapping[int, TrainingRecord],
    variable: VariableRecord,
    tolerance: Tolerance,
    step: int,
) -> bool:
    bound = tolerance.variable(variable.index, step).value
    copies = _copies(distributed, variable, step)
    alone = {replica: run.value(variable.index, step) for replica, run in parts.items() if run.num_steps >= step}
    return set(copies) == set(alone) and all(
        (value := alone[replica]) is not None and difference(copy, np.asarray(value, np.float64)).error <= bound
        for replica, copy in copies.items()
    )


def _give_one_device(
    reference: TrainingRecord,
    distributed: TrainingRecord,
    tolerance: Tolerance,
    step: int,
    layer: LayerRecord,
    mean: VariableRecord,
    variance: VariableRecord,
) -> bool:
    """Return whether the replicas' statistics give those of one device, by the law of total variance."""
    momentum, counts = layer.settings.get("momentum"), sizes(distributed, step)
    desired = [reference.value(variable.index, step) for variable in (mean, variance)]
    if not isinstance(momentum, float) or not 0 < momentum < 1 or any(value is None for value in desired):
        return False
    own: list[dict[int, Float]] = []
    for variable in (mean, variance):
        before, after = (_copies(distributed, variable, at) for at in (step - 1, step))
        if set(before) != set(after) or set(after) != set(counts) or not sum(counts.values()):
            return False
        own.append({r: (after[r] - momentum * before[r]) / (1 - momentum) for r in after})
    means, variances = own
    weights = {replica: count / sum(counts.values()) for replica, count in counts.items()}
    whole = sum(weights[r] * means[r] for r in weights)
    spread = sum(weights[r] * (variances[r] + np.square(means[r] - whole)) for r in weights)
    for variable, value, actual in zip((mean, variance), (whole, spread), desired, strict=True):
        old = reference.value(variable.index, step - 1)
        if old is None or actual is None:
            return False
        predicted = momentum * np.asarray(old, np.float64) + (1 - momentum) * value
        # Dividing by 1 - momentum enlarges the rounding of each copy, and multiplying makes it small again.
        if (
            difference(predicted, np.asarray(actual, np.float64)).error
            > 4 * tolerance.variable(variable.index, step).value
        ):
            return False
    return True
