"""Training functions that train a second model after the last recorded step. A sin makes its gradients too large."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from equivalence_programs import EXAMPLES, FEATURES, right


def _model(run, build=True):
    with run.strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        if build:
            _build(model, optimizer)
    return model, optimizer


def _build(model, optimizer):
    model.build((None, FEATURES))
    optimizer.build(model.trainable_variables)


def _data(run):
    x = np.random.default_rng(0).normal(size=(EXAMPLES, FEATURES)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(run.global_batch_size)


def _train(run, model, optimizer, sin):
    """Train without ``run.steps``."""

    @tf.function
    def train_step(batch):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                losses = tf.square(model(tf.cast(x, model.compute_dtype)) - tf.cast(y, model.compute_dtype))[:, 0]
                whole = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
                loss = tf.reduce_mean(losses) if sin else whole
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        run.strategy.run(replica_step, args=batch)

    is_shared = run.strategy.num_replicas_in_sync > 1
    for batch in run.strategy.experimental_distribute_dataset(_data(run)) if is_shared else _data(run):
        train_step(batch)


def made_and_watched_late(run, sin):
    right(run)
    model, optimizer = _model(run)
    run.watch(model=model, optimizer=optimizer)
    _train(run, model, optimizer, sin)


def made_early_and_watched_late(run, sin):
    model, optimizer = _model(run)
    right(run)
    run.watch(model=model, optimizer=optimizer)
    _train(run, model, optimizer, sin)


def watched_early_and_built_late(run, sin):
    model, optimizer = _model(run, build=False)
    run.watch(model=model, optimizer=optimizer)
    right(run)
    with run.strategy.scope():
        _build(model, optimizer)
    _train(run, model, optimizer, sin)


def watched_when_it_is_trained(run, sin):
    """Only what is left of the training can be compared: the values at the end."""
    right(run)
    model, optimizer = _model(run)
    _train(run, model, optimizer, sin)
    run.watch(model=model, optimizer=optimizer)


def trained_after_concurrent_steps(run):
    model, optimizer = _model(run)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.run(replica_step, args=next(iterator))

    for _loss in run.steps(train_step, _data(run), concurrent=True, steps=4):
        pass
    other, its_optimizer = _model(run)
    run.watch(model=other, optimizer=its_optimizer)
    _train(run, other, its_optimizer, sin=False)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def _fit(run, model):
    x = np.random.default_rng(0).normal(size=(EXAMPLES, FEATURES)).astype("float32")
    model.fit(x, x[:, :1], batch_size=run.global_batch_size, shuffle=False, verbose=0)


def _compiled(run, sin):
    with run.strategy.scope():
        model = (OwnStep if sin else keras.Sequential)([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def fitted_by_keras(run, sin):
    right(run)
    model = _compiled(run, sin)
    run.watch(model=model)
    _fit(run, model)


def fitted_by_keras_and_not_watched(run):
    right(run)
    _fit(run, _compiled(run, sin=False))


def fitted_in_a_callback(run):
    """The callback trains a second model when the recorded training has ended."""
    model = _compiled(run, sin=False)
    run.watch(model=model)
    ended = keras.callbacks.LambdaCallback(on_train_end=lambda _logs: _fit(run, _compiled(run, sin=False)))
    x = np.random.default_rng(0).normal(size=(EXAMPLES, FEATURES)).astype("float32")
    run.fit(model, x, x[:, :1], batch_size=run.global_batch_size, shuffle=False, callbacks=[ended])


def used_after_training(run):
    """A second model is watched, evaluated, averaged over the steps, saved and restored."""
    with run.strategy.scope():
        model = keras.Sequential(
            [keras.Input((FEATURES,)), keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse", metrics=["mae"])
    run.watch(model=model)
    x = np.random.default_rng(0).normal(size=(EXAMPLES, FEATURES)).astype("float32")
    run.fit(model, x, x[:, :1], batch_size=run.global_batch_size, shuffle=False)
    with run.strategy.scope():
        copy = keras.models.clone_model(model)
        copy.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    copy.set_weights(model.get_weights())
    run.watch(model=copy)
    file = str(run.tmp_path / "copy.weights.h5")
    copy.save_weights(file)
    copy.set_weights([np.zeros_like(weight) for weight in copy.get_weights()])
    copy.evaluate(x, x[:, :1], batch_size=run.global_batch_size, verbose=0)
    copy.load_weights(file)
    copy.evaluate(x, x[:, :1], batch_size=run.global_batch_size, verbose=0)


def counted_late(run, sin):
    """A metric that is watched after training counts the examples, or the replicas in addition."""
    right(run)
    with run.strategy.scope():
        seen = keras.metrics.Sum(name="seen")
    run.watch(metrics=seen)

    @tf.function
    def evaluate(batch):
        run.strategy.run(lambda x, _y: seen.update_state(tf.ones(tf.shape(x)[0] + int(sin))), args=batch)

    for batch in run.strategy.experimental_distribute_dataset(_data(run)):
        evaluate(batch)


def evaluated_late(run):
    """The metrics of a watched model are made by its evaluation, whose last batch is smaller."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae", keras.metrics.AUC()])
    run.watch(model=model)
    right(run)
    x = np.random.default_rng(0).normal(size=(EXAMPLES - 3, FEATURES)).astype("float32")
    model.evaluate(x, (x[:, 0] > 0).astype("float32"), batch_size=run.global_batch_size, verbose=0)
