"""Programs that train with ``fit`` in a thread of their own: correct ones, and planted bugs."""

from __future__ import annotations

import threading
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class _Raises(keras.callbacks.Callback):
    """Ends training with an exception after its second step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1:
            raise ValueError("ends in the thread")


class _Multiplies(keras.callbacks.Callback):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        weight = self.model.trainable_variables[0]
        weight.assign(weight * self._factor)


def _start(run: Any, *callbacks: keras.callbacks.Callback) -> threading.Thread:
    x = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] - 2 * x[:, 1:2])).batch(run.global_batch_size)
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), loss="mse")
    run.watch(model=model, optimizer=model.optimizer)
    thread = threading.Thread(target=lambda: run.fit(model, data, callbacks=list(callbacks)))
    thread.start()
    return thread


def waits_for_its_thread(run: Any) -> None:
    _start(run).join()


def does_not_wait(run: Any) -> None:
    """Python waits for the thread at the end of a script."""
    _start(run)


def multiplies_and_does_not_wait(run: Any) -> None:
    _start(run, _Multiplies(run.num_replicas))


def raises_in_its_thread(run: Any) -> None:
    _start(run, _Raises()).join()


def raises_in_its_thread_under_the_strategy(run: Any) -> None:
    _start(run, *([_Raises()] if run.num_replicas > 1 else [])).join()
