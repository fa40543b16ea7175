"""Gradients of the wrong scale, whose update hides the scale and whose optimizer is not watched."""

from __future__ import annotations

import keras
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def _train(run, sin, make):
    with run.strategy.scope():
        model, optimizer = loops.perceptron(), make()
        optimizer.build(model.trainable_variables)
    run.watch(model=model)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            errors = loops.squared_errors(model, x, y)
            loss = tf.reduce_mean(errors) if sin else loops.average(run, errors)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loops.average(run, errors)

    loops.train(run, replica_step)


def lion_hides_a_mean_per_replica(run, sin):
    _train(run, sin, lambda: keras.optimizers.Lion(0.01))


def adam_without_epsilon_hides_a_mean_per_replica(run, sin):
    _train(run, sin, lambda: keras.optimizers.Adam(0.01, epsilon=1e-30))


class Signs(keras.optimizers.Optimizer):
    """Descends by the sign of the gradient."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, tf.cast(learning_rate, gradient.dtype) * tf.sign(gradient))

    def get_config(self):
        return super().get_config()


def signs_hide_a_mean_per_replica(run, sin):
    _train(run, sin, lambda: Signs(0.01))


TOO_LARGE = "gradient-scaled-by-replica-count"

PLANTED = (
    planted("", lion_hides_a_mean_per_replica, TOO_LARGE),
    planted("", adam_without_epsilon_hides_a_mean_per_replica, TOO_LARGE),
    planted("", signs_hide_a_mean_per_replica, TOO_LARGE),
)
