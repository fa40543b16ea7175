"""Training functions that handle gradients which are not finite: right ones, and wrong ones named by their mistake."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

FEATURES = 4


def _data(run: Any, large: slice = slice(0)) -> tf.data.Dataset:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(48, FEATURES)).astype("float32")
    y = generator.normal(size=(48, 1)).astype("float32")
    y[large] *= 30
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)


def _loss(run: Any, model: Any, batch: Any) -> Any:
    x, y = batch
    return tf.nn.compute_average_loss(tf.square(model(x) - y)[:, 0], global_batch_size=run.global_batch_size)


def _loop(run: Any, replica_step: Any, data: Any = None) -> None:
    @tf.function
    def train_step(iterator: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, data or _data(run)):
        pass


def _by_hand(
    run: Any,
    decide_on_the_sum: bool = True,
    scale_by_the_sum: bool = True,
    zero_instead_of_skipping: bool = False,
    skip: bool = True,
    aggregation: Any = tf.VariableAggregation.NONE,
) -> None:
    """A dynamic loss scale in the program's own hands, with an update that skips what is not finite."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        scale = tf.Variable(1024.0, trainable=False, name="loss_scale", aggregation=aggregation)
    run.watch(model=model, variables={"loss_scale": scale})

    def finite(gradients: Any) -> Any:
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])

    def replica_step(batch: Any) -> Any:
        weights = model.trainable_variables
        with tf.GradientTape() as tape:
            loss = _loss(run, model, batch)
            scaled = loss * tf.cast(scale, loss.dtype)
        own = [g / tf.cast(scale, g.dtype) for g in tape.gradient(scaled, weights)]
        if zero_instead_of_skipping:
            own = [tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)) for g in own]
        summed = tf.distribute.get_replica_context().all_reduce("sum", own)
        go = finite(summed if decide_on_the_sum else own)
        for weight, g in zip(weights, summed, strict=True):
            step = tf.where(go, tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)), tf.zeros_like(g)) if skip else g
            weight.assign_sub(0.05 * step)
        good = finite(summed if scale_by_the_sum else own)
        scale.assign(tf.where(good, scale, scale * 0.5))
        return loss

    _loop(run, replica_step)


def right_by_hand(run: Any) -> None:
    _by_hand(run)


def each_replica_decides_for_itself(run: Any) -> None:
    _by_hand(run, decide_on_the_sum=False)


def each_replica_scales_for_itself(run: Any) -> None:
    _by_hand(run, scale_by_the_sum=False)


def zeros_before_the_sum(run: Any) -> None:
    _by_hand(run, zero_instead_of_skipping=True)


def updates_with_anything(run: Any) -> None:
    _by_hand(run, skip=False)


def scale_is_summed_over_replicas(run: Any) -> None:
    """Right on one device; the assignment from several replicas adds up their scales."""
    _by_hand(run, aggregation=tf.VariableAggregation.SUM)


def _without_a_scale(run: Any, decide_on_the_sum: bool) -> None:
    """Train with a Keras optimizer that gets zeros in place of a gradient that is not finite."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _loss(run, model, batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        seen = gradients
        if decide_on_the_sum:
            seen = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in seen])
        kept = [tf.where(finite, g, tf.zeros_like(g)) for g in gradients]
        optimizer.apply_gradients(zip(kept, model.trainable_variables, strict=True))
        return loss

    _loop(run, replica_step)


def right_without_a_scale(run: Any) -> None:
    _without_a_scale(run, decide_on_the_sum=True)


def zeros_its_own_gradient(run: Any) -> None:
    _without_a_scale(run, decide_on_the_sum=False)


def fits_in_mixed_precision(run: Any) -> None:
    with run.strategy.scope():
        policy = "mixed_float16"
        layers = [keras.layers.Dense(8, activation="relu", dtype=policy), keras.layers.Dense(1, dtype="float32")]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers])
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)), "mse")
    run.watch(model=model)
    run.fit(model, _data(run))


def overflows_on_one_worker(run: Any) -> None:
    """The second worker's part of the first batch overflows the loss scale. Only that worker leaves out the update."""
    policy = "mixed_float16"
    with run.strategy.scope():
        layers = [keras.layers.Dense(8, activation="tanh", dtype=policy), keras.layers.Dense(1, dtype="float32")]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05))
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _loss(run, model, batch)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    _loop(run, replica_step, _data(run, large=slice(6, 12)))


def _keras(run: Any, scale_loss: bool = True) -> None:
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=64.0)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _loss(run, model, batch)
            scaled = optimizer.scale_loss(loss) if scale_loss else loss
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    _loop(run, replica_step)


def right_in_keras(run: Any) -> None:
    _keras(run)


def forgets_to_scale_in_keras(run: Any) -> None:
    _keras(run, scale_loss=False)


def _tf_keras(run: Any, legacy: bool = False, scale_loss: bool = True) -> None:
    with run.strategy.scope():
        model = tf_keras.Sequential([tf_keras.Input((FEATURES,)), tf_keras.layers.Dense(1)])
        inner = (tf_keras.optimizers.legacy if legacy else tf_keras.optimizers).SGD(0.05)
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=64.0, dynamic_growth_steps=3)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _loss(run, model, batch)
            scaled = optimizer.get_scaled_loss(loss) if scale_loss else loss
        gradients = optimizer.get_unscaled_gradients(tape.gradient(scaled, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    _loop(run, replica_step)


def right_in_tf_keras(run: Any) -> None:
    _tf_keras(run)


def right_in_legacy_tf_keras(run: Any) -> None:
    _tf_keras(run, legacy=True)


def forgets_to_scale_in_tf_keras(run: Any) -> None:
    _tf_keras(run, scale_loss=False)


def fits_in_tf_keras(run: Any) -> None:
    with run.strategy.scope():
        model = tf_keras.Sequential([tf_keras.Input((FEATURES,)), tf_keras.layers.Dense(1)])
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD(0.05))
        model.compile(optimizer, "mse")
    run.watch(model=model, optimizer=optimizer)
    run.fit(model, _data(run))


def fits_in_keras(run: Any) -> None:
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)), "mse")
    run.watch(model=model)
    run.fit(model, _data(run))
