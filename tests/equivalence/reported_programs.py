"""Training functions that report numbers and keep state, both of which they cast to float32 on each replica."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf


class Centered(keras.layers.Layer):
    """A layer with the running mean of its inputs, over all replicas if it is right."""

    def __init__(self, right):
        super().__init__()
        self.right = right

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, inputs, training=False):
        replica = tf.distribute.get_replica_context()
        if training and replica is not None:
            mean = tf.cast(tf.reduce_mean(inputs, axis=0), tf.float32)
            mean = replica.all_reduce("MEAN", mean) if self.right else mean
            self.mean.assign(0.9 * self.mean + 0.1 * tf.cast(mean, self.mean.dtype))
        return inputs


class Error(keras.metrics.Metric):
    """The mean absolute error; the wrong one adds up means of replicas, of which there are more under a strategy."""

    def __init__(self, right):
        super().__init__(name="error")
        self.right = right
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y, prediction, sample_weight=None):
        errors = tf.abs(tf.cast(y, tf.float32) - tf.cast(prediction, tf.float32))
        self.total.assign_add(tf.reduce_sum(errors) if self.right else tf.reduce_mean(errors))
        self.count.assign_add(tf.cast(tf.size(errors), tf.float32))

    def result(self):
        return self.total / self.count if self.right else self.total


def train(run, state=True, metric=True, value=True):
    """The arguments say what is right."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Centered(state), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
        error, mean = Error(metric), keras.metrics.Mean("mean")
    run.watch(model=model, optimizer=optimizer, metrics=[error, mean])
    x = np.random.default_rng(2).normal(size=(72, 4)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1] - 2 * x[:, 1:2])).batch(run.global_batch_size)

    @tf.function
    def train_step(batch):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                prediction = model(x, training=True)
                errors = tf.square(prediction - tf.cast(y, prediction.dtype))[:, 0]
                loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            error.update_state(y, prediction)
            mean.update_state(tf.cast(tf.reduce_mean(errors), tf.float32))
            return tf.cast(loss, tf.float32)

        losses = run.strategy.run(replica_step, args=(batch,))
        return run.strategy.reduce("SUM" if value else "MEAN", losses, axis=None)

    losses = []
    for batch in run.batches(dataset):
        losses.append(float(train_step(batch)))
        run.record()
    run.value("mean of the losses", sum(losses) / len(losses))
