"""Custom loop of the studies, and the loop with which the medical study trains each of its models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

EPOCHS = 8

Array = np.ndarray[Any, Any]


def train(
    run: Any,
    layers: list[Any],
    learning_rate: float,
    examples: tuple[Array, Array],
    losses_of: Callable[[Any, Any], Any],
    scores: Callable[[list[Array]], tuple[float, float]],
) -> None:
    """Train a model with momentum, and report its accuracy and loss on test examples after each epoch.

    :param layers: layers of the model, from its input to its logits.
    :param examples: inputs and labels for training, float32.
    :param losses_of: function of labels and logits that returns the loss of each example.
    :param scores: function of the model's weights that returns accuracy and mean loss on the test examples.
    """
    import keras
    import tensorflow as tf

    with run.strategy.scope():
        model = keras.Sequential(layers)
        optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    # All batches have the same size, so that replicas of any number get equal parts.
    shuffled = tf.data.Dataset.from_tensor_slices(examples).shuffle(len(examples[0]), seed=run.seed)
    dataset = shuffled.batch(run.global_batch_size, drop_remainder=True)

    def cast_losses(labels: Any, logits: Any) -> Any:
        return losses_of(tf.cast(labels, logits.dtype), logits)

    dataset, train_step = without_tuning(dataset), training_step(run, model, optimizer, cast_losses)
    for _ in range(EPOCHS):
        for _ in run.steps(train_step, dataset):
            pass
        accuracy, loss = scores([variable.numpy() for variable in model.trainable_variables])
        run.value("test_accuracy", accuracy)
        run.value("test_loss", loss)


def without_tuning(dataset: Any) -> Any:
    """Return a pipeline that is not tuned: the end of a run would wait for the tuner, which sleeps longer each time."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def training_step(run: Any, model: Any, optimizer: Any, losses_of: Callable[[Any, Any], Any]) -> Any:
    """Return the step of a custom loop, as the guide to distributed training writes it.

    :param losses_of: function of labels and logits that returns the loss of each example.
    """
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            inputs, labels = batch
            with tf.GradientTape() as tape:
                # The comparison with one device may run in another precision.
                logits = model(tf.cast(inputs, model.compute_dtype), training=True)
                loss = tf.nn.compute_average_loss(losses_of(labels, logits), global_batch_size=run.global_batch_size)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    return train_step
