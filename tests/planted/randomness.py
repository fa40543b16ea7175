"""Random numbers that repeat although they should not."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def _train_keras(run, model, optimizer, data=None):
    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step, data)


class ReplicaDropout(keras.layers.Layer):
    """Drops by a stateless draw whose seed has the replica in it, and the step."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def build(self, shape):
        self.calls = self.add_weight(
            shape=(),
            dtype="int32",
            initializer="zeros",
            trainable=False,
            name="calls",
            aggregation="only_first_replica",
        )

    def call(self, x):
        self.calls.assign_add(tf.constant(1, tf.int32))
        seed = tf.stack([self.seed, tf.cast(self.calls, tf.int32)])
        seed = tf.random.experimental.stateless_fold_in(seed, loops.replica_id())
        return x * tf.cast(tf.random.stateless_uniform(tf.shape(x), seed) > 0.5, x.dtype) * 2


def dropout_of_keras_draws_alike_on_all_replicas(run, sin):
    def make():
        dropout = keras.layers.Dropout(0.5, seed=3) if sin else ReplicaDropout(3)
        hidden = keras.layers.Dense(6, activation="tanh")
        return keras.Sequential([keras.Input((loops.FEATURES,)), hidden, dropout, keras.layers.Dense(1)])

    _train_keras(run, *loops.keras_program(run, model=make))


def _noisy_step(run, model, optimizer, noise_of):
    def replica_step(batch, number):
        x, y = batch
        x += tf.cast(noise_of(x, tf.cast(number, tf.int32)), x.dtype)
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(batch, number):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch, number)), axis=None)

    for number, batch in enumerate(run.batches(loops.dataset(run))):
        run.record(loss=train_step(batch, tf.constant(number)))


def _own_part(run, noise):
    """This replica's rows of what was drawn for the global batch."""
    size = run.global_batch_size // run.num_replicas
    return noise[loops.replica_id() * size :][:size]


def augmentation_draws_alike_on_all_replicas(run, sin):
    """Noise for the replica's examples from the step's seed. The right program draws it for the global batch."""
    model, optimizer = loops.keras_program(run)

    def noise_of(x, number):
        seed = tf.stack([run.seed, number])
        if sin:
            return 0.3 * tf.random.stateless_normal(tf.shape(x), seed)
        return 0.3 * _own_part(run, tf.random.stateless_normal((run.global_batch_size, loops.FEATURES), seed))

    _noisy_step(run, model, optimizer, noise_of)


def replica_id_is_that_of_the_first_call(run, sin):
    """A layer that asks for its replica once and keeps the answer: a SavedModel does the same."""
    asked = []

    class Noise(keras.layers.Layer):
        def call(self, x):
            if not asked:
                asked.append(0)
            replica = asked[0] if sin else loops.replica_id()
            seed = tf.random.experimental.stateless_fold_in(tf.constant([5, 6]), replica)
            seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(tf.reduce_sum(self.number), tf.int32))
            return x + 0.3 * tf.cast(tf.random.stateless_normal(tf.shape(x), seed), x.dtype)

        def build(self, shape):
            self.number = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    noise = []

    def make():
        noise.append(Noise())
        return keras.Sequential([keras.Input((loops.FEATURES,)), *noise, keras.layers.Dense(1)])

    model, optimizer = loops.keras_program(run, model=make)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        noise[0].number.assign_add(tf.constant(1, tf.int32))
        return loss

    loops.train(run, replica_step)


def every_step_draws_the_same_features_to_drop(run, sin):
    """A mask over features, alike for all examples: it must be the same on all replicas, and change by step."""
    model = loops.linear_program(run)

    def replica_step(batch, number):
        x, y = batch
        seed = tf.stack([run.seed, 0 if sin else tf.cast(number, tf.int32)])
        mask = tf.cast(tf.random.stateless_uniform((loops.FEATURES,), seed) > 0.3, x.dtype)
        with tf.GradientTape() as tape:
            loss = model.loss(run, x * mask, y)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        return loss

    @tf.function
    def train_step(batch, number):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch, number)), axis=None)

    for number, batch in enumerate(run.batches(loops.dataset(run))):
        run.record(loss=train_step(batch, tf.constant(number)))


def every_step_draws_the_same_noise(run, sin):
    """The seed lacks the step."""
    model, optimizer = loops.keras_program(run)

    def noise_of(x, number):
        seed = tf.stack([run.seed, 0 if sin else number])
        return 0.3 * _own_part(run, tf.random.stateless_normal((run.global_batch_size, loops.FEATURES), seed))

    _noisy_step(run, model, optimizer, noise_of)


def initial_weights_are_drawn_by_rank(run, sin):
    if sin:
        keras.utils.set_random_seed(run.seed + run.rank)
    with run.strategy.scope():
        generator = np.random.default_rng(run.seed + (run.rank if sin else 0))
        weight = tf.Variable(tf.zeros((loops.FEATURES, 1)), name="weight")
        weight.assign(generator.normal(size=weight.shape))
    run.watch(variables=[weight])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.matmul(x, weight) - y)) / run.global_batch_size
        weight.assign_sub(0.05 * loops.all_reduce(tape.gradient(loss, weight)))
        return loss

    loops.train(run, replica_step)


def gradient_is_doubled_behind_dropout(run, sin):
    """The Dropout of Keras draws alike on all replicas: a difference that is declared, beside one that is not."""

    def make():
        hidden = keras.layers.Dense(6, activation="tanh")
        return keras.Sequential(
            [keras.Input((loops.FEATURES,)), hidden, keras.layers.Dropout(0.3), keras.layers.Dense(1)]
        )

    model, optimizer = loops.keras_program(run, model=make)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = loops.squared_errors(model, x, y)
            loss = tf.reduce_mean(losses) if sin else loops.average(run, losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


ACROSS_REPLICAS, ACROSS_STEPS = "random-stream-repeated-across-replicas", "random-stream-repeated-across-steps"
PLANTED = (
    planted("C13", dropout_of_keras_draws_alike_on_all_replicas, ACROSS_REPLICAS),
    planted("C13", augmentation_draws_alike_on_all_replicas, ACROSS_REPLICAS),
    planted("C26", replica_id_is_that_of_the_first_call, ACROSS_REPLICAS),
    planted("", every_step_draws_the_same_features_to_drop, ACROSS_STEPS),
    planted("", every_step_draws_the_same_noise, ACROSS_STEPS),
    planted(
        "",
        gradient_is_doubled_behind_dropout,
        "gradient-scaled-by-replica-count",
        expect_of_twin=(ACROSS_REPLICAS,),
    ),
    planted("C17", initial_weights_are_drawn_by_rank, "initial-weights-differ", strategies=("multi_worker_mirrored",)),
)
