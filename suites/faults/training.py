"""A small training with one optimizer that has state, which the recipes of this folder save and restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

STEPS = 6
EPOCH = 3
"""Steps of an epoch. The whole training has two epochs."""
BATCH = 12
"""Examples of a step, over all replicas."""


class Training:
    """Model, optimizer and step function of a custom loop, built in the scope of the strategy."""

    def __init__(self, run: Any, optimizer: str = "momentum") -> None:
        self.run = run
        with run.strategy.scope():
            self.model = layers()
            self.optimizer = made(optimizer)
            # In the first step, this would fail with several replicas: keras-team/keras#23085.
            self.optimizer.build(self.model.trainable_variables)
        run.watch(model=self.model, optimizer=self.optimizer)
        self.step = step_function(run, self.model, self.optimizer)


def layers() -> Any:
    """Return a model of two layers."""
    from suites.subject import keras

    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])


def made(optimizer: str) -> Any:
    """Return an optimizer, whose state a checkpoint must hold."""
    from suites.subject import keras

    return {"momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9), "rmsprop": keras.optimizers.RMSprop}[
        optimizer
    ]()


def step_function(run: Any, model: Any, optimizer: Any, of_batch: bool = False) -> Any:
    """Return a step that takes an iterator, or a batch that is divided already."""
    import tensorflow as tf

    @tf.function
    def train_step(given: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                error = tf.square(model(x, training=True) - tf.cast(y, model.compute_dtype))[:, 0]
                loss = tf.nn.compute_average_loss(error, global_batch_size=run.global_batch_size)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        batch = given if of_batch else next(given)
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    return train_step


def counter() -> Any:
    """Return a variable for a number of steps or epochs, which a checkpoint can hold."""
    import tensorflow as tf

    return tf.Variable(0, dtype=tf.int64, trainable=False)


def data(run: Any, steps: int = STEPS) -> Any:
    """Return the batches of some steps."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays(steps)).batch(run.global_batch_size)


def arrays(steps: int) -> tuple[Any, Any]:
    """Return the examples of some steps as arrays."""
    x = np.random.default_rng(3).normal(size=(steps * BATCH, 4))
    return x, x[:, :1] * 2 + 1


def write_filepath(run: Any, folder: Path) -> str:
    """Return the folder that the chief shares with all workers, or for another worker a folder of its own."""
    # The tutorial puts the folder of a worker beside that of the chief. Here, each rank has one for this purpose.
    return str(folder if run.rank == 0 else run.rank_path / "workertemp")
