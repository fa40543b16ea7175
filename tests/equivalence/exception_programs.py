"""Training functions that raise under the strategy: each from another place, as Keras and TensorFlow pass it on."""

from __future__ import annotations

import signal

import exception_helpers
import keras
import numpy as np
import tensorflow as tf

FEATURES = 3


def _data(run):
    x = np.random.default_rng(0).normal(size=(24, FEATURES)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(run.global_batch_size)


def _train(run, within=lambda x: x, dataset=None):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.square(model(x if run.is_reference else within(x)) - y)[:, 0]
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, _data(run) if dataset is None or run.is_reference else dataset):
        pass


def in_a_helper(run):
    if not run.is_reference:
        exception_helpers.scale(0.0)
    _train(run)


def in_a_traced_function(run):
    _train(run, exception_helpers.refuse)


def at_run_time_in_a_graph(run):
    def within(x):
        tf.debugging.assert_less(x, -100.0, message="x must be small")
        return x

    _train(run, within)


def in_a_python_operation(run):
    def within(x):
        def look(values):
            raise KeyError("nothing to look at")

        return tf.reshape(tf.numpy_function(look, [x], x.dtype), tf.shape(x))

    _train(run, lambda x: tf.ensure_shape(within(x), (None, FEATURES)))


def in_a_mapped_dataset(run):
    def load(x, y):
        if not run.is_reference:
            raise FileNotFoundError("no such shard")
        return x, y

    def mapped(x, y):
        x, y = tf.numpy_function(load, [x, y], [tf.float32, tf.float32])
        return tf.ensure_shape(x, (None, FEATURES)), tf.ensure_shape(y, (None, 1))

    _train(run, dataset=_data(run).map(mapped))


class OwnStep(keras.Model):
    def __init__(self, fails):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.fails = fails

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        if self.fails:
            exception_helpers.refuse(data)
        return super().train_step(data)


def in_the_train_step_of_fit(run):
    with run.strategy.scope():
        model = OwnStep(fails=not run.is_reference)
        model.compile("sgd", "mse")
    run.watch(model=model)
    run.fit(model, _data(run))


class Wrong(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.units = units

    def call(self, x):
        return tf.matmul(x, tf.ones((self.units, 1), x.dtype))


def in_a_layer(run):
    with run.strategy.scope():
        model = keras.Sequential([Wrong(FEATURES if run.is_reference else FEATURES + 1)])
        model.compile("sgd", "mse")
    run.watch(model=model)
    run.fit(model, _data(run))


def without_a_message(run):
    if not run.is_reference:
        raise RuntimeError
    _train(run)


def with_a_tensor_in_its_message(run):
    if not run.is_reference:
        raise ValueError(f"cannot use {np.arange(3000.0).reshape(1000, 3).tolist()} as weights")
    _train(run)


def with_a_class_of_its_own(run):
    if not run.is_reference:
        raise exception_helpers.PrivateError("one", "two")
    _train(run)


def with_a_class_of_its_own_in_a_graph(run):
    def within(x):
        raise exception_helpers.PrivateError("one", "two")

    _train(run, within)


def from_another_exception(run):
    if not run.is_reference:
        try:
            exception_helpers.scale(0.0)
        except ZeroDivisionError as error:
            raise LookupError("no scale is known") from error
    _train(run)


def in_a_run_that_measures_noise(run):
    """Twice the right update, and a check of the initial weights that no perturbed run passes."""
    with run.strategy.scope():
        weight = tf.Variable([1.0, 2.0], dtype=keras.config.floatx())
    run.watch(variables=[weight])
    if weight.numpy().tolist() != [1.0, 2.0]:
        raise ArithmeticError("the weights are not the ones of the paper")

    @tf.function
    def step(iterator):
        def replica_step(batch):
            context = tf.distribute.get_replica_context()
            share = tf.cast(tf.reduce_mean(batch[0]), weight.dtype)
            weight.assign_sub(0.1 * context.all_reduce("SUM", tf.stack([share, share])))

        next_batch = next(iterator)
        run.strategy.run(replica_step, args=(next_batch,))

    for _loss in run.steps(step, _data(run)):
        pass


def hangs_in_a_helper(run):
    if not run.is_reference:
        _wait()
    _train(run)


def _wait():
    signal.pause()


def on_one_device_too(run):
    exception_helpers.scale(0.0)


def in_a_traced_function_on_one_device_too(run):
    dense = tf.Variable(1.0)
    run.watch(variables=[dense])

    @tf.function
    def step(iterator):
        return exception_helpers.refuse(next(iterator))

    for _loss in run.steps(step, _data(run)):
        pass
