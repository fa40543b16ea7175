"""Training functions whose layers keep values in attributes, which replicas of one process share."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf


class Residual(keras.layers.Layer):
    """Layer with a collective between the line that computes a value and the line that uses it."""

    def __init__(self, keep, **kwargs):
        super().__init__(**kwargs)
        self.project, self.norm = keras.layers.Dense(4), keras.layers.BatchNormalization(synchronized=True)
        self.keep = keep

    def call(self, inputs, training=None):
        shortcut = self.project(inputs)
        if self.keep == "used":
            self.shortcut = shortcut
            return tf.nn.tanh(self.norm(self.shortcut, training=training)) + self.shortcut
        outputs = tf.nn.tanh(self.norm(shortcut, training=training)) + shortcut
        self.shortcut = outputs  # only for a person who looks at it
        return outputs


def _train(run, layer, scale=1.0):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    x = np.random.default_rng(1).normal(size=(48, 3)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1] * 2)).batch(run.global_batch_size)

    @tf.function
    def train_step(iterator):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                error = tf.square(model(x, training=True) - y)[:, 0]
                loss = tf.nn.compute_average_loss(error, global_batch_size=run.global_batch_size)
                loss *= 1.0 if run.is_reference else scale
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=next(iterator)), axis=None)

    for _loss in run.steps(train_step, dataset):
        pass


def kept_over_a_collective(run):
    _train(run, Residual("used"))


def kept_to_look_at(run):
    _train(run, Residual("shown"))


def another_bug_beside(run):
    _train(run, Residual("shown"), scale=2.0)
