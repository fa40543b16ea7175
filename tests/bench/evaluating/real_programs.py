"""A training function with a mistake that only shows with several replicas in sync."""

from __future__ import annotations

from typing import Any


def averages_on_each_replica(run: Any, learning_rate: float = 0.1) -> None:
    """Take the mean over the replica's own examples, so that the gradients of replicas add up to a larger one."""
    import keras
    import numpy as np
    import tensorflow as tf

    noise = np.random.default_rng(run.seed)
    inputs = noise.normal(size=(64, 4)).astype("float32")
    labels = inputs @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32")
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(learning_rate)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            x, y = (tf.cast(part, model.compute_dtype) for part in batch)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(run.global_batch_size, drop_remainder=True)
    for _ in range(2):
        for _ in run.steps(step, data):
            pass
        run.value("test_loss", float(tf.reduce_mean(tf.square(model(inputs) - labels))))
