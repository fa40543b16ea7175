"""Programs that save every second step and continue after an interruption, and the same ones with one mistake each."""

from __future__ import annotations

import json
import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

STEPS = 6
BATCH = 12


def data(rows=STEPS * BATCH):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 4))
    return x, x[:, :1] * 2 + 1


def build(run, late=False, layers=2):
    with run.strategy.scope():
        made = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *made[:layers]])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        if not late:
            optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    return model, optimizer


def step_function(run, model, optimizer, trained=None):
    trained = trained or model

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                error = tf.square(model(x) - tf.cast(y, trained.compute_dtype))[:, 0]
                loss = tf.nn.compute_average_loss(error, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, trained.trainable_variables)
            optimizer.apply_gradients(zip(gradients, trained.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    return train_step


def checkpointed(run, sin="", steps=STEPS, late=False):
    """Save with a ``CheckpointManager``: the chief to the folder of all ranks, the others to folders of their own.

    :param late: whether the first step makes the slots of the optimizer.
    """
    saved = run.tmp_path / "saved"
    latest = tf.train.latest_checkpoint(str(saved))
    has_ended = latest is not None and latest.endswith(f"-{steps // 2}")
    model, optimizer = build(run, late, layers=1 if sin == "builds less in the end" and has_ended else 2)
    done = tf.Variable(0, dtype=tf.int64, trainable=False)
    parts = {"model": model, "optimizer": optimizer, "done": done}
    if sin in ("forgets the step", "forgets the optimizer"):
        del parts["done" if sin == "forgets the step" else "optimizer"]
    checkpoint = tf.train.Checkpoint(**parts)
    folder = saved if run.rank == 0 else run.rank_path / "temporary"
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=2)
    if latest and sin == "refuses to continue":
        raise FileExistsError(f"{latest} exists already")
    if latest:
        checkpoint.restore(latest)
    counted = run.tmp_path / "step.json"
    if sin == "counts in a file" and counted.exists():
        done.assign(json.loads(counted.read_text()))
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    dataset = dataset.repeat() if sin == "begins the data again" else dataset.skip(int(done.numpy()))
    left = steps - int(done.numpy())
    for _loss in run.steps(step_function(run, model, optimizer), dataset, steps=left):
        done.assign_add(1)
        if sin == "counts in a file" and run.rank == 0:
            counted.write_text(json.dumps(int(done.numpy())))
        if int(done.numpy()) % 2 == 0:
            manager.save()


def saves_once(run):
    """Save after the second of three steps, so that a sweep has few points."""
    checkpointed(run, steps=3)


def preempted(run, sin="", steps=STEPS):
    """Save at a notice of preemption only, with TensorFlow's handler, and end with a status that asks for a restart."""
    model, optimizer = build(run)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    config = tf.distribute.experimental.TerminationConfig(
        termination_watcher_fn=(lambda: False) if sin == "watches nothing" else run.preempted,
        exit_fn=lambda: sys.exit(42),
        grace_period=0,
    )
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(
        run.strategy.cluster_resolver, checkpoint, str(run.tmp_path / "saved"), config
    )
    x, y = data(steps * BATCH)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    dataset = dataset if sin == "begins the data again" else dataset.skip(int(handler.total_run_calls))
    train_step = step_function(run, model, optimizer)
    for _loss in run.steps(lambda iterator: handler.run(train_step, iterator), dataset):
        if sin == "watches nothing" and run.preempted():
            signal.pause()  # the platform ends this process after the grace


def concurrent(run, sin=""):
    """Schedule three closures at a time, and save when they have ended."""
    model, optimizer = build(run)
    with run.strategy.scope():
        done = tf.Variable(0, dtype=tf.int64, trainable=False)
    run.watch(variables={"done": done})
    parts = {"model": model, "optimizer": optimizer, "done": done}
    # A Keras optimizer keeps the variables that it trains, so that its checkpoint has the weights too.
    for name in {"forgets the optimizer": ["optimizer"], "forgets the weights": ["model", "optimizer"]}.get(sin, []):
        del parts[name]
    checkpoint = tf.train.Checkpoint(**parts)
    manager = tf.train.CheckpointManager(checkpoint, str(run.tmp_path / "saved"), max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint)
    x, y = data(50 * BATCH)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    train_step = step_function(run, model, optimizer)
    made = int(done.numpy())
    if sin == "counts again" and run.attempt > 1:
        made = 0

    @tf.function
    def counted_step(iterator):
        loss = train_step(iterator)
        done.assign_add(1)
        return loss

    while made < STEPS:
        for _loss in run.steps(counted_step, dataset.skip(made), steps=3, concurrent=True):
            made += 1
        manager.save()


def newest(run, sin="writes in place"):
    """Save weights to one file for each second step, and continue with the newest file. SGD has no other state.

    A file that is written in place under its final name may be torn. The right program renames a complete one.
    """
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model)
    found = sorted(run.rank_path.glob("step-*.weights.h5"))
    if found:
        model.load_weights(found[-1])
    done = int(found[-1].name[5]) if found else 0
    x, y = data(4 * BATCH)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size).skip(done)
    for _loss in run.steps(step_function(run, model, optimizer), dataset):
        done += 1
        if done % 2 == 0:
            path = run.rank_path / f"step-{done}.weights.h5"
            target = path if sin else path.with_name(f"new-{done}.weights.h5")
            model.save_weights(target)
            target.rename(path)


