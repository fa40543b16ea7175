"""Models of the benchmarks: small, with a step of a few milliseconds on a CPU, and made-up data.

Each is a function ``train(run)`` with its data in memory, so that the step is measured. :mod:`benchmarks.pipelines`
measures only the input.
"""

from __future__ import annotations

from typing import Any

EXAMPLES = 2048
CLASSES = 10


def mlp(run: Any) -> None:
    """Two hidden layers of 512 units: large gradients in few tensors."""
    import keras

    layers = [keras.layers.Dense(512, activation="relu"), keras.layers.Dense(512, activation="relu")]
    _fit(run, lambda: [keras.Input((256,)), *layers, keras.layers.Dense(CLASSES)], _normal(256))


def cnn(run: Any) -> None:
    """Three convolutions over images of 16 by 16 pixels: much computation for few weights."""
    import keras

    def layers() -> list[Any]:
        convolutions = [
            keras.layers.Conv2D(filters, 3, strides=strides, padding="same", activation="relu")
            for filters, strides in ((16, 1), (32, 2), (32, 2))
        ]
        return [keras.Input((16, 16, 1)), *convolutions, keras.layers.Flatten(), keras.layers.Dense(CLASSES)]

    _fit(run, layers, _normal(16, 16, 1))


def embedding(run: Any) -> None:
    """Train a table of 20,000 rows, whose gradients are sparse when they are computed."""
    import keras

    def layers() -> list[Any]:
        pooled = [keras.layers.Embedding(20_000, 32), keras.layers.GlobalAveragePooling1D()]
        return [keras.Input((32,), dtype="int32"), *pooled, keras.layers.Dense(CLASSES)]

    _fit(run, layers, _tokens(20_000, 32))


def transformer(run: Any) -> None:
    """Two blocks of attention over 32 tokens: many small tensors to reduce."""
    import keras

    def build() -> Any:
        tokens = keras.Input((32,), dtype="int32")
        hidden = keras.layers.Embedding(1000, 64)(tokens)
        for _ in range(2):
            attended = keras.layers.MultiHeadAttention(4, 16)(hidden, hidden)
            hidden = keras.layers.LayerNormalization()(hidden + attended)
            fed = keras.layers.Dense(64)(keras.layers.Dense(128, activation="gelu")(hidden))
            hidden = keras.layers.LayerNormalization()(hidden + fed)
        logits = keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling1D()(hidden))
        return keras.Model(tokens, logits)

    _train(run, build, _tokens(1000, 32))


def _fit(run: Any, layers: Any, inputs: Any) -> None:
    import keras

    _train(run, lambda: keras.Sequential(layers()), inputs)


def _train(run: Any, build: Any, inputs: Any) -> None:
    """A custom loop, as the guide to distributed training writes it; it runs under every strategy."""
    import keras
    import numpy as np
    import tensorflow as tf

    with run.strategy.scope():
        model = build()
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    labels = np.arange(EXAMPLES) % CLASSES
    dataset = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(run.global_batch_size, drop_remainder=True)

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

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, dataset):
        pass


def _normal(*shape: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).normal(size=(EXAMPLES, *shape)).astype("float32")


def _tokens(vocabulary: int, length: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(vocabulary, size=(EXAMPLES, length)).astype("int32")
