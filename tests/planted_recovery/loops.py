"""Bugs of programs with a loop of their own: missing parts of the save, and a wrong place to continue the data."""

from __future__ import annotations

import json
import signal

import keras
import numpy as np
import tensorflow as tf

from tests.planted_recovery.parts import (
    BATCH,
    EPOCH,
    KNOWN,
    STEPS,
    Recovery,
    Training,
    arrays,
    batches,
    examples,
    manager_of,
    read_arrays,
    scaled,
    step_function,
    write_arrays,
)

EARLY, LATE = "kill worker:0 after step 2", "kill worker:0 before step 6"
"""Faults; the late one strikes after a step that is in no save, because the programs save every second step."""


def _continued(run, training, checkpoint, data_of, left=None, every=2):
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)
    for done in training.steps(data_of(training.count), None if left is None else left - training.count):
        if done % every == 0:
            manager.save()


def step_is_not_saved(run):
    """The weights continue and the count does not: all data comes again (horovod 2844)."""
    training = Training(run)
    _continued(run, training, training.checkpoint("done"), batches(run).skip)


def optimizer_is_not_saved(run):
    """The momentum is lost (row 3, TensorFlow 44518)."""
    training = Training(run)
    _continued(run, training, training.checkpoint("optimizer"), batches(run).skip)


def _decaying():
    return keras.optimizers.SGD(keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5), 0.9)


def iterations_are_not_saved(run):
    """Weights and momentum are saved, the optimizer's count is not, so its schedule begins anew (row 4)."""
    training = Training(run, _decaying)
    path = run.rank_path / "state.npz"
    kept = [*training.model.weights, *training.optimizer.variables[1:]]
    if path.exists():
        training.done.assign(int(read_arrays(path, kept)["done"]))
    for done in training.steps(batches(run).skip(training.count)):
        write_arrays(path, kept, done=done)


def schedule_runs_ahead(run):
    """The rate follows a count that is written in each step, the weights only in every second (rows 9 and 12)."""
    training = Training(run)
    counted = run.tmp_path / "rate.json"
    updates = json.loads(counted.read_text()) if counted.exists() else 0
    checkpoint = training.checkpoint()
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)
    training.optimizer.learning_rate.assign(0.1 * 0.8**updates)
    for done in training.steps(batches(run).skip(training.count)):
        updates += 1
        training.optimizer.learning_rate.assign(0.1 * 0.8**updates)
        if run.rank == 0:
            counted.write_text(json.dumps(updates))
        if done % 2 == 0:
            manager.save()


def epoch_is_forgotten(run):
    """The save at the end of an epoch does not say which one it was (row 7, Keras 19179)."""
    training = Training(run)
    checkpoint = training.checkpoint("done")
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)
    for _epoch in range(2):
        for _done in training.steps(batches(run, EPOCH * BATCH)):
            pass
        manager.save()


def dropout_begins_anew(run):
    """The state of the seed generator is not saved, so the resumed run draws the first masks again (row 30)."""
    training = Training(run, layers=lambda: [keras.layers.Dense(8), keras.layers.Dropout(0.5, seed=7)])
    path = run.rank_path / "state.npz"
    kept = [*training.model.trainable_variables, *training.optimizer.variables]
    if path.exists():
        training.done.assign(int(read_arrays(path, kept)["done"]))
    for done in training.steps(batches(run).skip(training.count)):
        write_arrays(path, kept, done=done)


def generator_is_not_saved(run):
    """The noise of each replica comes from a ``tf.random.Generator`` that is in no file (row 30)."""
    with run.strategy.scope():
        generator = tf.random.Generator.from_seed(3)
    noise = keras.layers.Lambda(lambda x: x + generator.normal(tf.shape(x), stddev=0.1, dtype=x.dtype))
    training = Training(run, layers=lambda: [keras.layers.Dense(8), noise])
    _continued(run, training, training.checkpoint(), batches(run).skip)


def noise_has_no_generator(run):
    """The noise comes from ``tf.random.normal``, whose state is a count in the process that nothing saves."""
    noise = keras.layers.Lambda(lambda x: x + tf.random.normal(tf.shape(x), stddev=0.1, dtype=x.dtype))
    training = Training(run, layers=lambda: [keras.layers.Dense(8), noise])
    _continued(run, training, training.checkpoint(), batches(run).skip)


