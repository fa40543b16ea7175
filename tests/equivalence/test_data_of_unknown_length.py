"""Keras calls its train function once more at the end of data of unknown length: what that call counts by chance."""

from __future__ import annotations

from functools import partial

import pytest

from pytest_ddl import check_training

pytestmark = pytest.mark.slow
GIVEN = {"global_batch_size": 4, "steps": 10, "timeout": 100}


def train(run, optimizer, callbacks=()):
    """Train two epochs of five batches, and validate on data of unknown length too."""
    import keras
    import numpy as np
    import tensorflow as tf

    inputs = np.random.RandomState(0).rand(20, 3).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((inputs, inputs.sum(1, keepdims=True)))
    # With a static size, the counts of metrics need no data.
    data = data.filter(lambda _input, _target: True).batch(4, drop_remainder=True)
    keras.utils.set_random_seed(run.seed)
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile(optimizer, "mse", metrics=["mae"])
    run.watch(model=model, optimizer=model.optimizer)
    run.fit(model, data, epochs=2, validation_data=data, callbacks=list(callbacks))
    run.evaluate(model, data)


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_counters_at_the_end_of_the_data_do_not_differ(optimizer):
    report = check_training(partial(train, optimizer=optimizer), "mirrored", **GIVEN)
    assert report.verdict == "pass", str(report)


def test_a_wrong_count_of_updates_is_still_seen():
    report = check_training(train_once_more, "mirrored", **GIVEN)
    assert report.findings, str(report)


def train_once_more(run):
    """Count one more update at the end of each epoch, under the strategy only."""
    import keras

    class Counts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if run.num_replicas > 1:
                self.model.optimizer.iterations.assign_add(1)

    train(run, "sgd", [Counts()])
