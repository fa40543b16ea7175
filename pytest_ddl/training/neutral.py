"""Switch off the intended differences between replicas: random numbers, and statistics of a part of the batch.

These two may differ between a run on one device and a run under a strategy. If both are off in both runs, any
difference that remains is a defect.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pytest_ddl.training.adapter import flatten_layers

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


def set_normalization(model: Any, settings: Collection[str]) -> None:
    """Make the batch normalization layers of a model take their statistics over all replicas, or over each of them."""
    wanted = NORMALIZATION in settings
    if not wanted and ALONE not in settings:
        return
    for layer in flatten_layers(model):
        if getattr(layer, "synchronized", None) is (not wanted) and "BatchNormalization" in type(layer).__name__:
            layer.synchronized = wanted
            if wanted and hasattr(layer, "fused"):
                layer.fused = False  # tf_keras: the fused kernel cannot reduce over replicas
