"""Strategies that do not span the cluster, and what the installed framework cannot do under one."""

from __future__ import annotations

import os
import signal

import keras
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def _train_alone(run, strategy):
    with strategy.scope():
        model = loops.perceptron()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

    x, y = (part.astype(keras.config.floatx()) for part in loops.regression())
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    data = strategy.experimental_distribute_dataset(data)
    for _, batch in zip(range(run.steps_limit), data, strict=False):
        run.record(loss=train_step(batch))


def workers_train_alone(run, sin):
    """Every worker has a cluster of one and all of the data, as if TF_CONFIG were set after the strategy is made."""
    device = tf.config.list_logical_devices("CPU")[0].name
    _train_alone(run, tf.distribute.OneDeviceStrategy(device) if sin else run.strategy)


def strategy_takes_one_of_the_devices(run, sin):
    """A strategy of the program's own, with a list of devices that has one entry."""
    device = tf.config.list_logical_devices("CPU")[0].name
    _train_alone(run, tf.distribute.MirroredStrategy([device]) if sin else run.strategy)


def step_is_compiled_by_xla(run, sin):
    with run.strategy.scope():
        model = loops.perceptron()
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=sin and run.num_replicas > 1)
    run.watch(model=model)
    run.fit(model, loops.dataset(run), shuffle=False)


def loss_scaling_is_compiled_by_xla(run, sin):
    with run.strategy.scope():
        model = loops.perceptron()
        optimizer = keras.optimizers.SGD(0.1)
        if sin and run.num_replicas > 1:
            optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
        model.compile(optimizer, "mse", jit_compile=sin and run.num_replicas > 1)
    run.watch(model=model)
    run.fit(model, loops.dataset(run), shuffle=False)


def optimizer_is_built_by_the_first_step(run, sin):
    with run.strategy.scope():
        model = loops.perceptron()
        optimizer = keras.optimizers.Adam(0.01)
        if not sin:
            optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


def gradients_are_applied_between_replicas(run, sin):
    """apply_gradients after strategy.run instead of within."""
    model, optimizer = loops.keras_program(run)

    def gradients_of(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        if not sin:
            optimizer.apply(gradients, model.trainable_variables)
        return loss, gradients

    @tf.function
    def train_step(iterator):
        losses, gradients = run.strategy.run(gradients_of, args=(next(iterator),))
        if sin:
            optimizer.apply(gradients, model.trainable_variables)
        return run.strategy.reduce("SUM", losses, axis=None)

    for _ in run.steps(train_step, loops.dataset(run)):
        pass


def one_worker_lacks_a_file(run, sin):
    if run.rank == 0 or not sin:
        (run.rank_path / "vocabulary.txt").write_text("a b c")
    model, optimizer = loops.keras_program(run)
    len((run.rank_path / "vocabulary.txt").read_text())

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    loops.train(run, replica_step)


def one_worker_is_killed(run, sin):
    """A worker is killed in the middle of training, as the system does when memory is used up."""
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    for _ in run.steps(loops.summed(run, replica_step), loops.dataset(run)):
        if sin and run.rank == 1 and run.completed_steps == 2:
            os.kill(os.getpid(), signal.SIGKILL)


MISCONFIGURED, UNSUPPORTED = "cluster-misconfigured", "unsupported-by-framework"
WORKERS = ("multi_worker_mirrored",)
PLANTED = (
    planted("H01", workers_train_alone, MISCONFIGURED, strategies=WORKERS),
    planted("H01", strategy_takes_one_of_the_devices, MISCONFIGURED, strategies=("mirrored",)),
    planted("H06", step_is_compiled_by_xla, UNSUPPORTED, symptom="crash", strategies=("mirrored",)),
    planted("B19", loss_scaling_is_compiled_by_xla, UNSUPPORTED, symptom="crash", strategies=("mirrored",)),
    planted(
        "H07", optimizer_is_built_by_the_first_step, "optimizer-not-built", symptom="crash", strategies=("mirrored",)
    ),
    # A worker of one replica has nothing to add up between replicas: it applies its own gradient.
    planted(
        "H08",
        gradients_are_applied_between_replicas,
        "worker-raised",
        UNSUPPORTED,
        "gradient-not-aggregated",
        symptom="crash",
    ),
    planted("", one_worker_lacks_a_file, "worker-raised", symptom="crash", strategies=WORKERS, sin_timeout=60),
    planted("", one_worker_is_killed, "worker-died", symptom="crash", strategies=WORKERS, sin_timeout=60),
)
