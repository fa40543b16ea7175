"""Workload: a small convolutional network over images of digits, with Nesterov momentum and weight decay."""

from __future__ import annotations

from typing import Any

from suites.data import digits
from suites.workloads.workload import Workload


def build_model() -> Any:
    from suites.subject import keras

    return keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def build_optimizer() -> Any:
    from suites.subject import keras

    return keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01)


WORKLOAD = Workload(build_model, build_optimizer, digits)
