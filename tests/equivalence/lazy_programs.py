"""Programs whose models and optimizers are built by the first batch: right ones, and each with planted bugs.

Each program takes ``bug``: the name of what is wrong with it, or an empty string.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, FEATURES = 48, 8


def _data(run: Any, inputs: np.ndarray | None = None) -> tf.data.Dataset:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype("float32") if inputs is None else inputs
    y = generator.normal(size=(EXAMPLES, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)


def _unseeded(_shape: Any, dtype: Any = None, **_other: Any) -> Any:
    return tf.constant(np.random.default_rng().normal(size=tuple(_shape)), dtype)


def _initializer(bug: str) -> Any:
    return _unseeded if bug == "unseeded" else "glorot_uniform"


def _loop(run: Any, model: Any, optimizer: Any, bug: str = "", eager: bool = False, inputs: Any = None) -> None:
    """Train in a custom loop; ``optimizer`` has not been built, and ``model`` perhaps neither."""

    def replica_step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.square(model(x) - y)[:, 0]
            loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            loss = tf.reduce_mean(losses) if bug == "mean" else loss
        weights = list(model.trainable_variables)
        gradients = tape.gradient(loss, weights)
        pairs = list(zip(gradients, weights, strict=True))
        if bug == "frozen" and not run.is_reference:
            pairs = pairs[1:]
        if bug == "unsynchronized":
            for gradient, weight in pairs:
                weight.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        else:
            optimizer.apply_gradients(pairs)
        return loss

    def train_step(iterator: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step if eager else tf.function(train_step), _data(run, inputs)):
        pass


def keras_eager(run: Any, bug: str = "") -> None:
    """The first batch builds the model and its optimizer, in eager mode."""
    with run.strategy.scope():
        hidden = keras.layers.Dense(6, activation="tanh", kernel_initializer=_initializer(bug))
        model = keras.Sequential([hidden, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    run.watch(model=model, optimizer=optimizer)
    _loop(run, model, optimizer, bug, eager=True)


def keras_graph(run: Any, bug: str = "") -> None:
    """The first trace builds the model and its optimizer; several replicas of one process cannot do that."""
    with run.strategy.scope():
        hidden = keras.layers.Dense(6, activation="tanh", kernel_initializer=_initializer(bug))
        model = keras.Sequential([hidden, keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01)
    run.watch(model=model, optimizer=optimizer)
    _loop(run, model, optimizer, bug)


class Subclassed(keras.Model):
    """A model that makes its layers in ``build``."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self._bug = bug

    def build(self, _shape: Any) -> None:
        self.hidden = keras.layers.Dense(6, activation="tanh", kernel_initializer=_initializer(self._bug))
        self.head = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.head(self.hidden(x))


def keras_called_first(run: Any, bug: str = "") -> None:
    """A call between ``watch`` and the loop builds the model, as tutorials do; the optimizer is built there too."""
    with run.strategy.scope():
        model = Subclassed(bug)
        optimizer = keras.optimizers.Adam(0.01)
    run.watch(model=model, optimizer=optimizer)
    with run.strategy.scope():
        model(np.zeros((1, FEATURES), "float32"))
        optimizer.build(model.trainable_variables)
    _loop(run, model, optimizer, bug)


def tf_keras_graph(run: Any, bug: str = "") -> None:
    """The first trace builds the model and its optimizer."""
    import tf_keras

    with run.strategy.scope():
        hidden = tf_keras.layers.Dense(6, activation="tanh", kernel_initializer=_initializer(bug))
        model = tf_keras.Sequential([hidden, tf_keras.layers.Dense(1)])
        optimizer = tf_keras.optimizers.SGD(0.1, momentum=0.9)
    run.watch(model=model, optimizer=optimizer)
    _loop(run, model, optimizer, bug)


