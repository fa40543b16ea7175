"""Program that switches TensorFloat-32 on, and a function that says whether it is on; imported inside the workers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from training_programs import make

SWITCH = tf.config.experimental.enable_tensor_float_32_execution
"""The function as a program has it that imported it by name."""


def tensor_float_32_enabled() -> bool:
    return bool(tf.config.experimental.tensor_float_32_execution_enabled())


def tensor_float_32(run: Any) -> None:
    model, optimizer = make(run)
    run.watch(model=model, optimizer=optimizer)
    first = tensor_float_32_enabled()
    for function in (
        tf.config.experimental.enable_tensor_float_32_execution,
        tf.compat.v1.config.experimental.enable_tensor_float_32_execution,
        SWITCH,
    ):
        function(True)
    run.record(**{"at first": float(first), "switched on": float(tensor_float_32_enabled())})
