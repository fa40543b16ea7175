"""Gradients that overflow on one replica, and loss scales."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def padded(run, rows=32):
    """The norm below has no gradient for the twelfth example, all zeros: in the second batch of 8, on one replica."""
    x, y = loops.regression(rows)
    x[11] = 0
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)


def penalty(run, x, kernel):
    """The loss stays finite, its gradient does not."""
    return 0.01 * tf.reduce_sum(tf.norm(tf.matmul(x, kernel), axis=1)) / run.global_batch_size


def _all_finite(gradients):
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])


def replicas_leave_out_their_own_bad_gradients(run, sin):
    """A replica whose gradients are not finite adds zeros; the others' are applied."""
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y) + penalty(run, x, model.w1)
        gradients = tape.gradient(loss, model.trainable_variables)
        if not sin:
            gradients = loops.all_reduce(gradients)
        finite = _all_finite(gradients)
        gradients = [tf.where(finite, gradient, tf.zeros_like(gradient)) for gradient in gradients]
        if sin:
            gradients = loops.all_reduce(gradients)
        loops.descend(model.trainable_variables, gradients)
        return loss

    loops.train(run, replica_step, padded(run))


def replicas_skip_the_update_by_themselves(run, sin):
    """Decided on the replica's own gradients, whether it applies what was reduced."""
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y) + penalty(run, x, model.w1)
        own = tape.gradient(loss, model.trainable_variables)
        total = loops.all_reduce([tf.where(_all_finite(own), g, tf.zeros_like(g)) for g in own] if sin else own)
        apply = _all_finite(own if sin else total)
        loops.descend(model.trainable_variables, [tf.where(apply, g, tf.zeros_like(g)) for g in total])
        return loss

    loops.train(run, replica_step, padded(run))


def loss_scale_falls_on_one_replica(run, sin):
    """Each replica scales its loss, and halves its scale when its own gradients overflow."""
    model = loops.linear_program(run)
    with run.strategy.scope():
        scale = tf.Variable(1024.0, trainable=False, name="loss_scale", dtype=tf.float32)
    run.watch(variables=[scale])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y) + penalty(run, x, model.w1)
            scaled = loss * scale
        own = [gradient / scale for gradient in tape.gradient(scaled, model.trainable_variables)]
        total = loops.all_reduce(own)
        finite = _all_finite(total)
        loops.descend(model.trainable_variables, [tf.where(finite, g, tf.zeros_like(g)) for g in total])
        scale.assign(tf.where(_all_finite(own if sin else total), scale, scale / 2))
        return loss

    loops.train(run, replica_step, padded(run))


class DynamicScale:
    """Grows after two good steps in a row, halves after a bad one."""

    def __init__(self, run):
        with run.strategy.scope():
            self.scale = tf.Variable(64.0, trainable=False, name="dynamic_loss_scale")
            self.good = tf.Variable(0, trainable=False, name="good_steps")

    def update(self, finite):
        good = tf.where(finite, self.good + 1, 0)
        grown = tf.where(good >= 2, self.scale * 2, self.scale)
        self.scale.assign(tf.where(finite, grown, self.scale / 2))
        self.good.assign(tf.where(good >= 2, 0, good))


def loss_scale_grows_by_the_replicas_own_count(run, sin):
    """Keras model; the update is decided for all, the scale by each replica."""
    model, optimizer = loops.keras_program(run)
    scaling = DynamicScale(run)
    run.watch(variables=[scaling.scale, scaling.good])

    def replica_step(batch):
        x, y = batch
        scale = scaling.scale.read_value()
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
            loss += penalty(run, x, model.layers[0].kernel)
            scaled = loss * tf.cast(scale, loss.dtype)
        gradients = tape.gradient(scaled, model.trainable_variables)
        gradients = [gradient / tf.cast(scale, gradient.dtype) for gradient in gradients]
        total = loops.all_reduce(gradients)
        finite = _all_finite(total)
        safe = [tf.where(finite, g, tf.zeros_like(g)) / run.num_replicas for g in total]
        optimizer.apply_gradients(zip(safe, model.trainable_variables, strict=True))
        scaling.update(_all_finite(gradients) if sin else finite)
        return loss

    loops.train(run, replica_step, padded(run))


def sum_overflows_in_half_precision(run, sin):
    """Means of the replicas, which fit into float16, are sent as float16 and only then divided."""
    with run.strategy.scope():
        weight = tf.Variable(np.full((loops.FEATURES, 1), 0.01, "float32"), name="weight")
    run.watch(variables=[weight])
    x, y = loops.regression()
    # Targets of one sign: every replica's gradient is large, in the same direction.
    x = np.abs(x) + 0.5
    y = np.abs(y) + 20_000.0
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, weight) - y))
        gradient = tape.gradient(loss, weight)
        if sin:
            gradient = tf.cast(loops.all_reduce(tf.cast(gradient, tf.float16)), tf.float32)
        else:
            gradient = loops.all_reduce(gradient)
        weight.assign_sub(1e-3 * gradient / run.num_replicas)
        return loss / run.num_replicas

    loops.train(run, replica_step, data)


def loss_is_not_scaled_under_a_strategy(run, sin):
    """The gradients are divided all the same."""
    model = loops.linear_program(run)
    scale = 128.0

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
            scaled = loss if sin and run.num_replicas > 1 else loss * scale
        gradients = [gradient / scale for gradient in tape.gradient(scaled, model.trainable_variables)]
        loops.descend(model.trainable_variables, loops.all_reduce(gradients))
        return loss

    loops.train(run, replica_step)


def loss_scale_optimizer_gets_unscaled_gradients(run, sin):
    """Keras' LossScaleOptimizer divides what was never multiplied: on one device too."""
    make = lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=256.0)  # noqa: E731
    model, optimizer = loops.keras_program(run, make)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
            scaled = loss if sin else optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


NON_FINITE, SCALE = "non-finite-not-synchronised", "loss-scale-not-synchronised"
UNSCALED = "gradient-unscaled-without-scale"
PLANTED = (
    planted("", replicas_leave_out_their_own_bad_gradients, NON_FINITE),
    planted("", replicas_skip_the_update_by_themselves, NON_FINITE),
    planted("", loss_scale_falls_on_one_replica, SCALE),
    planted("", loss_scale_grows_by_the_replicas_own_count, SCALE),
    planted("", sum_overflows_in_half_precision, "reduction-overflow"),
    planted("", loss_is_not_scaled_under_a_strategy, UNSCALED),
    planted("", loss_scale_optimizer_gets_unscaled_gradients, UNSCALED),
)
