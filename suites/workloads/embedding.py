"""An embedding of binned measurements, whose gradients are sparse, with plain SGD.

SGD and not Adam: an optimizer that divides by the gradient's size would hide a gradient that is twice too large.
"""

from __future__ import annotations

from typing import Any

from suites.data import NUM_BINS, tumour_tokens
from suites.workloads.workload import Workload


def build_model() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((10,), dtype="int64"),
            keras.layers.Embedding(10 * NUM_BINS, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )


def build_optimizer() -> Any:
    import keras

    return keras.optimizers.SGD(0.5)


WORKLOAD = Workload(build_model, build_optimizer, tumour_tokens)
