"""Training functions with a learning rate, that are trained to a target."""

from __future__ import annotations

from typing import Any


def regress(run: Any, learning_rate: float) -> None:
    """Fit a line with plain gradient descent; every step is deterministic."""
    import keras
    import numpy as np
    import tensorflow as tf

    noise = np.random.default_rng(1)
    inputs = noise.normal(size=(256, 4)).astype("float32")
    labels = inputs @ np.array([1.0, -2.0, 0.5, 3.0], "float32") + noise.normal(size=256).astype("float32") * 0.1
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(learning_rate)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.nn.compute_average_loss(
                    tf.square(model(x)[:, 0] - y), global_batch_size=run.global_batch_size
                )
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _ in run.steps(train_step, tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(run.global_batch_size)):
        pass


def fit(run: Any, learning_rate: float) -> None:
    """Train with Keras' own loop, which reports no loss of a step."""
    import keras
    import numpy as np
    import tensorflow as tf

    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(learning_rate), "mse")
    run.watch(model=model)
    data = (np.ones((32, 4), "float32"), np.ones((32, 1), "float32"))
    run.fit(model, tf.data.Dataset.from_tensor_slices(data).batch(run.global_batch_size))


def silent(run: Any, learning_rate: float) -> None:
    """Trains nothing."""
