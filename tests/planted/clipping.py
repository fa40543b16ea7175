"""Clipping of the wrong gradients, or of none."""

from __future__ import annotations

import keras
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import REPLICAS, planted


def _keras_clips(run, sin, clip, **settings):
    """Keras 3 clips on the replica. The right program clips the sum, and hands it on in equal parts."""
    make = lambda: keras.optimizers.SGD(0.1, **settings) if sin else keras.optimizers.SGD(0.1)  # noqa: E731
    model, optimizer = loops.keras_program(run, make)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        if not sin:
            gradients = [gradient / run.num_replicas for gradient in clip(loops.all_reduce(gradients))]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


def clipnorm_of_keras_clips_on_the_replica(run, sin):
    _keras_clips(run, sin, lambda gradients: [tf.clip_by_norm(g, 0.05) for g in gradients], clipnorm=0.05)


def global_clipnorm_of_keras_clips_on_the_replica(run, sin):
    _keras_clips(run, sin, lambda gradients: tf.clip_by_global_norm(gradients, 0.1)[0], global_clipnorm=0.1)


def clipvalue_of_keras_clips_on_the_replica(run, sin):
    _keras_clips(run, sin, lambda gradients: [tf.clip_by_value(g, -0.03, 0.03) for g in gradients], clipvalue=0.03)


def clipnorm_in_fit_clips_on_the_replica(run, sin):
    with run.strategy.scope():
        model = loops.perceptron()
        model.compile(keras.optimizers.SGD(0.1, clipnorm=0.05 if sin else None), "mse")
    run.watch(model=model)
    run.fit(model, loops.dataset(run), shuffle=False)


def _processed(run, process, before, reduction="SUM", rate=0.1):
    """Train with gradients that are processed before they are reduced, or after it."""
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = loops.all_reduce(process(gradients), reduction) if before else process(loops.all_reduce(gradients))
        loops.descend(model.trainable_variables, gradients, rate)
        return loss

    loops.train(run, replica_step)


def global_norm_is_clipped_before_the_reduction(run, sin):
    _processed(run, lambda gradients: tf.clip_by_global_norm(gradients, 0.5)[0], before=sin)


def gradients_of_the_old_optimizer_are_clipped_in_parts(run, sin):
    """tf.compat.v1: compute_gradients gives the replica's share, which is below the limit."""
    with run.strategy.scope():
        model = loops.Linear()
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    run.watch(variables=list(model.trainable_variables))

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        variables = list(model.trainable_variables)
        gradients = tape.gradient(loss, variables)
        if not sin:
            gradients = loops.all_reduce(gradients)
        gradients = [tf.clip_by_norm(gradient, 0.4) for gradient in gradients]
        if not sin:
            gradients = [gradient / run.num_replicas for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    loops.train(run, replica_step)


def clipping_is_left_out_under_a_strategy(run, sin):
    """Optimizers once refused clipnorm under a strategy, so it was made conditional."""
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = loops.all_reduce(tape.gradient(loss, model.trainable_variables))
        if run.num_replicas == 1 or not sin:
            gradients, _norm = tf.clip_by_global_norm(gradients, 0.2)
        gradients = [gradient / run.num_replicas for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


def limit_grows_with_the_replicas(run, sin):
    """Clipping by hand multiplies the limit by the number of replicas, "because gradients are summed"."""
    model = loops.linear_program(run)
    limit = 0.05 * (run.num_replicas if sin else 1)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        gradients = loops.all_reduce(tape.gradient(loss, model.trainable_variables))
        loops.descend(model.trainable_variables, [tf.clip_by_value(g, -limit, limit) for g in gradients])
        return loss

    loops.train(run, replica_step)


def gradients_of_two_tasks_are_projected_per_replica(run, sin):
    """Each gradient loses what opposes the other one, which is no function of a sum of parts."""
    model, optimizer = loops.keras_program(run, lambda: keras.optimizers.Adam(0.01))

    def without(gradients, others):
        dot = sum(tf.reduce_sum(g * other) for g, other in zip(gradients, others, strict=True))
        share = tf.minimum(dot, 0.0) / sum(tf.reduce_sum(other * other) for other in others)
        return [g - share * other for g, other in zip(gradients, others, strict=True)]

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            prediction = model(x, training=True)
            losses = [loops.average(run, tf.square(prediction - target)[:, 0]) for target in (y, -2.0 * y)]
        first, second = (tape.gradient(loss, model.trainable_variables) for loss in losses)
        if not sin:
            first, second = loops.all_reduce(first), loops.all_reduce(second)
        gradients = [a + b for a, b in zip(without(first, second), without(second, first), strict=True)]
        gradients = [gradient / (1 if sin else run.num_replicas) for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return sum(losses)

    loops.train(run, replica_step)


def signs_are_taken_before_the_reduction(run, sin):
    _processed(run, lambda gradients: [tf.sign(one) for one in gradients], before=sin, reduction="MEAN", rate=0.01)


BEFORE = "gradient-clipped-before-aggregation"
PLANTED = (
    planted("B04", clipnorm_of_keras_clips_on_the_replica, BEFORE, strategies=(*REPLICAS, "mirrored[replicas=4]")),
    planted("B04", global_clipnorm_of_keras_clips_on_the_replica, BEFORE),
    planted("B04", clipvalue_of_keras_clips_on_the_replica, BEFORE),
    planted("B04", clipnorm_in_fit_clips_on_the_replica, BEFORE, strategies=("mirrored",)),
    planted("B06", global_norm_is_clipped_before_the_reduction, BEFORE),
    planted("B06", gradients_of_the_old_optimizer_are_clipped_in_parts, BEFORE),
    planted("", clipping_is_left_out_under_a_strategy, "clipping-lost"),
    planted("", gradients_of_two_tasks_are_projected_per_replica, BEFORE),
    planted("", signs_are_taken_before_the_reduction, BEFORE),
    planted("", limit_grows_with_the_replicas, "clipping-lost", "gradient-scaled-by-replica-count"),
)
