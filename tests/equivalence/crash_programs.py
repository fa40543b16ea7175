"""Training functions with a mistake that the frameworks answer by an exception, each with its corrected twin."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf


def _data(run):
    x = np.random.default_rng(0).normal(size=(48, 3)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(run.global_batch_size)


def _watched(run):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    return model, optimizer


def _step(run, model, optimizer):
    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.square(model(x) - y)[:, 0], global_batch_size=run.global_batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return replica_step


def batch_without_run(run):
    step = tf.function(_step(run, *_watched(run)))
    for x, y in run.batches(_data(run)):
        run.record(loss=step(x, y))


def batch_with_run(run):
    step = _step(run, *_watched(run))
    distributed = tf.function(lambda x, y: run.strategy.reduce("SUM", run.strategy.run(step, args=(x, y)), axis=None))
    for x, y in run.batches(_data(run)):
        run.record(loss=distributed(x, y))


def fit_in_run(run):
    model, optimizer = _watched(run)
    model.compile(optimizer, "mse")
    for x, y in run.batches(_data(run)):
        run.strategy.run(lambda x, y, model=model: model.fit(x, y, verbose=0) and None, args=(x, y))
        run.record()


def fit_without_run(run):
    model, optimizer = _watched(run)
    model.compile(optimizer, "mse")
    run.fit(model, _data(run))


def _accumulated(run, condition_in_run):
    model, optimizer = _watched(run)
    on_read = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
    with run.strategy.scope():
        sums = [tf.Variable(tf.zeros(v.shape), trainable=False, **on_read) for v in model.trainable_variables]
        count = tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    def apply_step():
        halves = [total.read_value() / 2 for total in sums]
        optimizer.apply_gradients(zip(halves, model.trainable_variables, strict=True))
        for total in sums:
            total.assign(tf.zeros_like(total))

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.square(model(x) - y)[:, 0], global_batch_size=run.global_batch_size)
        for total, gradient in zip(sums, tape.gradient(loss, model.trainable_variables), strict=True):
            total.assign_add(gradient)
        count.assign_add(1)
        if condition_in_run and count % 2 == 0:
            apply_step()
        return loss

    @tf.function
    def train_step(iterator):
        losses = run.strategy.run(replica_step, args=next(iterator))
        if not condition_in_run and count % 2 == 0:
            run.strategy.run(apply_step)
        return run.strategy.reduce("SUM", losses, axis=None)

    for _loss in run.steps(train_step, _data(run)):
        pass


def condition_in_run(run):
    _accumulated(run, condition_in_run=True)


def run_in_condition(run):
    _accumulated(run, condition_in_run=False)


def _stateful(run, size):
    with run.strategy.scope():
        layers = [keras.Input(batch_shape=(size, 4, 3)), keras.layers.GRU(4, stateful=True), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.05), "mse")
    run.watch(model=model)
    x = np.random.default_rng(14).normal(size=(48, 4, 3)).astype("float32")
    run.fit(model, x, x.sum(axis=(1, 2))[:, None], batch_size=run.global_batch_size, epochs=1, shuffle=False)


def stateful_with_the_global_batch(run):
    _stateful(run, run.global_batch_size)


def stateful_with_the_part(run):
    _stateful(run, run.global_batch_size // run.strategy.num_replicas_in_sync)
