"""Programs with dropout or batch normalization: right ones, and ones with a defect in these layers or beside them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, FEATURES = 48, 8


def _data(run: Any) -> tf.data.Dataset:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    y = generator.normal(size=(EXAMPLES, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)


def _train(run: Any, layers: Any, flavour: Any = keras, loss_of: Any = None, hidden: Any = None) -> None:
    """``layers(flavour)`` between two dense ones; ``hidden(h, replica, step)`` acts on what they give."""
    with run.strategy.scope():
        body = flavour.Sequential(
            [flavour.layers.InputLayer((FEATURES,)), flavour.layers.Dense(8, activation="tanh"), *layers(flavour)]
        )
        head = flavour.Sequential([flavour.layers.InputLayer((8,)), flavour.layers.Dense(1)])
        optimizer = flavour.optimizers.SGD(0.1)
    run.watch(model=[body, head], optimizer=optimizer)

    @tf.function
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            x, y = batch
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            with tf.GradientTape() as tape:
                h = body(x, training=True)
                if hidden is not None:
                    h = hidden(h, replica, tf.cast(optimizer.iterations, tf.int32))
                losses = tf.square(head(h) - y)[:, 0]
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
                loss = loss if loss_of is None else loss_of(losses)
            weights = body.trainable_variables + head.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, _data(run)):
        pass


def _nothing(_flavour: Any) -> list[Any]:
    return []


def _normalized(flavour: Any) -> list[Any]:
    return [flavour.layers.BatchNormalization()]


def _dropped(flavour: Any) -> list[Any]:
    return [flavour.layers.Dropout(0.5, seed=1)]


def keras_dropout(run: Any) -> None:
    _train(run, _dropped)


def tf_keras_dropout(run: Any) -> None:
    import tf_keras

    _train(run, lambda flavour: [flavour.layers.Dropout(0.5)], tf_keras)


def tf_keras_dropout_and_a_mean_per_replica(run: Any) -> None:
    import tf_keras

    _train(run, lambda flavour: [flavour.layers.Dropout(0.5)], tf_keras, tf.reduce_mean)


def keras_batch_normalization(run: Any) -> None:
    _train(run, _normalized)


def tf_keras_batch_normalization(run: Any) -> None:
    import tf_keras

    _train(run, _normalized, tf_keras)


def tf_keras_batch_normalization_and_a_mean_per_replica(run: Any) -> None:
    import tf_keras

    _train(run, _normalized, tf_keras, tf.reduce_mean)


def synchronized_batch_normalization(run: Any) -> None:
    _train(run, lambda flavour: [flavour.layers.BatchNormalization(synchronized=True)])


def noise_of_each_replica(run: Any) -> None:
    def noisy(h: Any, replica: Any, step: Any) -> Any:
        return h + tf.random.stateless_normal(tf.shape(h), tf.stack([replica, step]), dtype=h.dtype)

    _train(run, _nothing, hidden=noisy)


def noise_of_each_replica_and_a_mean_per_replica(run: Any) -> None:
    def noisy(h: Any, replica: Any, step: Any) -> Any:
        return h + tf.random.stateless_normal(tf.shape(h), tf.stack([replica, step]), dtype=h.dtype)

    _train(run, _nothing, hidden=noisy, loss_of=tf.reduce_mean)


def noise_by_step_alone(run: Any) -> None:
    def noisy(h: Any, _replica: Any, step: Any) -> Any:
        return h + tf.random.stateless_normal(tf.shape(h), tf.stack([1, step]), dtype=h.dtype)

    _train(run, _nothing, hidden=noisy)


def noise_by_replica_alone(run: Any) -> None:
    def noisy(h: Any, replica: Any, _step: Any) -> Any:
        return h + tf.random.stateless_normal(tf.shape(h), tf.stack([replica, 1]), dtype=h.dtype)

    _train(run, _nothing, hidden=noisy)


def random_features(run: Any) -> None:
    """Use the same random projection on every replica and in every step, on purpose."""
    _train(run, _nothing, hidden=lambda h, _r, _s: h @ tf.random.stateless_normal((8, 8), (1, 2), dtype=h.dtype))


def _with_state(run: Any, make: Any, update: Any) -> None:
    with run.strategy.scope():
        state = make()
    run.watch(variables={"state": state})
    _train(run, _nothing, hidden=lambda h, replica, _step: update(state, h, replica))


def _held(state: Any, h: Any) -> Any:
    with tf.control_dependencies([state]):
        return tf.identity(h)


def mean_activation_aggregated(run: Any) -> None:
    def make() -> Any:
        kinds = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.MEAN}
        return tf.Variable(tf.zeros([8], keras.backend.floatx()), trainable=False, **kinds)

    _with_state(run, make, lambda s, h, _r: _held(s.assign(0.9 * s + 0.1 * tf.reduce_mean(h, axis=0)), h))


def mean_activation_of_the_first_replica(run: Any) -> None:
    def make() -> Any:
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        return tf.Variable(tf.zeros([8], keras.backend.floatx()), trainable=False, aggregation=first)

    _with_state(run, make, lambda s, h, _r: _held(s.assign(0.9 * s + 0.1 * tf.reduce_mean(h, axis=0)), h))


def mean_activation_of_each_replica(run: Any) -> None:
    def make() -> Any:
        return tf.Variable(tf.zeros([8], keras.backend.floatx()), trainable=False)

    _with_state(run, make, lambda s, h, _r: _held(s.assign(0.9 * s + 0.1 * tf.reduce_mean(h, axis=0)), h))


def steps_counted_once_per_replica(run: Any) -> None:
    def make() -> Any:
        return tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.SUM)

    _with_state(run, make, lambda s, h, _r: _held(s.assign_add(tf.constant(1)), h))


def an_optimizer_watched_on_one_device_alone(run: Any) -> None:
    with run.strategy.scope():
        weight = tf.Variable(tf.ones([2], keras.backend.floatx()))
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build([weight])
    run.watch(variables=[weight], optimizer=optimizer if run.is_reference else None)

    @tf.function
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(batch[0][:, :2] * weight) / run.global_batch_size
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, _data(run)):
        pass


def a_mean_per_replica_in_every_other_step(run: Any) -> None:
    """A program with a defect in the branch that it takes for about half of the random numbers."""

    def loss_of(losses: Any) -> Any:
        if tf.random.uniform([]) < 0.5:
            loss = tf.reduce_mean(losses)
        else:
            loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
        return loss

    _train(run, _nothing, loss_of=loss_of)


def a_mean_per_replica_in_one_of_three_ways(run: Any) -> None:
    """A program with a defect in a way that it takes for about a third of the random numbers."""

    def loss_of(losses: Any) -> Any:
        right = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
        way = tf.random.uniform([], 0, 3, tf.int32)
        return tf.switch_case(way, [lambda: right, lambda: tf.reduce_mean(losses), lambda: 0.5 * right])

    _train(run, _nothing, loss_of=loss_of)


def augmented_in_a_vectorized_map(run: Any) -> None:
    """A right program that draws inside tf.vectorized_map."""

    def changed(h: Any, _replica: Any, _step: Any) -> Any:
        return tf.vectorized_map(lambda row: row * (1.0 + tf.cast(tf.random.uniform([], 0, 3, tf.int32), row.dtype)), h)

    _train(run, _nothing, hidden=changed)


def few_examples_chosen_at_random(run: Any) -> None:
    """A right program that trains on few examples, as a masked language model does."""

    def loss_of(losses: Any) -> Any:
        chosen = tf.cast(tf.random.uniform(tf.shape(losses)) < 0.15, losses.dtype)
        number = tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(chosen))
        return tf.reduce_sum(losses * chosen) / tf.maximum(number, 1.0)

    _train(run, _nothing, loss_of=loss_of)
