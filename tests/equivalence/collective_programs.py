"""Programs of two workers that get out of step, or lose numbers in a reduction."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def _training(run):
    """A linear model with a hand-written step, and its data."""
    with run.strategy.scope():
        weight = tf.Variable(np.ones((4, 1), "float32"))
        total = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    run.watch(variables=[weight])
    x = np.random.default_rng(0).normal(size=(36, 4)).astype("float32")

    def replica_step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.matmul(batch, weight))) / run.global_batch_size
        gradient = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, weight))
        weight.assign_sub(0.01 * gradient)
        total.assign_add(1.0)
        return loss

    @tf.function
    def step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    return step, tf.data.Dataset.from_tensor_slices(x).batch(run.global_batch_size), total


def right(run):
    step, data, _total = _training(run)
    for batch in run.batches(data):
        run.record(loss=step(batch))


def chief_evaluates_at_the_end(run):
    right(run)

    @tf.function
    def evaluate():
        return run.strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones(())))

    if run.rank == 0:
        evaluate()


def chief_saves(run):
    step, data, total = _training(run)
    for batch in run.batches(data):
        run.record(loss=step(batch))
    if run.rank == 0:
        tf.train.Checkpoint(total=total).write(str(run.rank_path / "saved"))


def one_worker_takes_a_step_more(run):
    step, data, _total = _training(run)
    iterator = iter(run.strategy.experimental_distribute_dataset(data.repeat()))
    for _ in range(2 if run.rank == 1 else 3):
        run.record(loss=step(next(iterator)))


def one_worker_raises(run):
    step, data, _total = _training(run)
    for number, batch in enumerate(run.batches(data)):
        if run.rank == 1 and number == 1:
            raise ValueError("my own mistake")
        run.record(loss=step(batch))


def counts_too_far(run):
    """2**30 twice is -2**31 in 32 bits."""
    step, data, _total = _training(run)

    @tf.function
    def count():
        return run.strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(2**30)))

    for batch in run.batches(data):
        count()
        run.record(loss=step(batch))
