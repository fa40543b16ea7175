"""Correct programs in the shapes of TensorFlow's and Keras' published tutorials, made small."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

NUM_EXAMPLES = 48
SIDE = 8
CLASSES = 4
WORDS = 30
LENGTH = 6


def images(dtype: str = "float32") -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    x = rng.random((NUM_EXAMPLES, SIDE, SIDE, 1)).astype(dtype)
    return x, (x.reshape(NUM_EXAMPLES, -1)[:, :CLASSES]).argmax(axis=1).astype("int64")


def sentences() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Padded with 0 at their ends, as ``TextVectorization`` does."""
    rng = np.random.default_rng(2)
    words = rng.integers(1, WORDS, size=(NUM_EXAMPLES, LENGTH))
    lengths = rng.integers(2, LENGTH + 1, size=NUM_EXAMPLES)
    words[np.arange(LENGTH) >= lengths[:, None]] = 0
    return words.astype("int64"), (words.sum(axis=1) % 2).astype("float32")


def small_cnn() -> Any:
    return keras.Sequential(
        [
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )


def distributed_custom_training(run: Any) -> None:
    """tensorflow.org/tutorials/distribute/custom_training: epochs, a loss class without reduction, metrics."""
    x, y = images()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    with run.strategy.scope():
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
        test_loss = keras.metrics.Mean(name="test_loss")
        train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
        model = keras.Sequential([keras.Input((SIDE, SIDE, 1)), *small_cnn().layers])
        optimizer = keras.optimizers.Adam(learning_rate=0.001)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer, metrics=[train_accuracy, test_loss])

    def compute_loss(labels: Any, predictions: Any) -> Any:
        per_example = loss_object(labels, predictions)
        return tf.nn.compute_average_loss(per_example, global_batch_size=run.global_batch_size)

    def train_step(inputs: Any) -> Any:
        pixels, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(pixels, training=True)
            loss = compute_loss(labels, predictions)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_accuracy.update_state(labels, predictions)
        return loss

    @tf.function
    def distributed_train_step(batch: Any) -> Any:
        per_replica = run.strategy.run(train_step, args=(batch,))
        return run.strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    for _epoch in range(2):
        for batch in run.batches(dataset):
            run.record(loss=distributed_train_step(batch))
        train_accuracy.reset_state()


def keras_fit(run: Any) -> None:
    """tensorflow.org/tutorials/distribute/keras: fit with callbacks, evaluate, no input shape in the model."""
    x, y = images()
    train = tf.data.Dataset.from_tensor_slices((x[:36], y[:36])).cache().batch(run.global_batch_size)
    test = tf.data.Dataset.from_tensor_slices((x[36:], y[36:])).batch(run.global_batch_size)
    with run.strategy.scope():
        model = small_cnn()
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=keras.optimizers.Adam(),
            metrics=["accuracy"],
        )
    run.watch(model=model, optimizer=model.optimizer)

    def decay(epoch: int) -> float:
        return 1e-3 if epoch < 1 else 1e-4

    callbacks = [
        keras.callbacks.ModelCheckpoint(run.rank_path / "epoch{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.LearningRateScheduler(decay),
    ]
    run.fit(model, train, epochs=2, callbacks=callbacks, validation_data=test, verbose=0)
    run.evaluate(model, test, verbose=0)


def text_classification(run: Any) -> None:
    """tensorflow.org/tutorials/keras/text_classification: an embedding that is averaged over words."""
    x, y = sentences()
    with run.strategy.scope():
        model = keras.Sequential(
            [keras.layers.Embedding(WORDS, 8), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        )
        model.compile(
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
            optimizer=keras.optimizers.RMSprop(),
            metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
        )
    run.watch(model=model, optimizer=model.optimizer)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    run.fit(model, dataset, epochs=1, verbose=0)


def text_classification_rnn(run: Any) -> None:
    """tensorflow.org/text/tutorials/text_classification_rnn: masked embeddings and a bidirectional LSTM."""
    x, y = sentences()
    with run.strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Embedding(WORDS, 8, mask_zero=True),
                keras.layers.Bidirectional(keras.layers.LSTM(4)),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True), optimizer=keras.optimizers.Adam(1e-3))
    run.watch(model=model, optimizer=model.optimizer)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    run.fit(model, dataset, epochs=1, verbose=0)


def time_series(run: Any) -> None:
    """tensorflow.org/tutorials/structured_data/time_series: windows of a series, mean squared and absolute errors."""
    series = np.sin(np.arange(NUM_EXAMPLES + 6) / 3).astype("float32")
    windows = np.lib.stride_tricks.sliding_window_view(series, 6)[:NUM_EXAMPLES, :, None]
    dataset = tf.data.Dataset.from_tensor_slices((windows[:, :5], windows[:, 5])).batch(run.global_batch_size)
    with run.strategy.scope():
        model = keras.Sequential([keras.layers.GRU(4, return_sequences=False), keras.layers.Dense(1)])
        model.compile(loss="mse", optimizer="adam", metrics=["mae"])
    run.watch(model=model, optimizer=model.optimizer)
    run.fit(model, dataset, epochs=1, verbose=0)


def transfer_learning(run: Any) -> None:
    """keras.io/guides/transfer_learning: a frozen base with a new head, then all of it at a lower rate."""
    x, y = images()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    with run.strategy.scope():
        inputs = keras.Input((SIDE, SIDE, 1))
        base = keras.Sequential([keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.GlobalAveragePooling2D()])
        base.trainable = False
        outputs = keras.layers.Dense(CLASSES)(base(inputs, training=False))
        model = keras.Model(inputs, outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    run.watch(model=model, optimizer=model.optimizer)
    run.fit(model, dataset, epochs=1, verbose=0)
    with run.strategy.scope():
        base.trainable = True
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss)
    run.fit(model, dataset, epochs=1, verbose=0)


