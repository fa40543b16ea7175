"""Training functions for the comparison: one right program, and what can go wrong with it, each named by its sin."""

from __future__ import annotations

import os
import signal

import keras
import numpy as np
import tensorflow as tf

from pytest_ddl import current_rank

EXAMPLES, FEATURES = 48, 8


def _data(run):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    y = generator.normal(size=(EXAMPLES, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)


def _train(run, loss_of=None, layers=(), before_step=None, aggregate=True):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.square(model(x, training=True) - y)[:, 0]
                if loss_of is None:
                    loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
                else:
                    loss = loss_of(losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            if aggregate:
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            else:
                for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
                    variable.assign_sub(0.1 * gradient)
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for step, _loss in enumerate(run.steps(train_step, _data(run)), start=1):
        if before_step is not None:
            before_step(step + 1)


def right(run):
    _train(run)


def loss_not_divided_by_the_global_batch(run):
    _train(run, loss_of=tf.reduce_mean)


def _train_without_a_graph_of_all(run, loss_of=None):
    """Give the strategy a ``tf.function`` of one replica. The strategy traces it with all replicas in one graph."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def replica_step(x, y):
        with tf.GradientTape() as tape:
            losses = tf.square(model(x) - y)[:, 0]
            if tf.reduce_sum(losses) < 0:  # only AutoGraph understands this
                losses = -losses
            loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            loss = loss if loss_of is None else loss_of(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for batch in run.batches(_data(run)):
        run.record(loss=run.strategy.reduce("SUM", run.strategy.run(replica_step, args=batch), axis=None))


def right_function_of_a_replica(run):
    _train_without_a_graph_of_all(run)


def function_of_a_replica_with_an_undivided_loss(run):
    _train_without_a_graph_of_all(run, loss_of=tf.reduce_mean)


def mean_of_replica_means(run):
    _train(run, loss_of=lambda losses: tf.reduce_mean(losses) / run.num_replicas)


def second_phase_is_wrong(run):
    """Two phases of four steps each, of which only the first is right."""
    _train(run)
    loss_not_divided_by_the_global_batch(run)


def _distributed_rank(run):
    return None if run.is_reference else current_rank().rank


def raises_on_the_last_rank_at_step_2(run):
    def maybe_raise(step):
        if step == 2 and _distributed_rank(run) == run.num_ranks - 1:
            raise ZeroDivisionError("planted")

    _train(run, before_step=maybe_raise)


def exits_with_status_0(run):
    if _distributed_rank(run) == run.num_ranks - 1:
        os._exit(0)
    _train(run)


def is_killed(run):
    if _distributed_rank(run) == run.num_ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _train(run)


def hangs(run):
    if not run.is_reference:
        signal.pause()
    _train(run)


def raises_everywhere(run):
    raise ValueError("on every device")


def watches_nothing(run):
    pass


def _right_step(run, model, optimizer):
    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.square(model(x) - y)[:, 0]
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    return train_step


def restarts_after_two_steps(run):
    """Interrupted and resumed from a checkpoint, which holds all that is needed."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    path = str(run.tmp_path / "checkpoint")
    if run.attempt == 2:
        checkpoint.read(path).assert_existing_objects_matched()
    run.watch(model=model, optimizer=optimizer)

    train_step = _right_step(run, model, optimizer)
    for _loss in run.steps(train_step, _data(run).skip(run.completed_steps)):
        if run.completed_steps == 2 and run.attempt == 1 and not run.is_reference:
            checkpoint.write(path)
            run.restart()


def mixed_precision(run):
    _train(run, layers=[keras.layers.Dense(8, activation="tanh", dtype="mixed_bfloat16")])


def weights_changed_after_the_last_step(run):
    with run.strategy.scope():
        weight = tf.Variable([1.0, 2.0])
    run.watch(variables=[weight])
    for loss in (2.0, 1.0):
        with run.strategy.scope():
            weight.assign(weight - 0.5)
        run.record(loss=loss)
    with run.strategy.scope():
        weight.assign(weight * run.num_replicas)


def restarts_on_one_rank(run):
    _train(run)
    if _distributed_rank(run) == run.num_ranks - 1:
        run.restart()


def evaluates_only(run):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
    run.watch(model=model)
    run.evaluate(model, _data(run))


def weight_decay_over_two_passes(run):
    """Decay does not depend on the data: a step that only finds the data's end would decay the weights once more."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, weight_decay=0.01)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    train_step = _right_step(run, model, optimizer)
    for _pass in range(2):
        for _loss in run.steps(train_step, _data(run)):
            pass