def tf_keras_embedding(run: Any, bug: str = "") -> None:
    """An embedding, whose gradient is sparse, and a dense layer."""
    import tf_keras

    with run.strategy.scope():
        table = tf_keras.layers.Embedding(10, 4, embeddings_initializer=_initializer(bug))
        pooling = tf_keras.layers.GlobalAveragePooling1D()
        model = tf_keras.Sequential([table, pooling, tf_keras.layers.Dense(1)])
        optimizer = tf_keras.optimizers.Adam(0.01)
    run.watch(model=model, optimizer=optimizer)
    ids = np.random.default_rng(1).integers(0, 10, size=(EXAMPLES, 3))
    _loop(run, model, optimizer, bug, inputs=ids)


class _Module(tf.Module):
    """A module that creates its variables in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel: Any = None

    def __call__(self, x: Any) -> Any:
        if self.kernel is None:
            start = tf.random.stateless_normal((FEATURES, 1), seed=(1, 2), dtype=x.dtype)
            self.kernel = tf.Variable(start, name="kernel")
            self.bias = tf.Variable(tf.zeros((1,), x.dtype), name="bias")
        return tf.linalg.matmul(x, self.kernel) + self.bias


def module(run: Any, bug: str = "") -> None:
    """A ``tf.Module`` that the first batch builds in eager mode, with a Keras optimizer."""
    with run.strategy.scope():
        model = _Module()
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    run.watch(variables=model, optimizer=optimizer)
    _loop(run, model, optimizer, bug, eager=True)


def _loss_of_mean(run: Any, bug: str) -> Any:
    if bug == "mean" and not run.is_reference:
        return lambda y, p: tf.reduce_mean(tf.square(p - y)) * run.num_replicas
    return "mse"


def keras_fit(run: Any, bug: str = "") -> None:
    """``fit`` builds a Sequential model without an input, which has a normalization with state."""
    with run.strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Dense(6, activation="tanh", kernel_initializer=_initializer(bug)),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), _loss_of_mean(run, bug), metrics=["mae"])
    run.watch(model=model)
    run.fit(model, _data(run), epochs=2, shuffle=False)


def keras_fit_subclassed(run: Any, bug: str = "") -> None:
    with run.strategy.scope():
        model = Subclassed(bug)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), _loss_of_mean(run, bug))
    run.watch(model=model)
    run.fit(model, _data(run), epochs=2, shuffle=False)


def tf_keras_fit(run: Any, bug: str = "") -> None:
    """``fit`` of tf_keras builds the model when it traces its first step."""
    import tf_keras

    with run.strategy.scope():
        model = tf_keras.Sequential(
            [
                tf_keras.layers.Dense(6, activation="tanh", kernel_initializer=_initializer(bug)),
                tf_keras.layers.BatchNormalization(synchronized=True),
                tf_keras.layers.Dense(1),
            ]
        )
        model.compile(tf_keras.optimizers.Adam(0.01), _loss_of_mean(run, bug))
    run.watch(model=model)
    run.fit(model, _data(run), epochs=2, shuffle=False)


def restarted(run: Any, bug: str = "") -> None:
    """The second attempt restores its checkpoint before the first batch builds model and optimizer again."""
    import tf_keras

    with run.strategy.scope():
        hidden = tf_keras.layers.Dense(6, activation="tanh")
        model = tf_keras.Sequential([hidden, tf_keras.layers.Dense(1)])
        optimizer = tf_keras.optimizers.SGD(0.1, momentum=0.9)
        saved = {"model": model} if bug == "momentum" else {"model": model, "optimizer": optimizer}
        checkpoint = tf.train.Checkpoint(**saved)
    run.watch(model=model, optimizer=optimizer)
    path = str(run.tmp_path / "checkpoint")
    data = _data(run)
    if run.attempt == 2:
        checkpoint.restore(path)
        data = data.skip(2)

    def replica_step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.square(model(x) - y)[:, 0]
            loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    @tf.function
    def train_step(iterator: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, data):
        if run.completed_steps == 2 and run.attempt == 1:
            checkpoint.write(path)
            run.restart()
