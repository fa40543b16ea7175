"""Common parts of the planted programs: data whose parts differ, a small model, and the loop of TensorFlow's guide."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

FEATURES = 6


def regression(rows=48, features=FEATURES):
    """Inputs and targets; every example pulls the weights elsewhere."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(rows, features)).astype("float32")
    y = (x[:, :1] * x[:, 1:2] + generator.normal(size=(rows, 1)) + 0.5).astype("float32")
    return x, y


def dataset(run, rows=48):
    return tf.data.Dataset.from_tensor_slices(regression(rows)).batch(run.global_batch_size)


def numbered_dataset(run, rows=48):
    """Return a dataset with an id per example, which the program batches later."""
    x, y = regression(rows)
    return tf.data.Dataset.from_tensor_slices({"x": x, "y": y, "example_id": np.arange(rows)})


def perceptron(hidden=5, **settings):
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(hidden, activation="tanh", **settings),
            keras.layers.Dense(1),
        ]
    )


def average(run, losses):
    return tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)


def squared_errors(model, x, y):
    return tf.square(model(x, training=True) - y)[:, 0]


def keras_program(run, optimizer=None, model=None):
    """Model and optimizer in the strategy's scope, watched."""
    with run.strategy.scope():
        model = (model or perceptron)()
        optimizer = optimizer() if optimizer else keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    return model, optimizer


def summed(run, replica_step):
    """The step of the guide: replicas return their part of the loss."""

    @tf.function
    def train_step(iterator):
        losses = run.strategy.run(replica_step, args=(next(iterator),))
        return run.strategy.reduce("SUM", losses, axis=None)

    return train_step


def train(run, replica_step, data=None):
    for _loss in run.steps(summed(run, replica_step), dataset(run) if data is None else data):
        pass


def all_reduce(values, op="SUM"):
    return tf.distribute.get_replica_context().all_reduce(op, values)


def replica_id():
    """Return the replica's id, or 0 in cross-replica context, in which Keras builds models."""
    context = tf.distribute.get_replica_context()
    return context.replica_id_in_sync_group if context is not None else 0


class Linear(tf.Module):
    """A model without Keras: two layers of plain variables, updated by hand."""

    def __init__(self, hidden=4, features=FEATURES):
        super().__init__()
        generator = np.random.default_rng(3)
        self.w1 = tf.Variable(generator.normal(size=(features, hidden)).astype("float32") * 0.5, name="w1")
        self.b1 = tf.Variable(tf.zeros((hidden,)), name="b1")
        self.w2 = tf.Variable(generator.normal(size=(hidden, 1)).astype("float32") * 0.5, name="w2")
        self.b2 = tf.Variable(tf.zeros((1,)), name="b2")

    def __call__(self, x):
        return tf.matmul(tf.tanh(tf.matmul(x, self.w1) + self.b1), self.w2) + self.b2

    def loss(self, run, x, y):
        return tf.reduce_sum(tf.square(self(x) - y)) / run.global_batch_size


def linear_program(run):
    with run.strategy.scope():
        model = Linear()
    run.watch(variables=list(model.trainable_variables))
    return model


def descend(variables, gradients, rate=0.1):
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(rate * gradient)
