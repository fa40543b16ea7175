"""Training functions that compute more than one gradient in a step: two networks, and weights that move in between."""

from __future__ import annotations

import keras
import tensorflow as tf
from gradient_programs import _data, _dense, _reduced


def _two_networks(run, steps_of):
    """A generator and a discriminator, each with its optimizer, both updated by ``steps_of`` in a replica."""
    with run.strategy.scope():
        one, other = _dense(), _dense()
        optimizers = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05, momentum=0.5)
        for optimizer, model in zip(optimizers, (one, other), strict=True):
            optimizer.build(model.trainable_variables)
    run.watch(model=[one, other], optimizer=list(optimizers))

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            return steps_of(batch, one, other, *optimizers)

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, _data(run)):
        pass


def right_adversaries(run):
    def steps(batch, one, other, first, second):
        with tf.GradientTape(persistent=True) as tape:
            made, judged = one(batch[0]), other(batch[0])
            loss = tf.reduce_sum(tf.square(made - judged)) / run.global_batch_size
            opposite = tf.reduce_sum(tf.square(judged)) / run.global_batch_size - 0.1 * loss
        second.apply_gradients(
            zip(tape.gradient(opposite, other.trainable_variables), other.trainable_variables, strict=True)
        )
        first.apply_gradients(zip(tape.gradient(loss, one.trainable_variables), one.trainable_variables, strict=True))
        return loss

    _two_networks(run, steps)


def right_one_network_is_never_updated(run):
    def steps(batch, one, other, first, second):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(one(batch[0]) - other(batch[0]))) / run.global_batch_size
        first.apply_gradients(zip(tape.gradient(loss, one.trainable_variables), one.trainable_variables, strict=True))
        return loss

    _two_networks(run, steps)


def _sharpness_aware(run, summed):
    with run.strategy.scope():
        model = _dense()
        optimizer = keras.optimizers.SGD(0.1)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def gradients_of(batch):
            with tf.GradientTape() as tape:
                errors = tf.reduce_sum(tf.square(model(batch[0]) - tf.cast(batch[1], model.compute_dtype)), axis=-1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
            return loss, tape.gradient(loss, model.trainable_variables)

        def replica_step(batch):
            loss, gradients = gradients_of(batch)
            moves = [0.01 * gradient for gradient in (_reduced(gradients) if summed else gradients)]
            for variable, move in zip(model.trainable_variables, moves, strict=True):
                variable.assign_add(move)
            _loss, gradients = gradients_of(batch)
            for variable, move in zip(model.trainable_variables, moves, strict=True):
                variable.assign_sub(move)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, _data(run)):
        pass


def right_sharpness_aware(run):
    _sharpness_aware(run, summed=True)


def moved_by_the_gradient_of_a_replica(run):
    _sharpness_aware(run, summed=False)
