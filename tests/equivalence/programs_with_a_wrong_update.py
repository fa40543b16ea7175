"""Programs that train two models or change variables themselves, with one wrong line each, which is marked."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True) + np.random.default_rng(1).normal(size=(64, 1)).astype("float32")


class OfReplica(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):  # wrong: schedule
        context = tf.distribute.get_replica_context()
        replica = 0 if context is None else context.replica_id_in_sync_group
        return 0.05 / (1.0 + tf.cast(replica, tf.float32))

    def get_config(self):
        return {}


def rate_of(run, wrong):
    if wrong == "schedule":
        return OfReplica()
    if wrong == "decay_of_worker":
        return keras.optimizers.schedules.ExponentialDecay(0.02 * (1 + run.rank), 10, 0.9)
    return 0.02 * (run.num_replicas if wrong == "rate" else 1)


def train(run, wrong):
    """Train two models on one loss each, with the mistake of a name."""
    strategy = run.strategy
    with strategy.scope():
        first = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="one")], name="first")
        second = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="two")], name="second")
        of_first = keras.optimizers.SGD(0.05)
        optimizer = keras.optimizers.SGD(rate_of(run, wrong))  # wrong: rate, decay_of_worker
        for each, model in ((of_first, first), (optimizer, second)):
            each.build(model.trainable_variables)
    kernel = second.layers[0].kernel
    kept = second.get_weights()
    second.set_weights([2 * value for value in kept])
    path = str(run.tmp_path / f"{run.rank}.weights.h5")
    second.save_weights(path)
    second.set_weights(kept)
    if wrong == "restored" and run.rank == 0:
        second.load_weights(path)  # wrong: restored
    if wrong == "started":
        kernel.assign(kernel / run.num_replicas)  # wrong: started
    if wrong == "rate_set":
        optimizer.learning_rate = 0.02 * run.num_replicas  # wrong: rate_set
    run.watch(model=[first, second], optimizer=[of_first, optimizer])

    def average(losses):
        return tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)

    def replica(batch):
        x, y = batch
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape, tf.GradientTape() as of_second:
            loss = average(tf.reduce_sum(tf.square(first(x) - y), axis=1))
            losses = tf.reduce_sum((second(x) - y) ** 2, axis=1)
            of_losses = tf.reduce_mean(losses) if wrong == "loss" else average(losses)  # wrong: loss
        gradients = tape.gradient(loss, first.trainable_variables)
        of_first.apply_gradients(zip(gradients, first.trainable_variables, strict=True))
        gradients = of_second.gradient(of_losses, second.trainable_variables)
        if wrong == "exchange":
            gradients = context.all_reduce("sum", gradients)  # wrong: exchange
        if wrong == "noise":
            norm = context.all_reduce("sum", tf.linalg.global_norm(gradients))
            gradients = [g + 0.01 + 0 * norm for g in gradients]
        if wrong == "decay":
            gradients = [g + 0.1 * v for g, v in zip(gradients, second.trainable_variables, strict=True)]
        optimizer.apply_gradients(zip(gradients, second.trainable_variables, strict=True))  # wrong: decay, noise
        if wrong == "count" and run.num_replicas > 1:
            optimizer.iterations.assign_add(1)  # wrong: count
        return loss, tf.reduce_mean(losses)

    @tf.function
    def both(iterator):
        loss, error = strategy.run(replica, (next(iterator),))
        how = "SUM" if wrong == "value" else "MEAN"
        error = strategy.reduce(how, error, axis=None)  # wrong: value
        return strategy.reduce("SUM", loss, axis=None), error

    errors = []

    def step(iterator):
        loss, error = both(iterator)
        errors.append(error)
        return loss

    for _loss in run.steps(step, tf.data.Dataset.from_tensor_slices((X, Y)).batch(run.global_batch_size)):
        if wrong == "cut" and run.rank == 0:
            kernel.assign(tf.clip_by_value(kernel, -0.01, 0.01))  # wrong: cut
    if wrong == "ending":
        kernel.assign(kernel / run.num_replicas)  # wrong: ending
    if wrong in ("value", "nothing"):
        run.value("share", 1.0)
        run.value("error", errors[-1])


NAMES = (
    "rate", "rate_set", "schedule", "decay_of_worker", "count", "restored", "started", "cut", "value", "loss",
    "exchange", "decay", "noise", "ending",
)  # fmt: skip
globals().update({name: functools.partial(train, wrong=name) for name in (*NAMES, "nothing")})


def scheduled_fit(run):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), loss="mse")
    run.watch(model=model)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(run.global_batch_size)
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.01 * run.num_replicas)
    run.fit(model, data, callbacks=[scheduler])  # wrong: scheduled_fit


def by_hand(run):
    strategy = run.strategy
    with strategy.scope():
        weight = tf.Variable(tf.ones((4, 1)) * 0.3, name="weight", aggregation=tf.VariableAggregation.MEAN)
    run.watch(variables=[weight])

    def replica(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.reduce_sum((x @ weight - y) ** 2, axis=1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
        weight.assign_sub(0.02 * tape.gradient(loss, weight))  # wrong: by_hand
        return loss

    @tf.function
    def step(iterator):
        return strategy.reduce("SUM", strategy.run(replica, (next(iterator),)), axis=None)

    for _loss in run.steps(step, tf.data.Dataset.from_tensor_slices((X, Y)).batch(run.global_batch_size)):
        pass