class Regression(tf.Module):  # type: ignore[misc]
    """The module of the guide "Basic training loops"."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(5.0)
        self.b = tf.Variable(0.0)

    def __call__(self, x: Any) -> Any:
        return self.w * x + self.b


def basic_training_loop(run: Any) -> None:
    """tensorflow.org/guide/basic_training_loops: a module, gradients by hand, assign_sub."""
    x = tf.linspace(-2.0, 2.0, NUM_EXAMPLES)
    dataset = tf.data.Dataset.from_tensor_slices((x, 3.0 * x + 2.0)).batch(run.global_batch_size)
    with run.strategy.scope():
        model = Regression()
    run.watch(variables=[model.w, model.b])

    @tf.function
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(y - model(x))) / run.global_batch_size
            gradients = tape.gradient(loss, [model.w, model.b])
            gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
            for variable, gradient in zip([model.w, model.b], gradients, strict=True):
                variable.assign_sub(0.1 * gradient)
            return loss

        losses = run.strategy.run(replica_step, args=(next(iterator),))
        return run.strategy.reduce("SUM", losses, axis=None)

    for _loss in run.steps(train_step, dataset):
        pass


def autoencoder(run: Any) -> None:
    """tensorflow.org/tutorials/generative/autoencoder: a subclassed model of two models, the input as its target."""
    x, _y = images()

    class Autoencoder(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(6, activation="relu")])
            self.decoder = keras.Sequential(
                [keras.layers.Dense(SIDE * SIDE, activation="sigmoid"), keras.layers.Reshape((SIDE, SIDE, 1))]
            )

        def call(self, inputs: Any) -> Any:
            return self.decoder(self.encoder(inputs))

    with run.strategy.scope():
        model = Autoencoder()
        model.compile(optimizer="adam", loss=keras.losses.MeanSquaredError())
    run.watch(model=model, optimizer=model.optimizer)
    run.fit(model, tf.data.Dataset.from_tensor_slices((x, x)).batch(run.global_batch_size), epochs=1, verbose=0)


def retrieval(run: Any) -> None:
    """keras.io/keras_rs: two towers of embeddings and a rating, trained on rows of unequal popularity."""
    rng = np.random.default_rng(4)
    users, films = rng.integers(0, 12, NUM_EXAMPLES), np.minimum(rng.geometric(0.3, NUM_EXAMPLES), 9)
    ratings = ((users + films) % 5).astype("float32")
    rows = {"user": users.astype("int64"), "film": films.astype("int64")}
    dataset = tf.data.Dataset.from_tensor_slices((rows, ratings)).batch(run.global_batch_size)
    with run.strategy.scope():
        user, film = keras.Input((), dtype="int64", name="user"), keras.Input((), dtype="int64", name="film")
        towers = [keras.layers.Embedding(12, 4)(user), keras.layers.Embedding(10, 4)(film)]
        hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()(towers))
        model = keras.Model({"user": user, "film": film}, keras.layers.Dense(1)(hidden))
        model.compile(optimizer=keras.optimizers.Adagrad(0.1), loss="mse", metrics=["root_mean_squared_error"])
    run.watch(model=model, optimizer=model.optimizer)
    run.fit(model, dataset, epochs=1, verbose=0)


def segmentation(run: Any) -> None:
    """tensorflow.org/tutorials/images/segmentation: a U-Net with batch normalization synchronized over replicas."""
    x, _y = images()
    masks = (x[..., 0] > 0.5).astype("int64")
    dataset = tf.data.Dataset.from_tensor_slices((x, masks)).batch(run.global_batch_size)
    with run.strategy.scope():
        inputs = keras.Input((SIDE, SIDE, 1))
        down = keras.layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False)(inputs)
        down = keras.layers.ReLU()(keras.layers.BatchNormalization(synchronized=True)(down))
        up = keras.layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu")(down)
        outputs = keras.layers.Conv2D(2, 1)(keras.layers.Concatenate()([up, inputs]))
        model = keras.Model(inputs, outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    run.watch(model=model, optimizer=model.optimizer)
    run.fit(model, dataset, epochs=1, verbose=0)


def metric_learning(run: Any) -> None:
    """keras.io/examples/vision/siamese_network: triplets through one network with shared weights, in a loop."""
    x, _y = images()
    with run.strategy.scope():
        embed = keras.Sequential([keras.Input((SIDE, SIDE, 1)), keras.layers.Flatten(), keras.layers.Dense(4)])
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(embed.trainable_variables)
    run.watch(model=embed, optimizer=optimizer)
    triplets = (x, np.roll(x, 1, axis=0), np.roll(x, 7, axis=0))
    dataset = tf.data.Dataset.from_tensor_slices(triplets).batch(run.global_batch_size)

    @tf.function
    def train_step(iterator: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            with tf.GradientTape() as tape:
                anchor, positive, negative = (embed(part) for part in batch)
                near = tf.reduce_sum(tf.square(anchor - positive), -1)
                far = tf.reduce_sum(tf.square(anchor - negative), -1)
                losses = tf.nn.softplus(near - far + 0.5)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, embed.trainable_variables)
            optimizer.apply_gradients(zip(gradients, embed.trainable_variables, strict=True))
            return loss

        losses = run.strategy.run(replica_step, args=(next(iterator),))
        return run.strategy.reduce("SUM", losses, axis=None)

    for _loss in run.steps(train_step, dataset):
        pass


TUTORIALS = (
    distributed_custom_training,
    keras_fit,
    text_classification,
    text_classification_rnn,
    time_series,
    transfer_learning,
    basic_training_loop,
    autoencoder,
    retrieval,
    segmentation,
    metric_learning,
)
