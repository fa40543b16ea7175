"""Bugs of files, of several ranks, and of Keras: what is written when and by whom, and what is chosen to continue."""

from __future__ import annotations

import json

import keras
import numpy as np
import tensorflow as tf

from tests.planted_recovery.parts import (
    BATCH,
    EPOCH,
    STEPS,
    WORKERS,
    Recovery,
    Training,
    batches,
    examples,
    manager_of,
    read_arrays,
    write_arrays,
)

LATE = "kill worker:0 before step 6"


def weights_are_saved_in_place(run):
    """One file is written again and again, so that a crash in the save leaves a torn file (row 10, Keras 20463)."""
    training = Training(run)
    path, counted = run.rank_path / "model.weights.h5", run.rank_path / "step.json"
    if path.exists():
        training.model.load_weights(path)
        training.done.assign(json.loads(counted.read_text()) if counted.exists() else 0)
    for done in training.steps(batches(run).skip(training.count)):
        training.model.save_weights(path)
        counted.write_text(json.dumps(done))


def pointer_is_written_before_the_data(run):
    """The file that names the newest save is there before the save is complete."""
    training = Training(run)
    checkpoint = training.checkpoint()
    pointer = run.tmp_path / "latest.txt"
    if pointer.exists():
        checkpoint.read(pointer.read_text())
    for done in training.steps(batches(run).skip(training.count)):
        target = str((run.tmp_path if run.rank == 0 else run.rank_path) / f"at-{done}")
        if run.rank == 0:
            pointer.write_text(target)
        checkpoint.write(target)


def newest_save_is_chosen_by_name(run):
    """``ckpt-10`` comes before ``ckpt-9`` in the order of names."""
    training = Training(run)
    checkpoint = training.checkpoint()
    saves = sorted(run.rank_path.glob("ckpt-*.index"))
    if saves:
        checkpoint.read(str(saves[-1].with_suffix("")))
    for done in training.steps(batches(run).skip(training.count)):
        checkpoint.write(str(run.rank_path / f"ckpt-{done + 6}"))


def restart_finds_files_and_refuses(run):
    """A second start finds the folder of the first and raises."""
    training = Training(run)
    (run.rank_path / "output").mkdir()
    for _done in training.steps(batches(run)):
        pass


def each_rank_restores_its_own_file(run):
    """The ranks save to their own files, not all of which are of one step when one rank ends."""
    training = Training(run)
    path = run.rank_path / "state"
    checkpoint = training.checkpoint()
    counted = run.tmp_path / "step.json"
    start = 0
    if counted.exists():
        start = json.loads(counted.read_text())
        checkpoint.read(str(path))
    for done in training.steps(batches(run).skip(start)):
        if run.rank == 0 or done % 2 == 0:
            checkpoint.write(str(path))
        if run.rank == 0:
            counted.write_text(json.dumps(done))


def all_ranks_write_one_path(run):
    """Two ranks write one file at the same time (row 16, TensorFlow 38635)."""
    training = Training(run)
    path = str(run.tmp_path / "state")
    checkpoint = training.checkpoint()
    if tf.io.gfile.exists(f"{path}.index"):
        checkpoint.read(path)
    for done in training.steps(batches(run).skip(training.count)):
        if done % 2 == 0:
            checkpoint.write(path)


def chief_alone_restores(run):
    """Only the chief has the saved weights; the others continue with new ones."""
    training = Training(run)
    counted = run.tmp_path / "step.json"
    path = run.tmp_path / "state.npz"
    kept = [*training.model.weights, *training.optimizer.variables]
    if counted.exists():
        training.done.assign(json.loads(counted.read_text()))
        if run.rank == 0:
            read_arrays(path, kept)
    for done in training.steps(batches(run).skip(training.count)):
        if run.rank == 0:
            write_arrays(path, kept)
            counted.write_text(json.dumps(done))


def worker_has_a_position_of_its_own(run):
    """Each worker continues in its own part of the data; another number of workers has other parts."""
    training = Training(run)
    path = run.rank_path / "position.json"
    taken = json.loads(path.read_text()) if path.exists() else 0
    checkpoint = training.checkpoint()
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)

    def data_of(context):
        own = examples().shard(context.num_input_pipelines, context.input_pipeline_id).skip(taken)
        return own.repeat().batch(context.get_per_replica_batch_size(run.global_batch_size))

    for done in training.steps(data_of, STEPS - training.count):
        taken += run.global_batch_size // run.num_ranks
        if done % 2 == 0:
            manager.save()
            path.write_text(json.dumps(taken))


def _compiled(run):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        model.optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=model.optimizer)
    return model


def backup_within_the_epoch(run):
    """Keras 3 writes the batch and never reads it: the batches of the epoch are trained on twice (row 12)."""
    model = _compiled(run)
    backup = keras.callbacks.BackupAndRestore(str(run.tmp_path / "backup"), save_freq=2, delete_checkpoint=False)
    run.fit(model, batches(run, EPOCH * BATCH), epochs=2, callbacks=[backup])


