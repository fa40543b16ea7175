"""Training functions for fit whose loss function compares the examples of a batch."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops


def _dice(truth, prediction):
    overlap = ops.sum(truth * prediction)
    return 1 - (2 * overlap + 1) / (ops.sum(truth) + ops.sum(prediction) + 1)


def _dice_of_each(truth, prediction):
    overlap = ops.sum(truth * prediction, axis=-1)
    return 1 - (2 * overlap + 1) / (ops.sum(truth, axis=-1) + ops.sum(prediction, axis=-1) + 1)


def _train(run, loss):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="sigmoid")])
        model.compile(keras.optimizers.SGD(0.5), loss)
    run.watch(model=model)
    x = np.random.default_rng(5).normal(size=(48, 6)).astype("float32")
    run.fit(model, x, (x[:, :4] > 0.3).astype("float32"), batch_size=run.global_batch_size, shuffle=False)


def one_number(run):
    _train(run, _dice)


def one_for_each_example(run):
    _train(run, _dice_of_each)
