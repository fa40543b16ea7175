"""Training functions whose metrics, set-up, layout or asynchronous updates are right, or wrong as their names say."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, FEATURES = 48, 8


def _data(run, examples=EXAMPLES):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(examples, FEATURES)).astype("float32")
    y = (generator.normal(size=(examples, 1)) > 0).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)


def _train(
    run,
    metric_of=None,
    scope=True,
    strategy=None,
    rules=None,
    late_rules=None,
    examples=EXAMPLES,
    data=None,
    factor=1.0,
    layers=(),
    **steps,
):
    strategy = strategy or run.strategy
    if hasattr(run.strategy, "layout_map"):
        run.layout_map.update(rules or {})
    with strategy.scope() if scope else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(4), *layers, keras.layers.Dense(1)])
        metric = keras.metrics.Mean()
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.05)
        seen = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    if hasattr(run.strategy, "layout_map"):
        run.layout_map.update(late_rules or {})
    run.watch(model=model, optimizer=optimizer, metrics=metric, variables={"seen": seen})

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.square(model(x, training=True) - y)[:, 0]
                loss = factor * tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            if scope:
                optimizer.apply_gradients(zip(gradients, variables, strict=True))
            else:
                for variable, gradient in zip(variables, gradients, strict=True):
                    variable.assign_sub(0.05 * gradient)
            metric.update_state(losses if metric_of is None else metric_of(losses, loss))
            seen.assign_add(1)
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, data or _data(run, examples), **steps):
        pass


def right(run):
    _train(run)


def metric_of_scaled_losses(run):
    """The replica's loss is a share of the global mean: their mean is 1/N of it."""
    _train(run, metric_of=lambda _losses, loss: loss)


def model_outside_the_scope(run):
    _train(run, scope=False)


def a_strategy_of_its_own(run):
    _train(run, strategy=run.strategy if run.is_reference else tf.distribute.MirroredStrategy(["cpu:0"]))


def sharded(run):
    _train(run, rules={"dense/kernel": (None, "model"), "dense_1/kernel": ("model", None)})


def rule_with_a_typing_error(run, **given):
    _train(run, rules={"dence/kernel": (None, "model")}, **given)


def draws_over_a_mesh(run, **given):
    """DTensor draws other numbers over a mesh than on one device."""
    _train(run, layers=[keras.layers.Dropout(0.5)], **given)


def draws_over_a_mesh_and_doubles_the_loss(run):
    draws_over_a_mesh(run, factor=1.0 if run.is_reference else 2.0)


def draws_over_a_mesh_with_a_typing_error(run):
    rule_with_a_typing_error(run, layers=[keras.layers.Dropout(0.5)])


def rule_after_the_variable(run):
    _train(run, late_rules={"dense/kernel": (None, "model")})


def concurrent(run):
    _train(run, examples=12 * 40, concurrent=True)


def concurrent_on_data_of_each_worker(run, **given):
    """The dataset function of a coordinator cannot shard: each worker reads all of the data, as in the tutorial."""
    _train(run, data=lambda _context: _data(run, 72).shuffle(6).repeat(), concurrent=True, **given)


def concurrent_and_too_large_on_data_of_each_worker(run):
    concurrent_on_data_of_each_worker(run, factor=1.0 if run.is_reference else 2.0)


def evaluates_and_predicts(run):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, activation="sigmoid")])
        model.compile(loss="mse", metrics=["accuracy", keras.metrics.AUC()])
    run.watch(model=model)
    run.evaluate(model, _data(run, 21))
    run.predict(model, _data(run, 21).map(lambda x, y: x))


def fits_unevenly(run):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    run.watch(model=model, optimizer=model.optimizer)
    run.fit(model, _data(run, 45), shuffle=False, epochs=2)
