"""Programs that train with ``fit``, callbacks and validation: correct ones, and one with a planted bug."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, HELD_OUT, FEATURES = 24, 12, 8


def _arrays() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES + HELD_OUT, FEATURES)).astype("float32")
    return x, (x[:, :1] * x[:, 1:2] + 0.1).astype("float32")


def _sets(run: Any) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    data = tf.data.Dataset.from_tensor_slices(_arrays())
    training, held_out = (part.batch(run.global_batch_size) for part in (data.take(EXAMPLES), data.skip(EXAMPLES)))
    return training, held_out


def _compiled(run: Any, flavour: Any = keras, built: bool = True) -> Any:
    start = [flavour.layers.InputLayer((FEATURES,))] if built else []
    with run.strategy.scope():
        hidden = flavour.layers.Dense(6, activation="tanh")
        model = flavour.Sequential([*start, hidden, flavour.layers.Dense(1)])
        model.compile(flavour.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    run.watch(model=model)
    return model


def _halved(epoch: int, rate: float) -> float:
    return rate * 0.5 if epoch else rate


def scheduled(run: Any, flavour: Any = keras, built: bool = True) -> None:
    """A schedule of the learning rate by epoch, a file of weights for each epoch, and validation."""
    model = _compiled(run, flavour, built)
    training, held_out = _sets(run)
    callbacks = flavour.callbacks
    given = [
        callbacks.LearningRateScheduler(_halved),
        callbacks.ModelCheckpoint(str(run.rank_path / "{epoch}.weights.h5"), save_weights_only=True),
        callbacks.CSVLogger(str(run.rank_path / "log.csv")),
        callbacks.TerminateOnNaN(),
    ]
    run.fit(model, training, validation_data=held_out, epochs=3, callbacks=given, shuffle=False)


def stopped_early(run: Any, flavour: Any = keras, built: bool = True) -> None:
    """Training that ends when the validation does not improve, and goes back to its best weights."""
    model = _compiled(run, flavour, built)
    training, held_out = _sets(run)
    callbacks = flavour.callbacks
    given = [
        callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.1, patience=1, min_delta=10.0),
        callbacks.EarlyStopping(monitor="val_loss", patience=2, min_delta=10.0, restore_best_weights=True),
    ]
    run.fit(model, training, validation_data=held_out, epochs=6, callbacks=given, shuffle=False)


def split(run: Any, flavour: Any = keras, built: bool = True) -> None:
    """Arrays, of which ``fit`` holds a part out for validation."""
    model = _compiled(run, flavour, built)
    x, y = _arrays()
    given = {"validation_split": HELD_OUT / (EXAMPLES + HELD_OUT), "batch_size": run.global_batch_size}
    run.fit(model, x, y, epochs=2, shuffle=False, **given)


def split_lazily(run: Any) -> None:
    split(run, built=False)


def scheduled_lazily(run: Any) -> None:
    scheduled(run, built=False)


def stopped_early_lazily(run: Any) -> None:
    stopped_early(run, built=False)


def scheduled_in_tf_keras(run: Any) -> None:
    import tf_keras

    scheduled(run, tf_keras, built=False)


def stopped_early_in_tf_keras(run: Any) -> None:
    import tf_keras

    stopped_early(run, tf_keras, built=False)


def split_in_tf_keras(run: Any) -> None:
    import tf_keras

    split(run, tf_keras, built=False)


def rate_of_replicas(run: Any) -> None:
    """The callback makes the learning rate larger by the number of replicas, as for a larger batch."""
    model = _compiled(run)
    training, held_out = _sets(run)
    scaled = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * run.num_replicas if epoch == 1 else rate)
    run.fit(model, training, validation_data=held_out, epochs=3, callbacks=[scaled], shuffle=False)


def _pair(flavour: Any) -> type:
    """Return a class whose train_step shows two metrics and no loss, as the models of many tutorials do."""

    class Pair(flavour.Sequential):  # type: ignore[misc, name-defined]
        def set_up(self, divisor: float) -> None:
            self.errors = flavour.metrics.Mean(name="errors")
            self.recall = flavour.metrics.Recall(name="recall")
            self.divisor = divisor

        @property
        def metrics(self) -> list[Any]:
            return [self.errors, self.recall]

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                output = self(x, training=True)
                error = tf.square(output - tf.cast(y, output.dtype))
                loss = tf.reduce_mean(error) / tf.distribute.get_strategy().num_replicas_in_sync
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.errors.update_state(error / self.divisor)
            self.recall.update_state(y > 0.0, tf.sigmoid(output))
            return {"errors": self.errors.result(), "recall": self.recall.result()}

    return Pair


def shown_without_a_loss(run: Any, flavour: Any = keras, divided: bool = False) -> None:
    layers = flavour.layers
    with run.strategy.scope():
        model = _pair(flavour)([layers.InputLayer((FEATURES,)), layers.Dense(6, activation="tanh"), layers.Dense(1)])
        model.set_up(float(run.num_replicas) if divided else 1.0)
        model.compile(flavour.optimizers.SGD(0.05))
    run.watch(model=model)
    training, _held_out = _sets(run)
    run.fit(model, training, epochs=2, shuffle=False)


def shown_divided_without_a_loss(run: Any) -> None:
    shown_without_a_loss(run, divided=True)


def shown_without_a_loss_in_tf_keras(run: Any) -> None:
    import tf_keras

    shown_without_a_loss(run, tf_keras)


def shown_divided_without_a_loss_in_tf_keras(run: Any) -> None:
    import tf_keras

    shown_without_a_loss(run, tf_keras, divided=True)
