"""Workload: a multi-layer perceptron over measurements of tumors, with momentum and a frozen layer."""

from __future__ import annotations

from typing import Any

from suites.data import tumours
from suites.workloads.workload import Workload


def build_model() -> Any:
    from suites.subject import keras

    return keras.Sequential(
        [
            keras.Input((30,)),
            keras.layers.Dense(8, activation="tanh", trainable=False),
            keras.layers.Dense(6, activation="relu"),
            keras.layers.Dense(2),
        ]
    )


def build_optimizer() -> Any:
    from suites.subject import keras

    return keras.optimizers.SGD(0.1, momentum=0.9)


WORKLOAD = Workload(build_model, build_optimizer, tumours)