def patience_is_lost(run):
    """The program ends after four steps without progress. It counts them in a variable of Python, which begins anew."""
    training = Training(run)
    checkpoint = training.checkpoint()
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)
    for waited, batch in enumerate(run.batches(batches(run).repeat(2).skip(training.count)), 1):
        run.record(training.step_of_batch(batch))
        training.done.assign_add(1)
        manager.save()
        if waited == 4:
            break


def rate_of_a_plateau_is_lost(run):
    """The rate falls when the program has waited for two steps, and the count of these begins anew."""
    training = Training(run)
    checkpoint = training.checkpoint()
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)
    for waited, _done in enumerate(training.steps(batches(run).skip(training.count)), 1):
        if waited == 3:
            training.optimizer.learning_rate.assign(0.01)
        manager.save()


def augmentation_begins_anew(run):
    """The state of the NumPy generator that augments the data is not saved (huggingface/transformers 17032)."""
    training = Training(run)
    rng = np.random.default_rng(run.seed)

    def data_of(done):
        x, y = arrays()
        x, y = x[done * BATCH :], y[done * BATCH :]
        return tf.data.Dataset.from_tensor_slices((x + rng.normal(size=x.shape), y)).batch(run.global_batch_size)

    _continued(run, training, training.checkpoint(), data_of)


def data_begins_again(run):
    """The position in the data is lost: the first batches come again, and the last never (rows 1 and 2)."""
    training = Training(run)
    _continued(run, training, training.checkpoint(), lambda _done: batches(run).repeat(), left=STEPS)


def position_in_the_epoch_is_lost(run):
    """An interrupted epoch begins again (litData 760)."""
    training = Training(run)

    def data_of(done):
        return batches(run, EPOCH * BATCH).repeat().skip(done - done % EPOCH)

    _continued(run, training, training.checkpoint(), data_of, left=STEPS)


def last_batch_is_read_twice(run):
    """The data continues one batch too early (horovod 3143)."""
    training = Training(run)
    _continued(run, training, training.checkpoint(), lambda done: batches(run).skip(max(0, done - 1)))


def one_batch_is_left_out(run):
    """The data continues one batch too late."""
    training = Training(run)
    _continued(run, training, training.checkpoint(), lambda done: batches(run).skip(done + 1 if done else 0))


def examples_are_skipped_instead_of_batches(run):
    """The number of skipped examples is the number of batches."""
    training = Training(run)

    def data_of(done):
        return examples().repeat().skip(done).batch(run.global_batch_size)

    _continued(run, training, training.checkpoint(), data_of, left=STEPS)


def shuffle_of_the_first_epoch_comes_again(run):
    """A new dataset shuffles its first pass in the order of the first epoch, also when the second continues."""
    training = Training(run)

    def data_of(done):
        shuffled = examples(EPOCH * BATCH).shuffle(EPOCH * BATCH, seed=5).batch(run.global_batch_size)
        return shuffled.repeat(2 - done // EPOCH)

    _continued(run, training, training.checkpoint(), data_of, every=EPOCH)


def shuffle_order_is_new(run):
    """The seed of the order is the step at which the program starts, so that skipped and left examples overlap."""
    training = Training(run)

    def data_of(done):
        return examples().shuffle(STEPS * BATCH, seed=done + 1).batch(run.global_batch_size).skip(done)

    _continued(run, training, training.checkpoint(), data_of)


def weights_are_of_the_step_before(run):
    """The weights are copied before the update and written with the count after it (horovod 2285)."""
    training = Training(run)
    path = run.rank_path / "state.npz"
    kept = [*training.model.weights, *training.optimizer.variables]
    if path.exists():
        training.done.assign(int(read_arrays(path, kept)["done"]))
    values = [np.asarray(variable) for variable in kept]
    for done in training.steps(batches(run).skip(training.count)):
        write_arrays(path, values, done=done)
        values = [np.asarray(variable) for variable in kept]


def count_is_in_a_file_of_its_own(run):
    """The count is written in each step, and the weights in every second."""
    training = Training(run)
    checkpoint = training.checkpoint()
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)
    counted = run.tmp_path / "step.json"
    if counted.exists():
        training.done.assign(json.loads(counted.read_text()))
    for done in training.steps(batches(run).skip(training.count)):
        if run.rank == 0:
            counted.write_text(json.dumps(done))
        if done % 2 == 0:
            manager.save()


def checkpoint_is_ignored_and_data_skipped(run):
    """Only the count is restored: new weights get the rest of the data."""
    training = Training(run)
    checkpoint = training.checkpoint()
    manager, latest = manager_of(run, checkpoint)
    if latest:
        tf.train.Checkpoint(done=training.done).restore(latest).expect_partial()
    for done in training.steps(batches(run).skip(training.count)):
        if done % 2 == 0:
            manager.save()


