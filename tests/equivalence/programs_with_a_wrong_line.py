"""Programs with one wrong line each, which is marked."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True) + np.random.default_rng(1).normal(size=(64, 1)).astype("float32")


def dataset(run):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(run.global_batch_size)


def train(run, wrong, eager=False):
    """Train a linear model by hand, with the mistake of a name."""
    strategy = run.strategy
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        seen = tf.Variable(  # wrong: state
            tf.zeros(()), trainable=False, synchronization=tf.VariableSynchronization.ON_WRITE,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )  # fmt: skip
    run.watch(model=model, optimizer=optimizer, variables=[seen])

    def replica(batch):
        x, y = batch
        context = tf.distribute.get_replica_context()
        if wrong == "draw":
            seed = [1, tf.cast(optimizer.iterations, tf.int32)]
            x = x * tf.random.stateless_uniform(tf.shape(x), seed)  # wrong: draw
        with tf.GradientTape() as tape:
            losses = tf.reduce_sum((model(x) - y) ** 2, axis=1)
            if wrong in ("loss", "eager"):
                loss = tf.reduce_mean(losses)  # wrong: loss
            else:
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            result = loss
        gradients = tape.gradient(result, model.trainable_variables)  # wrong: eager
        if wrong == "update":
            gradients = [tf.clip_by_norm(gradient, 0.1) for gradient in gradients]
        if wrong == "twice":
            gradients = context.all_reduce("sum", gradients)  # wrong: twice
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))  # wrong: update
        if wrong == "state":
            seen.assign_add(tf.reduce_mean(x))
        return loss

    def step(iterator):
        losses = strategy.run(replica, (next(iterator),))
        how = "MEAN" if wrong == "report" else "SUM"
        return strategy.reduce(how, losses, axis=None)  # wrong: report

    def unsharded(context):  # wrong: data
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(
            context.get_per_replica_batch_size(run.global_batch_size)
        )

    for _loss in run.steps(step if eager else tf.function(step), unsharded if wrong == "data" else dataset(run)):
        pass
    if wrong == "value":
        run.value("share", 1 / run.num_replicas)  # wrong: value
    if wrong == "write":
        model.save_weights(run.tmp_path / "all.weights.h5")  # wrong: write


loss, update, draw, state, report, twice, data, value, write = (
    functools.partial(train, wrong=name)
    for name in ("loss", "update", "draw", "state", "report", "twice", "data", "value", "write")
)
eager = functools.partial(train, wrong="eager", eager=True)


def conditional(run):
    strategy = run.strategy
    with strategy.scope():
        weight = tf.Variable(tf.ones((4, 1)))
    run.watch(variables=[weight])

    def replica(batch):
        x, y = batch
        context = tf.distribute.get_replica_context()
        gradient = context.all_reduce("sum", tf.matmul(x, x @ weight - y, transpose_a=True))
        if run.rank == 0:
            context.all_reduce("sum", tf.ones(3))  # wrong: conditional
        weight.assign_sub(0.01 * gradient)

    @tf.function
    def step(iterator):
        strategy.run(replica, (next(iterator),))

    for _loss in run.steps(step, dataset(run)):
        pass


def fit(run):
    def loss(y, prediction):  # wrong: fit
        return keras.ops.mean((y - prediction) ** 2)

    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), loss=loss)
    run.watch(model=model)
    run.fit(model, dataset(run))
