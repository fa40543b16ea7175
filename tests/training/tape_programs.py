"""Training functions whose gradients are watched: from the tape to the update in all the ways that programs know."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

FEATURES = 4


def data(run: Any) -> tf.data.Dataset:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(24, FEATURES)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(run.global_batch_size)


def made(run: Any, optimizer: Any = None) -> tuple[Any, Any]:
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        optimizer = optimizer() if optimizer is not None else keras.optimizers.SGD(0.1)
    run.watch(model=model, optimizer=optimizer)
    return model, optimizer


def loss_of(run: Any, model: Any, batch: Any) -> Any:
    x, y = batch
    return tf.nn.compute_average_loss(tf.square(model(x) - y)[:, 0], global_batch_size=run.global_batch_size)


def loop(run: Any, replica_step: Any, traced: bool = True) -> None:
    def train_step(iterator: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(tf.function(train_step) if traced else train_step, data(run)):
        pass


def plain(run: Any, traced: bool = True) -> None:
    model, optimizer = made(run)

    def replica_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(run, model, batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loop(run, replica_step, traced)


def eager(run: Any) -> None:
    plain(run, traced=False)


def halved_on_the_way(run: Any) -> None:
    model, optimizer = made(run)

    def replica_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(run, model, batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply([gradient / 2 for gradient in gradients], model.trainable_variables)
        return loss

    loop(run, replica_step)


def two_tapes(run: Any) -> None:
    """One model, two losses, one optimizer each call; the first gradient does not reach the second layer."""
    model, optimizer = made(run)
    optimizer.build(model.trainable_variables)

    def replica_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            part = tf.reduce_sum(model.layers[0](batch[0])) / run.global_batch_size
        first = tape.gradient(part, model.trainable_variables)
        with tf.GradientTape(persistent=True) as tape:
            loss = loss_of(run, model, batch)
        optimizer.apply_gradients(zip(first[:2], model.trainable_variables[:2], strict=True))
        optimizer.apply_gradients(
            [(tape.gradient(loss, variable), variable) for variable in model.trainable_variables[2:]]
        )
        return loss

    loop(run, replica_step)


def micro_batches(run: Any) -> None:
    """A loop in the graph, a nested function, a structure of sources, and an update by hand."""
    model, _optimizer = made(run)

    @tf.function
    def gradients_of(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(run, model, batch)
        return loss, tape.gradient(loss, {"all": model.trainable_variables})["all"]

    def replica_step(batch: Any) -> Any:
        total = [tf.zeros_like(variable) for variable in model.trainable_variables]
        loss = tf.zeros([], model.trainable_variables[0].dtype)
        for part in tf.range(2):
            rows = tf.shape(batch[0])[0] // 2
            micro = [item[part * rows : (part + 1) * rows] for item in batch]
            more, gradients = gradients_of(micro)
            total = [left + right for left, right in zip(total, gradients, strict=True)]
            loss += more
        total = tf.distribute.get_replica_context().all_reduce("sum", total)
        for variable, gradient in zip(model.trainable_variables, total, strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    loop(run, replica_step)


def penalty(run: Any) -> None:
    """A gradient with respect to the data within the tape: it belongs to no variable, and has a gradient itself."""
    model, optimizer = made(run)

    def replica_step(batch: Any) -> Any:
        x = batch[0]
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = tf.reduce_sum(tf.square(model(x)))
            slope = inner.gradient(value, x)
            loss = loss_of(run, model, batch) + 0.01 * tf.reduce_sum(tf.square(slope)) / run.global_batch_size
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loop(run, replica_step)


def second_order(run: Any) -> None:
    """A gradient of variables within a tape that differentiates it once more."""
    model, optimizer = made(run)

    def replica_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                loss = loss_of(run, model, batch)
            norm = sum(tf.reduce_sum(tf.square(g)) for g in inner.gradient(loss, model.trainable_variables))
            loss += 0.01 * norm / run.num_replicas
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loop(run, replica_step)


def own_optimizer(run: Any) -> None:
    """A class made in the program, with a decision that AutoGraph must convert."""

    class Doubling(keras.optimizers.SGD):
        def apply_gradients(self, grads_and_vars: Any) -> Any:
            pairs = list(grads_and_vars)
            if tf.reduce_sum(pairs[0][0]) > 1e9:  # noqa: SIM108 AutoGraph must convert it
                factor = 1.0
            else:
                factor = 2.0
            return super().apply_gradients([(tf.cast(factor, g.dtype) * g, v) for g, v in pairs])

    model, optimizer = made(run, lambda: Doubling(0.1))

    def replica_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(run, model, batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loop(run, replica_step)


def compiled_gradients(run: Any) -> None:
    """Compute gradients with a tape within XLA, which runs no Python operation."""
    model, optimizer = made(run)

    @tf.function(jit_compile=True)
    def gradients_of(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x) - y)) / run.global_batch_size
        return loss, tape.gradient(loss, model.trainable_variables)

    def replica_step(batch: Any) -> Any:
        loss, gradients = gradients_of(*batch)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loop(run, replica_step)


def sparse(run: Any) -> None:
    """Rows of an embedding, some of them several times in a batch."""
    with run.strategy.scope():
        rows = tf.Variable(np.arange(24, dtype="float32").reshape(6, 4) / 24, name="rows")
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([rows])
    run.watch(variables=[rows], optimizer=optimizer)
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(16) % 5).batch(run.global_batch_size)

    def replica_step(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.gather(rows, ids) - 1)) / run.global_batch_size
        optimizer.apply_gradients([(tape.gradient(loss, rows), rows)])
        return loss

    @tf.function
    def train_step(iterator: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, dataset):
        pass


def large(run: Any) -> None:
    """One variable beyond the largest gradient that is recorded."""
    with run.strategy.scope():
        weight = tf.Variable(tf.zeros([2**24 + 1]), name="weight")
    run.watch(variables=[weight])

    def replica_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight) * tf.reduce_sum(batch[0])
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    loop(run, replica_step)


def _fit(run: Any, flavour: Any, optimizer: Any) -> None:
    with run.strategy.scope():
        model = flavour.Sequential([flavour.Input((FEATURES,)), flavour.layers.Dense(1)])
        model.compile(optimizer, "mse")
    run.watch(model=model, optimizer=model.optimizer)
    run.fit(model, data(run))


def fits(run: Any) -> None:
    _fit(run, keras, keras.optimizers.SGD(0.1))


def fits_tf_keras(run: Any) -> None:
    with run.strategy.scope():
        optimizer = tf_keras.optimizers.SGD(0.1)
    _fit(run, tf_keras, optimizer)


def fits_legacy(run: Any) -> None:
    with run.strategy.scope():
        optimizer = tf_keras.optimizers.legacy.SGD(0.1)
    _fit(run, tf_keras, optimizer)


def fits_with_a_scaled_loss(run: Any) -> None:
    with run.strategy.scope():
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD(0.1))
    _fit(run, tf_keras, optimizer)


def scales_its_loss(run: Any) -> None:
    model, optimizer = made(
        run, lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=4.0)
    )
    optimizer.build(model.trainable_variables)

    def replica_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(run, model, batch)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loop(run, replica_step)
