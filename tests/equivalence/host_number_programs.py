"""Programs that draw from the generators of their process, with and without a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

ROWS = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")


def _train(
    run: Any,
    rows: Any,
    rate: Callable[[], float] = lambda: 0.1,
    layers: Callable[[], list[Any]] = list,
    seed: Callable[[], None] = lambda: None,
) -> None:
    seed()
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), *layers(), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch: Any, scale: Any) -> Any:
        x = tf.cast(batch, model.compute_dtype)
        with tf.GradientTape() as tape:
            losses = tf.square(model(x) - x[:, :1])[:, 0]
            loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            scaled = loss * tf.cast(scale, loss.dtype)
        optimizer.apply_gradients(
            zip(tape.gradient(scaled, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    @tf.function
    def step(batch: Any, scale: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch, scale)), axis=None)

    for batch in run.batches(tf.data.Dataset.from_tensor_slices(rows()).batch(run.global_batch_size)):
        run.record(loss=step(batch, tf.constant(rate())))


def shuffled_by_numpy(run: Any) -> None:
    _train(run, lambda: ROWS[np.random.permutation(len(ROWS))])


def shuffled_by_python(run: Any) -> None:
    _train(run, lambda: ROWS[random.sample(range(len(ROWS)), len(ROWS))])


def shuffled_after_a_seed(run: Any) -> None:
    _train(run, lambda: ROWS[np.random.permutation(len(ROWS))], seed=lambda: keras.utils.set_random_seed(3))


def shuffled_before_a_seed(run: Any) -> None:
    rows = ROWS[np.random.permutation(len(ROWS))]
    _train(run, lambda: rows, seed=lambda: np.random.seed(3))


def weight_of_a_step(run: Any) -> None:
    _train(run, lambda: ROWS, rate=lambda: random.choice([0.5, 1.0, 2.0]))


def shuffled_by_tensorflow(run: Any) -> None:
    _train(run, lambda: tf.random.shuffle(ROWS))


def weight_of_a_step_by_tensorflow(run: Any) -> None:
    _train(run, lambda: ROWS, rate=lambda: float(tf.random.uniform([], 0.5, 2.0)))


def weight_of_a_step_with_a_seed(run: Any) -> None:
    _train(run, lambda: ROWS, rate=lambda: float(tf.random.uniform([], 0.5, 2.0, seed=4)))


def weights_by_tensorflow(run: Any) -> None:
    with run.strategy.scope():
        weight = tf.Variable(tf.random.normal((4,)))
    run.watch(variables=[weight])

    def replica_step(x: Any) -> None:
        total = tf.distribute.get_replica_context().all_reduce("sum", tf.reduce_sum(x, 0))
        weight.assign_sub(tf.cast(total / 120, weight.dtype))

    step = tf.function(lambda batch: run.strategy.run(replica_step, args=(batch,)))
    for batch in run.batches(tf.data.Dataset.from_tensor_slices(ROWS).batch(run.global_batch_size)):
        step(batch)
        run.record()


def number_that_only_a_name_uses(run: Any) -> None:
    _train(run, lambda: ROWS, layers=lambda: [keras.layers.Dense(2, name=f"dense_{random.randrange(10**6)}")])


def data_of_its_own(run: Any) -> None:
    _train(run, lambda: np.random.normal(size=(48, 4)).astype("float32"))


def plain(run: Any) -> None:
    _train(run, lambda: ROWS)
