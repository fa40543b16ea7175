"""Programs that save every second step, and what each does with a save whose file is damaged later."""

from __future__ import annotations

import hashlib
import os

import keras
import tensorflow as tf
from recovery_programs import STEPS, build, data, step_function


def weights(run, then=""):
    """Save weights to a file for each second step, with their checksum, and continue with the newest file.

    SGD has no other state.

    :param then: ``refuses`` or ``falls back`` if the checksum differs; empty for a program that has none.
    """
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model)
    folder = run.tmp_path / "saved" if run.rank == 0 else run.rank_path / "temporary"
    folder.mkdir(exist_ok=True)
    done = 0
    for path in sorted((run.tmp_path / "saved").glob("step-*.weights.h5"), reverse=True):
        if then and path.with_suffix(".sum").read_text() != hashlib.sha256(path.read_bytes()).hexdigest():
            if then == "refuses":
                raise ValueError(f"{path} is damaged")
            continue
        model.load_weights(path)
        done = int(path.name[5])
        break
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(run.global_batch_size).skip(done)
    for _loss in run.steps(step_function(run, model, optimizer), dataset):
        done += 1
        if done % 2 == 0:
            path = folder / f"step-{done}.weights.h5"
            new = path.with_name(f"new-{done}.weights.h5")
            model.save_weights(new)
            path.with_suffix(".sum").write_text(hashlib.sha256(new.read_bytes()).hexdigest())
            os.replace(new, path)


def checkpointed(run, then=""):
    """Save with a ``CheckpointManager``.

    :param then: ``names`` to add the path to the error of a restore; ``falls back`` to restore an older save then.
    """
    model, optimizer = build(run)
    done = tf.Variable(0, dtype=tf.int64, trainable=False)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    saved = run.tmp_path / "saved"
    folder = saved if run.rank == 0 else run.rank_path / "temporary"
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=2)
    state = tf.train.get_checkpoint_state(str(saved))
    paths = list(reversed(state.all_model_checkpoint_paths)) if state else []
    for path in paths:
        try:
            checkpoint.restore(path)
            break
        except Exception as error:
            if then == "names":
                raise RuntimeError(f"{path} cannot be restored") from error
            if then != "falls back":
                raise
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(run.global_batch_size).skip(int(done.numpy()))
    for _loss in run.steps(step_function(run, model, optimizer), dataset, steps=STEPS - int(done.numpy())):
        done.assign_add(1)
        if int(done.numpy()) % 2 == 0:
            manager.save()
