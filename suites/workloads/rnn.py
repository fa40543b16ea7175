"""Workload: an LSTM that reads images of digits row by row, with Adam."""

from __future__ import annotations

from typing import Any

from suites.data import digits
from suites.workloads.workload import Workload


def build_model() -> Any:
    from suites.subject import keras

    return keras.Sequential([keras.Input((8, 8)), keras.layers.LSTM(4), keras.layers.Dense(10)])


def build_optimizer() -> Any:
    from suites.subject import keras

    return keras.optimizers.Adam(0.01)


WORKLOAD = Workload(build_model, build_optimizer, digits)
