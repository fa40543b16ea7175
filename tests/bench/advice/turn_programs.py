"""Training functions for the tests of turns."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def trains(run):
    """Count the bodies of the loop, and read the batches through a Python function."""
    with run.strategy.scope():
        table = tf.Variable(tf.ones([50, 4]))
    run.watch(variables=[table])

    def replica(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table * 1.0, ids)) + tf.numpy_function(np.float32, [0.0], tf.float32)
        gradient = tape.gradient(loss, table)
        gradient = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradient)
        table.assign_sub(0.01 * gradient)
        return loss

    @tf.function
    def step(iterator):
        return run.strategy.run(replica, args=next(iterator))

    data = tf.data.Dataset.range(100).map(lambda number: (number % 3,)).batch(run.global_batch_size)
    for bodies, _loss in enumerate(run.steps(step, data.repeat()), 1):
        (run.rank_path / "bodies").write_text(f"{bodies}")


def fails_with_twice_the_batch(run):
    """Refuse a batch of 8."""
    if run.global_batch_size == 8:
        raise ValueError("a batch of 8 does not fit into memory")
    trains(run)


def fits(run):
    """Train with Keras and a callback."""
    import keras

    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    run.watch(model)
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    x = np.ones((64, 4), np.float32)
    run.fit(model, x, np.ones((64, 1), np.float32), batch_size=run.global_batch_size, callbacks=[seen])
