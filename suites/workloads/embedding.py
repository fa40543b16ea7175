"""Workload: an embedding of binned measurements, which has sparse gradients, with plain SGD.

Adam is not used, because an optimizer that divides by the gradient's size hides a gradient that is twice too large.
"""

from __future__ import annotations

from typing import Any

from suites.data import NUM_BINS, tumour_tokens
from suites.workloads.workload import Workload


def build_model() -> Any:
    from suites.subject import keras

    return keras.Sequential(
        [
            keras.Input((10,), dtype="int64"),
            keras.layers.Embedding(10 * NUM_BINS, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )


def build_optimizer() -> Any:
    from suites.subject import keras

    return keras.optimizers.SGD(0.5)


WORKLOAD = Workload(build_model, build_optimizer, tumour_tokens)