def fit_begins_with_the_first_epoch(run):
    """The weights are loaded, and ``initial_epoch`` is not given (rows 7 and 9)."""
    model = _compiled(run)
    path = run.rank_path / "model.keras"
    if path.exists():
        with run.strategy.scope():
            saved = keras.models.load_model(path)
        model.set_weights(saved.get_weights())
        for ours, theirs in zip(model.optimizer.variables, saved.optimizer.variables, strict=True):
            ours.assign(theirs)
    run.fit(model, batches(run, EPOCH * BATCH), epochs=2, callbacks=[keras.callbacks.ModelCheckpoint(path)])


def fit_continues_without_the_optimizer(run):
    """Weights and epoch are restored, the optimizer is compiled anew (row 5, TensorFlow 44670)."""
    model = _compiled(run)
    path, counted = run.rank_path / "model.weights.h5", run.rank_path / "epoch.json"
    first = 0
    if counted.exists():
        weights = np.load(path.with_suffix(".npz"))
        model.set_weights([weights[name] for name in weights.files])
        first = json.loads(counted.read_text())

    class Save(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            np.savez(path.with_suffix(".npz"), *model.get_weights())
            counted.write_text(json.dumps(epoch + 1))

    run.fit(model, batches(run, EPOCH * BATCH), epochs=2, initial_epoch=first, callbacks=[Save()])


def early_stopping_begins_anew(run):
    """``EarlyStopping`` keeps its counts in attributes, which ``BackupAndRestore`` does not save: training goes on."""
    model = _compiled(run)
    backup = keras.callbacks.BackupAndRestore(str(run.tmp_path / "backup"), delete_checkpoint=False)
    stop = keras.callbacks.EarlyStopping("loss", min_delta=100.0, patience=2)
    run.fit(model, batches(run, EPOCH * BATCH), epochs=8, callbacks=[backup, stop])


def backup_is_killed_before_its_count(run):
    """``BackupAndRestore`` writes the epoch to a file of its own, after the weights."""
    model = _compiled(run)
    backup = keras.callbacks.BackupAndRestore(str(run.tmp_path / "backup"), delete_checkpoint=False)
    run.fit(model, batches(run, EPOCH * BATCH), epochs=2, callbacks=[backup])


def coordinator_forgets_the_step(run):
    """The coordinator of a parameter server is started again and schedules all steps once more."""
    training = Training(run)
    checkpoint = training.checkpoint("done")
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)
    for done in training.steps(batches(run)):
        if done % 2 == 0:
            manager.save()


SECOND = "kill worker:1 before step 6"
PLANTED = [
    Recovery(weights_are_saved_in_place, "torn-write worker:0 in save 2, write 3", ("cannot resume",)),
    Recovery(weights_are_saved_in_place, "torn-write worker:0 in save 1, write 3", ("cannot resume",)),
    Recovery(weights_are_saved_in_place, LATE, ("diverged",), ("resume-lost-state",)),
    Recovery(pointer_is_written_before_the_data, "kill worker:0 before save 4", ("cannot resume",)),
    Recovery(pointer_is_written_before_the_data, "kill worker:0 in save 4, write 2", ("cannot resume",)),
    Recovery(
        newest_save_is_chosen_by_name,
        LATE,
        given={"always_loadable": True},
        broken="the run continued at step 3: the save of step 5 is lost",
    ),
    Recovery(restart_finds_files_and_refuses, LATE, ("cannot resume",)),
    Recovery(
        each_rank_restores_its_own_file, SECOND, ("diverged",), ("workers-diverged", "resume-step-wrong"), WORKERS
    ),
    Recovery(all_ranks_write_one_path, SECOND, ("comparison",), ("unsafe-checkpoint-path", "worker-raised"), WORKERS),
    Recovery(chief_alone_restores, SECOND, ("diverged",), ("workers-diverged",), WORKERS),
    Recovery(
        worker_has_a_position_of_its_own,
        SECOND,
        ("examples",),
        ("resume-data-wrong", "examples-duplicated", "examples-dropped"),
        f"{WORKERS}[workers=2]",
        {"restart_on": f"{WORKERS}[workers=3]"},
        missed="cannot resume, with collectives that do not match",
    ),
    Recovery(backup_within_the_epoch, LATE, ("replayed",)),
    Recovery(early_stopping_begins_anew, "kill worker:0 before step 8", ("diverged",), ("resume-lost-state",)),
    Recovery(backup_is_killed_before_its_count, "kill worker:0 before writing 1", ("replayed",)),
    Recovery(backup_is_killed_before_its_count, "kill worker:0 before writing 2", ("replayed",)),
    Recovery(fit_begins_with_the_first_epoch, LATE, ("replayed",)),
    Recovery(fit_continues_without_the_optimizer, LATE, ("diverged",), ("resume-lost-state",)),
    Recovery(coordinator_forgets_the_step, "kill chief:0 before step 6", ("replayed",), (), "parameter_server"),
]
