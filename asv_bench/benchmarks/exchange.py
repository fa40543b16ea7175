"""A training function whose step does little but compute and exchange gradients, for measurements over hosts."""

from __future__ import annotations

from typing import Any

FEATURES = 256
CLASSES = 10


def weights(units: int) -> int:
    """Return the number of weights of :func:`mlp`."""
    return (FEATURES + 1) * units + (units + 1) * units + (units + 1) * CLASSES


def mlp(run: Any, units: int, exchange: bool = True) -> None:
    """Train two hidden layers on one batch again and again, which costs the input nothing.

    :param units: units of each hidden layer.
    :param exchange: False to train each worker by itself, without any collective.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    # The default strategy of TensorFlow has one replica, which computes the step without its peers.
    strategy = run.strategy if exchange else tf.distribute.get_strategy()
    with strategy.scope():
        hidden = [keras.layers.Dense(units, activation="relu"), keras.layers.Dense(units, activation="relu")]
        model = keras.Sequential([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(CLASSES)])
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def batches(context: Any) -> Any:
        size = context.get_per_replica_batch_size(run.global_batch_size)
        inputs = np.random.default_rng(0).normal(size=(size, FEATURES)).astype("float32")
        return tf.data.Dataset.from_tensors((inputs, np.arange(size) % CLASSES)).repeat()

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            inputs, labels = batch
            with tf.GradientTape() as tape:
                logits = model(inputs, training=True)
                losses = keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        batch = next(iterator)
        if not exchange:
            batch = [run.strategy.experimental_local_results(part)[0] for part in batch]
        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

    for _loss in run.steps(train_step, batches):
        pass
