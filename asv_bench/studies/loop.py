"""Loop with which the medical study trains each of its models: the same code for one device and for every strategy."""

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
    # There is nothing to tune. The end of a run would wait for the tuner, which sleeps for longer and longer times.
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = dataset.with_options(options)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            inputs, labels = batch
            with tf.GradientTape() as tape:
                # Casts, because the comparison with one device may run in another precision.
                logits = model(tf.cast(inputs, model.compute_dtype), training=True)
                losses = losses_of(tf.cast(labels, logits.dtype), logits)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _ in range(EPOCHS):
        for _ in run.steps(train_step, dataset):
            pass
        accuracy, loss = scores([variable.numpy() for variable in model.trainable_variables])
        run.value("test_accuracy", accuracy)
        run.value("test_loss", loss)
