"""Overwrite gradients with values that are not finite, in the steps and on the replicas that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytest_ddl.training.callback_ops import replica_id
from pytest_ddl.training.gradient_calls import GradientSource
from pytest_ddl.training.settings import RunSettings


def planted(
    sources: Sequence[GradientSource | None], gradients: Sequence[Any], to_plant: Callable[[int], Sequence[float]]
) -> list[Any]:
    """Return the gradients. Overwrite a gradient in each execution in which ``to_plant(replica)`` is not 0 for it."""
    import tensorflow as tf

    replica = tf.cast(replica_id(), tf.int32)
    chosen = tf.numpy_function(lambda number: np.array(to_plant(int(number)), np.float64), [replica], tf.float64)
    chosen.set_shape([len(gradients)])
    return [
        _overwritten(gradient, chosen[position]) if source is not None else gradient
        for position, (source, gradient) in enumerate(zip(sources, gradients, strict=True))
    ]


def plan(settings: RunSettings, step: int, replica: int) -> dict[int, float]:
    """Return, for a step and a replica, index of the variable -> value that overwrites its gradient."""
    return {
        injection.variable: injection.value
        for injection in settings.inject
        if injection.step == step and (injection.replica in (None, replica) or settings.is_reference)
    }


def _overwritten(gradient: Any, planted: Any) -> Any:
    """Return the gradient itself if ``planted`` is 0, else a gradient with that value in each element."""
    import tensorflow as tf

    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_overwritten(gradient.values, planted), gradient.indices, gradient.dense_shape)
    return tf.where(tf.equal(planted, 0.0), gradient, tf.cast(planted, gradient.dtype))
