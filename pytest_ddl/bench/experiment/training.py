"""Training function of the experiment, written as a user would write it: a custom loop over ``run.steps``.

It does not use ``fit``, in which Keras reads the loss after every batch. On a GPU, the next batch would then not reach
the device before the last one is done. This wait would be measured along with the scaling.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ddl.bench.experiment.images import SIDE, scaled


def build_model() -> Any:
    """Build the network of TensorFlow's guide to distributed training with Keras: 347 146 parameters."""
    import keras

    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def train_mnist(run: Any, file: str, epochs: int) -> None:
    """Train on the images of an ``.npz`` file. The run gives the number of replicas and the batch size."""
    import keras
    import tensorflow as tf

    with run.strategy.scope():
        model = build_model()
        optimizer = keras.optimizers.Adam(0.001)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    with np.load(file) as found:
        images, labels = scaled(found["x_train"]), found["y_train"]
    # One iterator for all epochs, because making a new pipeline for each epoch is not part of training.
    dataset = (
        tf.data.Dataset.from_tensor_slices((images, labels))
        .shuffle(len(labels), seed=run.seed)
        .batch(run.global_batch_size, drop_remainder=True)
        .repeat(epochs)
        .prefetch(2)
    )
    # There is nothing to tune. The end of a run would wait for the tuner, which sleeps for longer and longer times.
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = dataset.with_options(options)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            inputs, targets = batch
            with tf.GradientTape() as tape:
                logits = model(inputs, training=True)
                losses = keras.ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _ in run.steps(train_step, dataset):
        pass
