"""Switch off the intended differences between replicas: random numbers, and statistics of a part of the batch.

These two may differ between a run on one device and a run under a strategy. If both are off in both runs, any
difference that remains is a defect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pytest_ddl.training.adapter import flatten_layers, within_xla
from pytest_ddl.training.settings import RunSettings

RANDOM = "random"
"""Setting by which random operations of a replica function draw the same numbers for the same example in all runs.

The numbers depend on the operation, on the step and on the place of the example in the global batch; see
:mod:`pytest_ddl.training.common_numbers`."""
IN_ORDER = "in-order"
"""Setting, in addition to ``RANDOM``, by which the numbers of each replica's examples lie in a range of their own.

A program may sort its examples by random numbers. On one device, the examples of a replica then stay together."""
NORMALIZATION = "normalization"
"""Setting by which batch normalization takes its statistics over all replicas."""
APART = "apart"
"""Setting, in addition to ``RANDOM``, by which draws that belong to no example differ between replicas.

The first replica keeps its numbers, and all others draw other ones."""
SWAPPED = "swapped"
"""Setting like ``APART``, by which only the first replica draws other numbers."""
OTHER = "other"
"""Setting, in addition to ``RANDOM``, by which all replicas draw what ``APART`` gives to all but the first."""
ALONE = "alone"
"""Setting by which batch normalization takes the statistics of each replica, also if it is synchronized."""


def set_normalization(model: Any, settings: RunSettings, step: Callable[[], int]) -> None:
    """Make the batch normalization layers of a model take their statistics over all replicas, or over each of them.

    :param step: returns the index of the step that runs now.
    """
    change = settings.neutralize
    wanted = NORMALIZATION in change
    for layer in flatten_layers(model):
        if "BatchNormalization" not in type(layer).__name__:
            continue
        if getattr(layer, "synchronized", None) is (not wanted) and (wanted or ALONE in change):
            layer.synchronized = wanted
            if wanted and hasattr(layer, "fused"):
                layer.fused = False  # tf_keras: the fused kernel cannot reduce over replicas
        # What is synchronized over replicas of different sizes counts every example once.
        if settings.slices and getattr(layer, "synchronized", False) and "_moments" not in vars(layer):
            layer._moments = _without_copies(layer._moments, dict(settings.slices), step)


def _without_copies(
    moments: Callable[..., Any], slices: Mapping[int, tuple[int, ...]], step: Callable[[], int]
) -> Callable[..., Any]:
    """Return ``_moments`` of a layer (Keras 3.0 to 3.15 and tf_keras) that takes each example of a batch once.

    Copies of examples only let the parts of all replicas count equally in the loss.
    """
    import tensorflow as tf

    signature = inspect.signature(moments)

    def taken(count: Any) -> Any:
        rows = slices.get(step(), ())
        if not rows or int(count) % len(rows):
            return np.arange(count, dtype=np.int64)  # the rows are no examples of the batch
        first = [place for place, row in enumerate(rows) if rows.index(row) == place]
        each = int(count) // len(rows)
        return np.array([place * each + entry for place in first for entry in range(each)], np.int64)

    def of_each_once(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        inputs = given.arguments["inputs"]
        if within_xla():
            return moments(*args, **kwargs)
        chosen = tf.numpy_function(taken, [tf.shape(inputs)[0]], tf.int64, stateful=True)
        chosen.set_shape([None])
        for name in ("inputs", "mask"):
            tensor = given.arguments.get(name)
            if tensor is not None:
                given.arguments[name] = tf.ensure_shape(tf.gather(tensor, chosen), [None, *tensor.shape[1:]])
        return moments(*given.args, **given.kwargs)

    return of_each_once
