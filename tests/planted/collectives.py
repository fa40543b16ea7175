"""Collectives that not all ranks issue, or not in one order, or not of one shape."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def _keras_step(run, model, optimizer):
    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return replica_step


def chief_alone_evaluates(run, sin):
    """Validation with a reduction over the workers, for the chief's log."""
    model, optimizer = loops.keras_program(run)
    x, y = loops.regression(8)

    @tf.function
    def validate(x, y):
        losses = run.strategy.run(lambda: tf.reduce_mean(tf.square(model(x) - y)))
        return run.strategy.reduce("MEAN", losses, axis=None)

    for _ in run.steps(loops.summed(run, _keras_step(run, model, optimizer)), loops.dataset(run)):
        if run.rank == 0 or not sin:
            validate(tf.constant(x), tf.constant(y))


def chief_alone_logs_a_reduced_loss(run, sin):
    """Every second step, outside any tf.function."""
    model, optimizer = loops.keras_program(run)
    replica_step = _keras_step(run, model, optimizer)

    @tf.function
    def train_step(batch):
        return run.strategy.run(replica_step, args=(batch,))

    for number, batch in enumerate(run.batches(loops.dataset(run))):
        losses = train_step(batch)
        if number % 2 == 1 and (run.rank == 0 or not sin):
            float(run.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None))
        run.record(loss=run.strategy.reduce("SUM", losses, axis=None))


def chief_alone_saves_synchronised_variables(run, sin):
    """Saving reads variables that are summed on reading, which takes all workers."""
    model, optimizer = loops.keras_program(run)
    with run.strategy.scope():
        total = tf.Variable(
            0.0,
            trainable=False,
            dtype=tf.float32,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    checkpoint = tf.train.Checkpoint(model=model, total=total)
    step = _keras_step(run, model, optimizer)

    def replica_step(batch):
        total.assign_add(1.0)
        return step(batch)

    for _ in run.steps(loops.summed(run, replica_step), loops.dataset(run)):
        if run.rank == 0 or not sin:
            checkpoint.write(str(run.rank_path / "saved"))


def last_worker_leaves_out_a_variable(run, sin):
    """A head that is not used on one worker has no gradient there, and is filtered out."""
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        pairs = list(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        if sin and run.rank == 1:
            pairs = pairs[:-1]
        optimizer.apply_gradients(pairs)
        return loss

    loops.train(run, replica_step)


def workers_reduce_in_different_orders(run, sin):
    """Gradients in a set, whose order is another on every worker; equal shapes are swapped in silence."""
    with run.strategy.scope():
        generator = np.random.default_rng(8)
        weights = {
            name: tf.Variable(generator.normal(size=(loops.FEATURES, 1)).astype("float32"), name=name)
            for name in ("left", "right")
        }
    run.watch(variables=weights)
    names = sorted(weights, reverse=bool(sin and run.rank % 2))

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            predictions = tf.matmul(x, weights["left"]) + tf.tanh(tf.matmul(x, weights["right"]))
            loss = tf.reduce_sum(tf.square(predictions - y)) / run.global_batch_size
        gradients = tape.gradient(loss, weights)
        for name in names:
            weights[name].assign_sub(0.05 * loops.all_reduce(gradients[name]))
        return loss

    loops.train(run, replica_step)


def workers_reduce_vectors_of_different_length(run, sin):
    """A histogram of as many bins as the worker saw values."""
    model, optimizer = loops.keras_program(run)
    step = _keras_step(run, model, optimizer)

    def replica_step(batch):
        length = 4 + run.rank if sin else 4
        histogram = loops.all_reduce(tf.ones((length,)) * tf.cast(tf.shape(batch[0])[0], tf.float32))
        return step(batch) + 0.0 * tf.cast(tf.reduce_sum(histogram), keras.config.floatx())

    loops.train(run, replica_step)


def workers_reduce_different_types(run, sin):
    """One worker's counts are whole numbers, the other's are not."""
    model, optimizer = loops.keras_program(run)
    step = _keras_step(run, model, optimizer)

    def replica_step(batch):
        dtype = tf.int32 if sin and run.rank == 1 else tf.float32
        count = loops.all_reduce(tf.cast(tf.shape(batch[0])[0], dtype))
        return step(batch) + 0.0 * tf.cast(count, keras.config.floatx())

    loops.train(run, replica_step)


CONDITIONAL, ORDER, SHAPE = "rank-conditional-collective", "collective-order-mismatch", "collective-shape-mismatch"
WORKERS = ("multi_worker_mirrored",)
PLANTED = (
    planted("G03", chief_alone_evaluates, CONDITIONAL, symptom="hang", strategies=WORKERS, sin_timeout=60),
    planted(
        "G03", chief_alone_logs_a_reduced_loss, CONDITIONAL, symptom="hang", strategies=WORKERS, sin_timeout=60, steps=4
    ),
    planted(
        "E02", chief_alone_saves_synchronised_variables, CONDITIONAL, symptom="hang", strategies=WORKERS, sin_timeout=60
    ),
    planted(
        "B23",
        last_worker_leaves_out_a_variable,
        SHAPE,
        CONDITIONAL,
        ORDER,
        symptom="hang",
        strategies=WORKERS,
        sin_timeout=60,
    ),
    planted("", workers_reduce_in_different_orders, ORDER, strategies=WORKERS, sin_timeout=60),
    planted(
        "G12", workers_reduce_vectors_of_different_length, SHAPE, symptom="crash", strategies=WORKERS, sin_timeout=60
    ),
    planted("", workers_reduce_different_types, SHAPE, symptom="crash", strategies=WORKERS, sin_timeout=60),
)
