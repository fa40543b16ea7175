"""Programs whose advice must fit: small loops without Keras, each with one mistake, and what is right beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

EXAMPLES, FEATURES = 48, 6
MEAN, SUM = tf.VariableAggregation.MEAN, tf.VariableAggregation.SUM


def _arrays() -> tuple[Any, Any]:
    generator = np.random.default_rng(7)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    return x, (x[:, :1] + generator.normal(size=(EXAMPLES, 1))).astype("float32")


def _data(run: Any, arrays: Any = None) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_arrays() if arrays is None else arrays).batch(run.global_batch_size)


def _weights(run: Any, **settings: Any) -> list[Any]:
    generator = np.random.default_rng(3)
    with run.strategy.scope():
        return [
            tf.Variable(generator.normal(size=shape).astype("float32"), name=name, **settings)
            for name, shape in (("w1", (FEATURES, 4)), ("w2", (4, 1)))
        ]


def _predicted(weights: Any, x: Any) -> Any:
    return tf.tanh(x @ weights[0]) @ weights[1]


def _loss(run: Any, weights: Any, x: Any, y: Any) -> Any:
    return tf.reduce_sum(tf.square(_predicted(weights, x) - y)) / run.global_batch_size


def all_reduce(values: Any, op: str = "SUM") -> Any:
    return tf.distribute.get_replica_context().all_reduce(op, values)


def _summed(run: Any, replica_step: Any) -> Any:
    @tf.function
    def train_step(iterator: Any) -> Any:
        losses = run.strategy.run(replica_step, args=(next(iterator),))
        return run.strategy.reduce("SUM", losses, axis=None)

    return train_step


def _train(run: Any, weights: Any, beside: Callable[[Any, Any], None] | None = None, watched: Any = ()) -> None:
    """A right loop; ``beside(x, y)`` does something else on each replica."""
    run.watch(variables=[*weights, *watched])

    def replica_step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = _loss(run, weights, x, y)
        for weight, gradient in zip(weights, all_reduce(tape.gradient(loss, weights)), strict=True):
            weight.assign_sub(0.1 * gradient)
        if beside is not None:
            beside(x, y)
        return loss

    for _loss_of_step in run.steps(_summed(run, replica_step), _data(run)):
        pass


def _running_counts(run: Any, reduced: bool) -> None:
    weights = _weights(run)
    with run.strategy.scope():
        counts = tf.Variable(tf.ones((4,)), trainable=False, name="counts", aggregation=MEAN)

    def count(x: Any, _y: Any) -> None:
        here = tf.reduce_sum(tf.one_hot(tf.argmax(x[:, :4], 1), 4), 0)
        counts.assign(0.9 * counts + 0.1 * (all_reduce(here) if reduced else here))

    _train(run, weights, count, [counts])


def running_counts_of_each_replica(run: Any) -> None:
    """The counts of a codebook, whose mean over the replicas is declared."""
    _running_counts(run, reduced=False)


def running_counts_of_the_batch(run: Any) -> None:
    _running_counts(run, reduced=True)


def _target_network(run: Any, reduced: bool) -> None:
    online, target = _weights(run), _weights(run)
    run.watch(variables=[*online, *target])

    def replica_step(batch: Any) -> Any:
        x, y = batch
        goal = y + 0.5 * _predicted(target, x)
        with tf.GradientTape() as tape:
            loss = _loss(run, online, x, goal)
        for weight, gradient in zip(online, all_reduce(tape.gradient(loss, online)), strict=True):
            weight.assign_sub(0.1 * gradient)
        mean = tf.reduce_mean(x[:, 0])
        mean = all_reduce(mean, "MEAN") if reduced else mean
        for old, new in zip(target, online, strict=True):
            old.assign(tf.where(mean > 0, new, old))
        return loss

    for _loss_of_step in run.steps(_summed(run, replica_step), _data(run)):
        pass


def target_network_by_the_replicas_own_condition(run: Any) -> None:
    _target_network(run, reduced=False)


def target_network_by_a_common_condition(run: Any) -> None:
    _target_network(run, reduced=True)


def _descent_by_hand(run: Any, reduced: bool, **settings: Any) -> None:
    weights = _weights(run, **settings)
    run.watch(variables=weights)

    def replica_step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = _loss(run, weights, x, y)
        gradients = tape.gradient(loss, weights)
        for weight, gradient in zip(weights, all_reduce(gradients) if reduced else gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    for _loss_of_step in run.steps(_summed(run, replica_step), _data(run)):
        pass


def own_updates_that_are_averaged(run: Any) -> None:
    _descent_by_hand(run, reduced=False, aggregation=MEAN)


def own_updates_that_are_summed(run: Any) -> None:
    _descent_by_hand(run, reduced=False, aggregation=SUM)


def reduced_updates_that_are_summed(run: Any) -> None:
    _descent_by_hand(run, reduced=True, aggregation=SUM)


def reduced_updates_that_are_averaged(run: Any) -> None:
    _descent_by_hand(run, reduced=True, aggregation=MEAN)


def _accuracy(run: Any, how: str) -> None:
    weights = _weights(run)
    run.watch(variables=weights)

    def replica_step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = _loss(run, weights, x, y)
        for weight, gradient in zip(weights, all_reduce(tape.gradient(loss, weights)), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss, tf.reduce_mean(tf.abs(y))

    @tf.function
    def train_step(iterator: Any) -> Any:
        loss, error = run.strategy.run(replica_step, args=(next(iterator),))
        return run.strategy.reduce("SUM", loss, axis=None), run.strategy.reduce(how, error, axis=None)

    iterator, total = iter(run.strategy.experimental_distribute_dataset(_data(run))), 0.0
    for _ in range(4):
        loss, error = train_step(iterator)
        total += float(error)
        run.record(loss=loss)
        run.value("errors", total)


def means_that_are_added_up(run: Any) -> None:
    _accuracy(run, "SUM")


def means_that_are_averaged(run: Any) -> None:
    _accuracy(run, "MEAN")


def _guarded(run: Any, reduced: bool) -> None:
    weights = _weights(run)
    run.watch(variables=weights)
    x, y = _arrays()
    x[8] = np.inf

    def replica_step(batch: Any) -> Any:
        inputs, targets = batch
        with tf.GradientTape() as tape:
            loss = _loss(run, weights, inputs, targets)
        own = tape.gradient(loss, weights)
        own = all_reduce(own) if reduced else own
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in own])
        own = [tf.where(finite, gradient, tf.zeros_like(gradient)) for gradient in own]
        for weight, gradient in zip(weights, own if reduced else all_reduce(own), strict=True):
            weight.assign_sub(0.1 * gradient)
        return tf.where(all_reduce(tf.cast(finite, tf.float32), "MEAN") == 1.0, loss, 0.0)

    for _loss_of_step in run.steps(_summed(run, replica_step), _data(run, (x, y))):
        pass


def a_replica_leaves_out_its_own_gradient(run: Any) -> None:
    _guarded(run, reduced=False)


def all_replicas_leave_out_the_step(run: Any) -> None:
    _guarded(run, reduced=True)


def _with_a_term(run: Any, term: Callable[[Any, Any], Any]) -> None:
    """Plain descent of a loss; ``term(predictions, errors)`` gives it."""
    weights = _weights(run)
    run.watch(variables=weights)

    def replica_step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            predictions = _predicted(weights, x)
            loss = term(predictions, tf.square(predictions - y)[:, 0])
        for weight, gradient in zip(weights, all_reduce(tape.gradient(loss, weights)), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    for _loss_of_step in run.steps(_summed(run, replica_step), _data(run)):
        pass


def every_replica_leaves_out_its_easiest_example(run: Any) -> None:
    def hardest(_predictions: Any, losses: Any) -> Any:
        return tf.reduce_sum(tf.math.top_k(losses, tf.shape(losses)[0] - 1)[0]) / run.global_batch_size

    _with_a_term(run, hardest)


def one_term_is_a_mean_of_each_replica(run: Any) -> None:
    def with_a_mean(predictions: Any, losses: Any) -> Any:
        return tf.reduce_sum(losses) / run.global_batch_size + 0.1 * tf.reduce_mean(tf.square(predictions))

    _with_a_term(run, with_a_mean)


def every_term_is_a_share(run: Any) -> None:
    def shares(predictions: Any, losses: Any) -> Any:
        return (tf.reduce_sum(losses) + 0.1 * tf.reduce_sum(tf.square(predictions))) / run.global_batch_size

    _with_a_term(run, shares)
