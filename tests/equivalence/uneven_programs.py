"""Programs whose epochs end with an uneven batch, and what they do after it: correct ones, and planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

FEATURES = 8
UNEVEN, EVEN = 33, 48
"""Examples of which batches of 12 leave a last one of 9, and none."""


def _data(run: Any, examples: int, seed: int = 0) -> tf.data.Dataset:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(examples, FEATURES)).astype("float32")
    pairs = tf.data.Dataset.from_tensor_slices((x, x[:, :1] * x[:, 1:2] + 0.1))
    return pairs.batch(run.global_batch_size)


def _layers() -> list[Any]:
    return [keras.Input((FEATURES,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]


OPTIMIZERS = ("Adadelta", "Adagrad", "Adamax", "Ftrl", "Lamb", "Lion", "Nadam", "RMSprop", "SGD")


def _fitted(
    run: Any, callbacks: tuple[Any, ...] = (), cls: Any = keras.Sequential, optimizer: str = "Adam", **given: Any
) -> Any:
    with run.strategy.scope():
        model = cls(_layers())
        model.compile(getattr(keras.optimizers, optimizer)(0.02, **given), "mse", metrics=["mae"])
    run.watch(model=model)
    run.fit(model, _data(run, UNEVEN), epochs=2, validation_data=_data(run, 24, 1), callbacks=list(callbacks))
    return model


def _error(run: Any, model: Any) -> float:
    x, y = next(iter(_data(run, EVEN, 4)))
    return float(np.mean((model(x).numpy() - y.numpy()) ** 2))


# -- correct ------------------------------------------------------------------------------------


def evaluated(run: Any) -> None:
    """Two epochs, each with validation, then an evaluation."""
    model = _fitted(run)
    run.evaluate(model, _data(run, EVEN, 3))
    run.record(test_error=_error(run, model))


def fitted_with(run: Any, optimizer: str) -> None:
    """Two epochs with an optimizer whose updates are perhaps no multiples of its gradients."""
    _fitted(run, optimizer=optimizer)


def fitted_with_average(run: Any) -> None:
    _fitted(run, use_ema=True)


class _Average(keras.callbacks.Callback):
    """An average of weights over batches, kept in NumPy, so that it cannot be taken over."""

    average: list[Any] | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = self.model.get_weights()
        before = self.average or now
        self.average = [0.5 * a + 0.5 * b for a, b in zip(before, now, strict=True)]

    def on_train_end(self, logs: Any = None) -> None:
        self.model.set_weights(self.average)


def averaged_by_a_callback(run: Any) -> None:
    model = _fitted(run, (_Average(),))
    run.evaluate(model, _data(run, EVEN, 3))


def averaged_by_the_program(run: Any, optimizer: str = "Adam", wrong: float = 0.0) -> None:
    """Average in a loop of the program; the average is neither watched nor part of the model."""
    averages: list[Any] = []

    def average(weights: list[Any]) -> None:
        before = averages or weights
        averages[:] = [0.5 * a + 0.5 * b for a, b in zip(before, weights, strict=True)]

    model = _loop(run, after_step=average, optimizer=optimizer)
    weights = model.get_weights()
    model.set_weights(averages)
    error = _error(run, model)
    model.set_weights(weights)
    run.record(test_error=error + wrong * (run.num_replicas - 1))


def _loop(
    run: Any,
    penalty_from: int | None = None,
    after_step: Callable[[list[Any]], None] | None = None,
    optimizer: str = "Adam",
) -> Any:
    """Train in a loop whose loss is a mean per replica."""
    with run.strategy.scope():
        model = keras.Sequential(_layers())
        updates = getattr(keras.optimizers, optimizer)(0.05)
        updates.build(model.trainable_variables)
    run.watch(model=model, optimizer=updates)

    def replica_step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y)) / run.num_replicas
            if penalty_from is not None:
                penalty = tf.add_n([tf.nn.l2_loss(weight) for weight in model.trainable_variables])
                late = updates.iterations >= penalty_from
                loss += tf.where(late, tf.cast(penalty, loss.dtype), tf.zeros_like(loss))
        gradients = tape.gradient(loss, model.trainable_variables)
        updates.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batch: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    for batch in run.batches(_data(run, UNEVEN).repeat(2)):
        loss = step(batch)
        if after_step is not None:
            after_step(model.get_weights())
        run.record(loss)
    return model


def loop(run: Any) -> None:
    _loop(run)


# -- planted bugs -------------------------------------------------------------------------------


class SumOverReplicas(keras.Sequential):
    """Model whose evaluation counts every replica once more."""

    def test_step(self, data: Any) -> Any:
        x, y = data
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        shown = self.compute_metrics(x, y, replicas * self(x, training=False), None)
        return {"loss": self.compute_loss(x, y, self(x, training=False)), **shown}


def evaluates_wrongly(run: Any) -> None:
    model = _fitted(run, cls=SumOverReplicas)
    run.evaluate(model, _data(run, EVEN, 3))


def records_a_wrong_value(run: Any) -> None:
    run.record(test_error=_error(run, _fitted(run)) * run.num_replicas)


def averages_wrongly(run: Any) -> None:
    averaged_by_the_program(run, wrong=0.5)


def adds_its_penalty_per_replica_later(run: Any) -> None:
    _loop(run, penalty_from=4)


def adds_its_penalty_in_the_second_uneven_step(run: Any) -> None:
    """Only the step of the second epoch's uneven batch is wrong."""
    _loop(run, penalty_from=5)