def optimizer_is_restored_before_it_is_built(run):
    """The optimizer's variables are assigned by position. Before it is built it has two, so zip stops there (row 4)."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.05)
    path = run.rank_path / "state.npz"
    done = 0
    if path.exists():
        done = int(read_arrays(path, [*model.weights, *optimizer.variables])["done"])
    with run.strategy.scope():
        optimizer.build(model.trainable_variables)
    training = Training.__new__(Training)
    training.run, training.model, training.optimizer = run, model, optimizer
    training.done = tf.Variable(done, dtype=tf.int64, trainable=False)
    training.step = step_function(run, model, optimizer)
    run.watch(model=model, optimizer=optimizer)
    for count in training.steps(batches(run).skip(done)):
        write_arrays(path, [*model.weights, *optimizer.variables], done=count)


def average_of_weights_is_lost(run, lost=True):
    """The moving average of the weights is not saved and begins with the restored weights."""
    training = Training(run)
    with run.strategy.scope():
        means = [
            tf.Variable(np.asarray(item), trainable=False, name=f"mean{at}")
            for at, item in enumerate(training.model.weights)
        ]
    run.watch(variables=means)
    checkpoint = training.checkpoint() if lost else training.checkpoint(means=means)
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)
    for _loss in run.steps(training.step, batches(run).skip(training.count)):
        training.done.assign_add(1)
        for mean, weight in zip(means, training.model.weights, strict=True):
            mean.assign(0.9 * mean + 0.1 * tf.cast(weight, mean.dtype))
        if training.count % 2 == 0:
            manager.save()


def average_is_saved_as_the_weights(run):
    """The file for the evaluation, which holds the averaged weights, is also the one from which training continues."""
    training = Training(run)
    path = run.rank_path / "state.npz"
    kept = [*training.model.weights, *training.optimizer.variables]
    if path.exists():
        training.done.assign(int(read_arrays(path, kept)["done"]))
    means = [np.asarray(item) for item in training.model.weights]
    for done in training.steps(batches(run).skip(training.count)):
        means = [0.5 * mean + 0.5 * np.asarray(item) for mean, item in zip(means, training.model.weights, strict=True)]
        if done % 2 == 0:
            write_arrays(path, [*means, *training.optimizer.variables], done=done)


def weights_are_saved_in_half_precision(run):
    """The file is smaller, and the resumed run continues with rounded weights."""
    training = Training(run)
    path = run.rank_path / "state.npz"
    kept = [*training.model.weights, *training.optimizer.variables]
    if path.exists():
        training.done.assign(int(read_arrays(path, kept)["done"]))
    for done in training.steps(batches(run).skip(training.count)):
        if done % 2 == 0:
            halves = [np.asarray(item).astype("float16") for item in training.model.weights]
            write_arrays(path, [*halves, *training.optimizer.variables], done=done)


def last_layer_is_not_restored(run):
    """The layer has another name in the file and is skipped without a word; there are no steps left to show it."""
    training = Training(run)
    path = run.rank_path / "state.npz"
    if path.exists():
        training.done.assign(int(read_arrays(path, training.model.weights[:2])["done"]))
    for done in training.steps(batches(run).skip(training.count)):
        write_arrays(path, training.model.weights, done=done)


def loss_scale_is_lost(run):
    """The dynamic scale of the loss and its count begin anew."""
    training = Training(run, scaled)
    path = run.rank_path / "state.npz"
    kept = [*training.model.weights, *training.optimizer.inner_optimizer.variables]
    if path.exists():
        training.done.assign(int(read_arrays(path, kept)["done"]))
    for done in training.steps(batches(run).skip(training.count)):
        write_arrays(path, kept, done=done)


def metric_begins_anew(run):
    """The running mean of the loss over the whole training is not saved, and the last report is of two steps."""
    training = Training(run)
    mean = keras.metrics.Mean()
    checkpoint = training.checkpoint()
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)
    for loss in run.steps(training.step, batches(run).skip(training.count)):
        training.done.assign_add(1)
        mean.update_state(loss)
        run.value("mean loss", float(mean.result()))
        if training.count % 2 == 0:
            manager.save()


def exception_is_swallowed(run):
    """A step that fails is logged, and the loop goes on without it."""
    training = Training(run)
    for batch in run.batches(batches(run)):
        try:
            loss = training.step_of_batch(batch)
        except Exception:
            continue
        run.record(loss)


def signal_ends_the_program_without_a_save(run):
    """The handler of SIGTERM lets the loop end, and the platform takes this for success (goodfire-ai/spd 677)."""
    training = Training(run)
    asked = []
    signal.signal(signal.SIGTERM, lambda *_arguments: asked.append(True))
    checkpoint = training.checkpoint()
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)
    for done in training.steps(batches(run).skip(training.count)):
        if asked:
            return
        if done % 2 == 0:
            manager.save()


def result_is_not_restored_if_nothing_is_left(run):
    """The values are restored with the first batch; after the last step there is none, and new weights are left."""
    from tests.planted_recovery.correct import restores_within_its_loop

    restores_within_its_loop(run)


PLANTED = [
    Recovery(result_is_not_restored_if_nothing_is_left, "kill worker:0 after training", ("lost",)),
    Recovery(step_is_not_saved, LATE, ("replayed",)),
    Recovery(optimizer_is_not_saved, LATE, ("diverged",), ("resume-lost-state",)),
    Recovery(iterations_are_not_saved, LATE, ("diverged",), ("resume-lost-state", "resume-step-wrong")),
    Recovery(schedule_runs_ahead, LATE, ("diverged",), ("resume-step-wrong", "learning-rate-differs")),
    Recovery(epoch_is_forgotten, LATE, ("replayed",)),
    Recovery(dropout_begins_anew, LATE, ("diverged",), ("resume-random-wrong", "resume-lost-state"), given=KNOWN),
    # The same, with Keras' seeds recognized as a known behavior.
    Recovery(
        dropout_begins_anew, "kill worker:0 before step 4", ("diverged",), ("resume-random-wrong", "resume-lost-state")
    ),
    Recovery(generator_is_not_saved, LATE, ("diverged",), ("resume-random-wrong",)),
    Recovery(noise_has_no_generator, LATE, ("diverged",), ("resume-random-wrong",)),
    Recovery(patience_is_lost, "kill worker:0 after step 3", ("diverged",), ("resume-lost-state",)),
    Recovery(rate_of_a_plateau_is_lost, EARLY, ("diverged",), ("learning-rate-differs", "resume-step-wrong")),
    Recovery(count_is_in_a_file_of_its_own, "kill worker:0 in writing 3, write 2", ("cannot resume",)),
    Recovery(augmentation_begins_anew, LATE, ("examples",), ("resume-data-wrong", "examples-altered")),
    Recovery(data_begins_again, LATE, ("examples",), ("resume-data-wrong",)),
    Recovery(position_in_the_epoch_is_lost, LATE, ("examples",), ("resume-data-wrong", "resume-step-wrong")),
    Recovery(last_batch_is_read_twice, LATE, ("replayed",)),
    Recovery(one_batch_is_left_out, LATE, ("lost",)),
    Recovery(examples_are_skipped_instead_of_batches, LATE, ("examples",), ("resume-data-wrong",)),
    Recovery(shuffle_of_the_first_epoch_comes_again, LATE, ("diverged",), ("resume-data-wrong",)),
    Recovery(shuffle_order_is_new, LATE, ("examples",), ("resume-data-wrong",)),
    Recovery(weights_are_of_the_step_before, LATE, ("lost",)),
    Recovery(count_is_in_a_file_of_its_own, LATE, ("lost",)),
    Recovery(checkpoint_is_ignored_and_data_skipped, LATE, ("lost",)),
    Recovery(optimizer_is_restored_before_it_is_built, LATE, ("diverged",), ("resume-lost-state",)),
    Recovery(average_of_weights_is_lost, LATE, ("diverged",), ("resume-lost-state",)),
    Recovery(average_is_saved_as_the_weights, LATE, ("diverged",), ("resume-lost-state",)),
    Recovery(weights_are_saved_in_half_precision, LATE, ("diverged",), ("resume-lost-state",)),
    Recovery(last_layer_is_not_restored, "kill worker:0 after training", ("diverged",), ("resume-lost-state",)),
    Recovery(loss_scale_is_lost, LATE, ("diverged",), ("resume-lost-state",)),
    Recovery(metric_begins_anew, LATE, ("diverged",), ("metric-wrong",)),
    Recovery(exception_is_swallowed, "exception worker:0 in step 3, batch 0", ("lost",)),
    Recovery(signal_ends_the_program_without_a_save, "term worker:0 before step 4 for 60 s", ("lost",)),
]