def fitted(run, sin=""):
    """Continue ``fit`` at the epoch that ``BackupAndRestore`` has saved."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=model.optimizer)
    x, y = data(3 * BATCH)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    when = 2 if sin == "saves within the epoch" else "epoch"
    backup = keras.callbacks.BackupAndRestore(str(run.tmp_path / "backup"), save_freq=when, delete_checkpoint=False)
    run.fit(model, dataset, epochs=2, callbacks=[backup])


def recording(run, saves=True, reports=0, how=""):
    """Take batches from an iterator of its own, and record each step.

    :param reports: number of steps between two values that the program reports, or 0 for none.
    """
    model, optimizer = build(run)
    done = tf.Variable(0, dtype=tf.int64, trainable=False)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    folder = run.tmp_path / "saved" if run.rank == 0 else run.rank_path / "temporary"
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=2)
    latest = tf.train.latest_checkpoint(str(run.tmp_path / "saved"))
    if latest:
        checkpoint.restore(latest)
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size).skip(int(done.numpy()))
    iterator = iter(run.strategy.experimental_distribute_dataset(dataset))
    train_step = step_function(run, model, optimizer)
    if how == "reports the start":
        run.value("size", float(tf.norm(model.trainable_variables[0])))
    while int(done.numpy()) < STEPS:
        run.record(train_step(iterator))
        done.assign_add(1)
        if reports and int(done.numpy()) % reports == 0:
            wrong = how == "reports half" and run.attempt > 1
            run.value("size", float(tf.norm(model.trainable_variables[0])) / (2 if wrong else 1))
        if saves and int(done.numpy()) % 2 == 0:
            manager.save()


def loaded(run):
    """Continue ``fit`` with the model of a file, which has variables of other names."""
    path = run.tmp_path / "model.keras"
    with run.strategy.scope():
        if path.exists():
            model = keras.models.load_model(str(path))
        else:
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
            model.optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=model.optimizer)
    x, y = data(3 * BATCH)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    begun = int(model.optimizer.iterations.numpy()) // 3
    save = keras.callbacks.ModelCheckpoint(str(path))
    run.fit(model, dataset, epochs=2, initial_epoch=begun, callbacks=[save])


def dropping(run, keeps=True):
    """Train with Dropout, whose seeds Keras repeats over replicas, and write a file in each step.

    :param keeps: whether the file has the state of the seeds.
    """
    with run.strategy.scope():
        layers = [keras.layers.Dense(8), keras.layers.Dropout(0.5, seed=7), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    path = run.rank_path / "state.npz"
    kept = [*(model.variables if keeps else model.trainable_variables), *optimizer.variables]
    done = 0
    if path.exists():
        with np.load(path) as found:
            for at, variable in enumerate(kept):
                variable.assign(found[f"v{at}"])
            done = int(found["done"])
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size).skip(done)
    step = step_function(run, lambda x: model(x, training=True), optimizer, model)
    for _loss in run.steps(step, dataset):
        done += 1
        new = path.with_name("new.npz")
        np.savez(new, done=done, **{f"v{at}": np.asarray(variable) for at, variable in enumerate(kept)})
        new.replace(path)


def dropping_without_seeds(run):
    """Forget the seeds."""
    dropping(run, keeps=False)


def raises_under_a_strategy(run):
    """Train on one device, and raise on several replicas after the second step."""
    model, optimizer = build(run)
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    for done, _loss in enumerate(run.steps(step_function(run, model, optimizer), dataset), 1):
        if done == 2 and run.num_replicas > 1:
            raise RuntimeError("several replicas are not supported")


def starts_again(run):
    """Save nothing: a program that is started again makes all steps again."""
    model, optimizer = build(run)
    x, y = data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)
    for _loss in run.steps(step_function(run, model, optimizer), dataset):
        pass


def catches_everything(run):
    """Continue after any exception of a step, and so lose the step."""
    model, optimizer = build(run)
    x, y = data()

    @tf.function
    def step(batch):
        def replica_step(batch):
            with tf.GradientTape() as tape:
                error = tf.square(model(batch[0]) - tf.cast(batch[1], model.compute_dtype))[:, 0]
                loss = tf.nn.compute_average_loss(error, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    for batch in run.batches(tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)):
        try:
            loss = step(batch)
        except Exception:
            continue
        run.record(loss)


def pretends(run, how):
    """End the second attempt in a way that could look like success."""
    if run.attempt == 2:
        if how == "ends with status 0":
            os._exit(0)
        if how == "exits with status 0":
            sys.exit(0)
        if how == "misses a dependency":
            import pytest

            pytest.importorskip("a_module_that_does_not_exist")
        if how == "returns" or run.rank == 1:
            return
    checkpointed(run)
