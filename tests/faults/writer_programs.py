"""Programs of several ranks that save to one path, and the same ones that save to paths of their own."""

from __future__ import annotations

import tensorflow as tf
from recovery_programs import STEPS, build, data, step_function

FORMS = ("write", "save", "manager", "keras", "h5", "weights", "saved_model", "export")


def saver_of(how, model, checkpoint, folder):
    """Return a function that saves into a folder."""
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=2)
    return {
        "write": lambda: checkpoint.write(str(folder / "w")),
        "save": lambda: checkpoint.save(str(folder / "s")),
        "manager": manager.save,
        "keras": lambda: model.save(folder / "m.keras"),
        "h5": lambda: model.save(str(folder / "m.h5")),
        "weights": lambda: model.save_weights(folder / "m.weights.h5"),
        "saved_model": lambda: tf.saved_model.save(model, str(folder / "sm")),
        "export": lambda: model.export(str(folder / "ex"), verbose=False),
    }[how]


def saves(run, how, where="one path"):
    """Save every second step in one form, and continue with a checkpoint of the chief.

    :param where: ``one path``, ``one path after a restart``, ``own paths``, or ``chief`` if only the chief saves.
    """
    model, optimizer = build(run)
    done = tf.Variable(0, dtype=tf.int64, trainable=False)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    kept = run.tmp_path / "kept"
    latest = tf.train.latest_checkpoint(str(kept))
    if latest:
        checkpoint.restore(latest)
    manager = tf.train.CheckpointManager(checkpoint, str(kept if run.rank == 0 else run.rank_path / "kept"), None)
    shared = where == "one path" or (where == "one path after a restart" and run.attempt > 1)
    chief = where == "chief" and run.rank == 0
    folder = run.tmp_path if shared or chief else run.rank_path
    save = saver_of(how, model, tf.train.Checkpoint(model=model), folder)
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(run.global_batch_size).skip(int(done.numpy()))
    for _loss in run.steps(step_function(run, model, optimizer), dataset, steps=STEPS - int(done.numpy())):
        done.assign_add(1)
        if int(done.numpy()) % 2 == 0:
            save()
            manager.save()
