"""Training functions that record or run something under a strategy only, or on one device only, as their names say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

FEATURES = 4


def _data(run: Any) -> tf.data.Dataset:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(48, FEATURES)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(run.global_batch_size)


@contextlib.contextmanager
def _parts(run: Any) -> Iterator[tuple[Any, Any, Callable[[Any], Any]]]:
    """Give a watched model, a mean, and a function that trains one step on a batch."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        mean = keras.metrics.Mean(name="mean")
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.square(model(x) - y)[:, 0]
            loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train(batch: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    yield model, mean, train


def loss_in_the_first_step_only(run: Any, sin: bool = True) -> None:
    with _parts(run) as (_model, _mean, train):
        told = []

        def step(iterator: Any) -> Any:
            told.append(train(next(iterator)))
            return told[-1] if run.is_reference or len(told) == 1 or not sin else None

        for _loss in run.steps(step, _data(run)):
            pass


def value_on_one_device_only(run: Any, sin: bool = True) -> None:
    with _parts(run) as (_model, _mean, train):
        for batch in run.batches(_data(run)):
            named = {} if sin and not run.is_reference else {"accuracy": 0.5}
            run.record(loss=train(batch), **named)


def value_not_a_number_on_one_device(run: Any, sin: bool = True) -> None:
    with _parts(run) as (_model, _mean, train):
        for batch in run.batches(_data(run)):
            run.record(loss=train(batch), accuracy=float("nan") if sin and run.is_reference else 0.5)


def metric_watched_on_one_device_only(run: Any, sin: bool = True) -> None:
    with _parts(run) as (_model, mean, train):
        if run.is_reference or not sin:
            run.watch(metrics=mean)
        for batch in run.batches(_data(run)):
            loss = train(batch)
            mean.update_state(loss)
            run.record(loss=loss)


def evaluated_on_one_device_only(run: Any, sin: bool = True) -> None:
    with _parts(run) as (model, _mean, train):
        with run.strategy.scope():
            model.compile(loss="mse")
        for batch in run.batches(_data(run)):
            run.record(loss=train(batch))
        if run.is_reference or not sin:
            run.evaluate(model, _data(run))


def _late(run: Any, sin: Callable[[int, Any], bool]) -> None:
    """Train with a watched metric; stop under the strategy at the batch for which ``sin`` returns true."""
    with _parts(run) as (model, mean, train):
        run.watch(metrics=mean)
        for number, batch in enumerate(run.batches(_data(run))):
            mean.update_state(1.0)
            run.record(loss=train(batch))
            if not run.is_reference and sin(number, model):
                break


def right_in_many_steps(run: Any) -> None:
    _late(run, lambda _number, _model: False)


def ends_late(run: Any) -> None:
    _late(run, lambda number, _model: number >= 50)


def raises_late(run: Any) -> None:
    def sin(number: int, _model: Any) -> bool:
        if number >= 50:
            raise RuntimeError("late, under the strategy")
        return False

    _late(run, sin)


def doubles_its_weights_late(run: Any) -> None:
    def sin(number: int, model: Any) -> bool:
        for variable in model.trainable_variables if number == 50 else ():
            variable.assign(2.0 * variable)
        return False

    _late(run, sin)
