"""Programs that cast to float32 in a step, as is usual after half precision, with and without mistakes."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf


def train(run, wrong=""):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    x = np.random.default_rng(5).normal(size=(24, 4)).astype("float32")

    def replica(x):
        with tf.GradientTape() as tape:
            errors = tf.cast(tf.square(model(x)[:, 0] - tf.cast(x[:, 0], model.compute_dtype)), tf.float32)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
            used = tf.reduce_mean(errors) if wrong == "mean" else loss
        gradients = [tf.cast(each, tf.float32) for each in tape.gradient(used, model.trainable_variables)]
        if wrong == "divided":
            gradients = [each / run.num_replicas for each in gradients]
        if wrong == "clipped":
            gradients, _norm = tf.clip_by_global_norm(gradients, 0.05)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(iterator):
        return run.strategy.reduce("SUM", run.strategy.run(replica, args=(next(iterator),)), axis=None)

    for _ in run.steps(step, tf.data.Dataset.from_tensor_slices(x).batch(run.global_batch_size)):
        pass
