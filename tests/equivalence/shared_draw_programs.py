"""Programs that draw numbers which belong to no example, right ones and ones that mix the draws of the replicas."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from random_programs import _data, _errors, _mean, _train


def _mean_of_replicas(value: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce("mean", value)


def _number(x: Any, shape: Any = ()) -> Any:
    return tf.cast(tf.random.uniform(shape), x.dtype)


def noise_on_inputs(run: Any, averaged: bool = False) -> None:
    """All examples of a replica get the same noise."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        noise = tf.cast(tf.random.normal([6]), x.dtype)
        return _mean(run, _errors(model, x + 0.5 * (_mean_of_replicas(noise) if averaged else noise), y))

    _train(run, loss_of)


def averaged_noise_on_inputs(run: Any) -> None:
    noise_on_inputs(run, averaged=True)


def mixed_up_by_one_number(run: Any, averaged: bool = False) -> None:
    """Mixup with one share for all examples of a replica."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        share = _number(x)
        share = tf.maximum(share, 1 - share)
        of_targets = _mean_of_replicas(share) if averaged else share
        order = tf.random.shuffle(tf.range(tf.shape(x)[0]))
        mixed = share * x + (1 - share) * tf.gather(x, order)
        return _mean(run, _errors(model, mixed, of_targets * y + (1 - of_targets) * tf.gather(y, order)))

    _train(run, loss_of)


def mixed_up_with_averaged_targets(run: Any) -> None:
    mixed_up_by_one_number(run, averaged=True)


def stochastic_depth(run: Any, averaged: bool = False) -> None:
    """The inputs pass a branch or not, the same for all examples of a replica."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        gate = tf.cast(_number(x) < 0.6, x.dtype)
        rate = (0.1 + _mean_of_replicas(gate)) if averaged else 0.6
        return _mean(run, tf.square(y + gate / rate * model(x, training=True))[:, 0])

    _train(run, loss_of)


def stochastic_depth_by_the_averaged_gate(run: Any) -> None:
    stochastic_depth(run, averaged=True)


def masked_features(run: Any, averaged: bool = False, layers: Any = ()) -> None:
    """All examples of a replica lose the same features, and the others are scaled up."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        mask = tf.cast(_number(x, [6]) < 0.5, x.dtype)
        kept = 0.1 + tf.reduce_mean(mask)
        return _mean(run, _errors(model, x * mask / (_mean_of_replicas(kept) if averaged else kept), y))

    _train(run, loss_of, layers=layers)


def masked_features_by_the_averaged_mask(run: Any) -> None:
    masked_features(run, averaged=True)


def masked_features_before_synchronized_batch_normalization(run: Any) -> None:
    with run.strategy.scope():
        layer = keras.layers.BatchNormalization(synchronized=True)
    masked_features(run, layers=[layer])


def number_of_one_replica(run: Any, index: int = 0, only_targets: bool = False) -> None:
    """All replicas take the number of one replica, as one device has one number."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        context, own = tf.distribute.get_replica_context(), _number(x)
        mine = tf.equal(context.replica_id_in_sync_group, index % run.num_replicas)
        share = context.all_reduce("sum", tf.cast(mine, x.dtype) * own)
        return _mean(run, _errors(model, (own if only_targets else share) * x, share * y))

    _train(run, loss_of)


def number_of_the_last_replica(run: Any) -> None:
    number_of_one_replica(run, -1)


def number_of_one_replica_for_targets(run: Any) -> None:
    """The examples of the other replicas are scaled by their own numbers, and their targets by another one."""
    number_of_one_replica(run, only_targets=True)


def skipped_gradients(run: Any, averaged: bool = False) -> None:
    """Each replica leaves out its gradient at random; the program adds the gradients up itself."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch: Any) -> Any:
        x, y = (tf.cast(part, model.compute_dtype) for part in batch)
        with tf.GradientTape() as tape:
            loss = _mean(run, _errors(model, x, y))
        kept = tf.cast(_number(x) < 0.7, x.dtype)
        share = 0.1 + _mean_of_replicas(kept) if averaged else 1.0
        gradients = [kept / share * g for g in tape.gradient(loss, model.trainable_variables)]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(iterator: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _ in run.steps(step, _data(run)):
        pass


def skipped_gradients_by_the_averaged_share(run: Any) -> None:
    skipped_gradients(run, averaged=True)


def _reports(run: Any, number: Any) -> None:
    """Train with one noise for all examples of a replica, and report a number of it."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch: Any) -> Any:
        x, y = (tf.cast(part, model.compute_dtype) for part in batch)
        noise = tf.random.normal([], dtype=x.dtype)
        with tf.GradientTape() as tape:
            loss = _mean(run, _errors(model, x + 0.1 * noise, y))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss, number(noise) / run.num_replicas

    @tf.function
    def step(batch: Any) -> Any:
        given = run.strategy.run(replica_step, args=(batch,))
        return [run.strategy.reduce("SUM", value, axis=None) for value in given]

    for batch in run.batches(_data(run)):
        loss, shown = step(batch)
        run.record(loss=loss, shown=shown)


def reports_a_mean_over_replicas(run: Any) -> None:
    _reports(run, tf.exp)


def reports_a_function_of_a_mean_over_replicas(run: Any) -> None:
    _reports(run, lambda noise: tf.exp(_mean_of_replicas(noise)))
