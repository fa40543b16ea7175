"""Work that is lost, repeated or miscounted when training is interrupted and continues."""

from __future__ import annotations

import json

import keras
import numpy as np
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted

SAVED_AFTER = 2
"""Steps after which the programs save, and are interrupted."""


def _step_of(run, model, optimizer):
    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return loops.summed(run, replica_step)


def weights_alone_are_saved(run, sin):
    """Momentum starts anew after the interruption."""
    with run.strategy.scope():
        model = loops.perceptron()
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model) if sin else tf.train.Checkpoint(model=model, optimizer=optimizer)
    path = str(run.rank_path / "checkpoint")
    if run.attempt == 2:
        checkpoint.read(path)
    run.watch(model=model, optimizer=optimizer)
    for _ in run.steps(_step_of(run, model, optimizer), loops.dataset(run).skip(run.completed_steps)):
        if run.completed_steps == SAVED_AFTER and run.attempt == 1:
            checkpoint.write(path)
            run.restart()


def optimizer_is_restored_before_it_is_built(run, sin):
    """The optimizer's variables are saved by position. Before it is built it has only two, so zip stops after these."""
    with run.strategy.scope():
        model = loops.perceptron()
        optimizer = keras.optimizers.Adam(0.05)
        if not sin:
            optimizer.build(model.trainable_variables)
    weights, state = run.rank_path / "model.weights.h5", run.rank_path / "optimizer.npz"
    if run.attempt == 2:
        model.load_weights(weights)
        saved = np.load(state)
        for variable, name in zip(optimizer.variables, saved.files, strict=False):
            variable.assign(saved[name])
    if sin:
        with run.strategy.scope():
            optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    for _ in run.steps(_step_of(run, model, optimizer), loops.dataset(run).skip(run.completed_steps)):
        if run.completed_steps == SAVED_AFTER and run.attempt == 1:
            model.save_weights(weights)
            np.savez(state, *[keras.ops.convert_to_numpy(variable) for variable in optimizer.variables])
            run.restart()


def _resuming(run, save, restore, data_of, schedule_of):
    """A loop that keeps a step of its own, from which its rate comes."""
    model = loops.linear_program(run)
    variables = list(model.trainable_variables)
    path = run.rank_path / "state.json"
    step = 0
    if run.attempt == 2:
        state = json.loads(path.read_text())
        for variable, value in zip(variables, state["weights"], strict=True):
            variable.assign(np.array(value, "float32"))
        step = restore(state)
    with run.strategy.scope():
        rate = tf.Variable(0.0, trainable=False, dtype=tf.float32, name="rate")
        counter = tf.Variable(step, trainable=False, dtype=tf.int64, name="step")
    run.watch(variables=[counter])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        gradients = loops.all_reduce(tape.gradient(loss, variables))
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(rate * gradient)
        return loss

    @tf.function
    def train_step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    for batch in run.batches(data_of(step)):
        rate.assign(schedule_of(step))
        loss = train_step(batch)
        if run.completed_steps == SAVED_AFTER - 1 and run.attempt == 1:
            state = {"weights": [variable.numpy().tolist() for variable in variables], "step": save(step)}
            path.write_text(json.dumps(state))
        step += 1
        counter.assign(step)
        run.record(loss=loss)
        if run.completed_steps == SAVED_AFTER:
            run.restart()


def step_is_saved_before_it_is_counted(run, sin):
    """The weights hold one update more than the step says; the rate falls by step."""
    _resuming(
        run,
        save=lambda step: step if sin else step + 1,
        restore=lambda state: state["step"],
        data_of=lambda _step: loops.dataset(run).skip(run.completed_steps),
        schedule_of=lambda step: 0.1 / (1 + step),
    )


def epoch_starts_at_zero_again(run, sin):
    """The schedule's epoch is not restored, everything else is."""
    _resuming(
        run,
        save=lambda step: step + 1,
        restore=lambda state: 0 if sin else state["step"],
        data_of=lambda _step: loops.dataset(run).skip(run.completed_steps),
        schedule_of=lambda step: 0.1 * 0.5**step,
    )


def data_starts_at_the_beginning_again(run, sin):
    """The position of the iterator is in no checkpoint."""
    _resuming(
        run,
        save=lambda step: step + 1,
        restore=lambda state: state["step"],
        data_of=lambda step: loops.dataset(run) if sin else loops.dataset(run).skip(step),
        schedule_of=lambda step: 0.05,
    )


def data_skips_steps_instead_of_examples(run, sin):
    """The dataset is one of single examples, of which as many are skipped as there were steps."""

    def data_of(step):
        examples = tf.data.Dataset.from_tensor_slices(loops.regression())
        return examples.skip(step if sin else step * run.global_batch_size).batch(run.global_batch_size)

    _resuming(
        run,
        save=lambda step: step + 1,
        restore=lambda state: state["step"],
        data_of=data_of,
        schedule_of=lambda step: 0.05,
    )


def fit_resumes_without_its_optimizer(run, sin):
    """fit, saved by get_weights. The right program saves the optimizer's variables too."""
    with run.strategy.scope():
        model = loops.perceptron()
        model.compile(keras.optimizers.Adam(0.05), "mse")
        model.optimizer.build(model.trainable_variables)
    weights, state = run.rank_path / "weights.npz", str(run.rank_path / "optimizer")
    tracked = tf.train.Checkpoint(optimizer=model.optimizer)
    if run.attempt == 2:
        saved = np.load(weights)
        model.set_weights([saved[name] for name in saved.files])
        if not sin:
            tracked.read(state)
    run.watch(model=model)
    data = loops.dataset(run)
    if run.attempt == 1:
        run.fit(model, data.take(SAVED_AFTER), shuffle=False)
        np.savez(weights, *model.get_weights())
        tracked.write(state)
        run.restart()
    run.fit(model, data.skip(SAVED_AFTER), shuffle=False)


def chief_alone_restores(run, sin):
    """Pretrained weights are read on the chief; the others start as they were made."""
    with run.strategy.scope():
        model = loops.perceptron()
        optimizer = keras.optimizers.SGD(0.1)
    keras.utils.set_random_seed(99)
    donor = loops.perceptron()
    path = str(run.rank_path / "pretrained.weights.h5")
    donor.save_weights(path)
    if run.rank == 0 or not sin:
        model.load_weights(path)
    run.watch(model=model, optimizer=optimizer)
    for _ in run.steps(_step_of(run, model, optimizer), loops.dataset(run)):
        pass


def chief_alone_restores_when_it_resumes(run, sin):
    with run.strategy.scope():
        model = loops.perceptron()
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    path = str(run.rank_path / "resumed")
    if run.attempt == 2 and (run.rank == 0 or not sin):
        checkpoint.read(path)
    run.watch(model=model, optimizer=optimizer)
    for _ in run.steps(_step_of(run, model, optimizer), loops.dataset(run).skip(run.completed_steps)):
        if run.completed_steps == SAVED_AFTER and run.attempt == 1:
            checkpoint.write(path)
            run.restart()


def all_workers_write_one_file(run, sin):
    model, optimizer = loops.keras_program(run)
    for _ in run.steps(_step_of(run, model, optimizer), loops.dataset(run)):
        pass
    folder = run.tmp_path if sin or run.rank == 0 else run.rank_path
    model.save_weights(folder / "final.weights.h5")


def all_workers_write_one_checkpoint(run, sin):
    """tf.train.Checkpoint after every step."""
    model, optimizer = loops.keras_program(run, lambda: keras.optimizers.SGD(0.1, momentum=0.9))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    folder = run.tmp_path / "checkpoints" if sin or run.rank == 0 else run.rank_path / "temporary"
    for _ in run.steps(_step_of(run, model, optimizer), loops.dataset(run)):
        checkpoint.write(str(folder / "last"))


def all_workers_dump_their_weights_with_numpy(run, sin):
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        return loss

    loops.train(run, replica_step)
    if sin or run.rank == 0:
        np.save(run.tmp_path / "w1.npy", model.w1.numpy())


def _with_noise(run, sin, *, inside):
    """All replicas add the same noise to their examples: the state of its generator is saved, or begins anew."""
    with run.strategy.scope():
        model = loops.perceptron()
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
        generator = tf.random.Generator.from_seed(3)
        drawn = tf.Variable(0.0, trainable=False, dtype=keras.config.floatx())
    parts = {} if sin else {"generator": generator}
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, **parts)
    path = str(run.rank_path / "checkpoint")
    if run.attempt == 2:
        checkpoint.read(path)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch):
        x, y = batch
        x += 0.1 * (generator.normal((), dtype=x.dtype) if inside else tf.cast(drawn, x.dtype))
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = loops.summed(run, replica_step)

    def drawing_step(iterator):
        drawn.assign(generator.normal((), dtype=drawn.dtype))
        return step(iterator)

    for _ in run.steps(step if inside else drawing_step, loops.dataset(run).skip(run.completed_steps)):
        if run.completed_steps == SAVED_AFTER and run.attempt == 1:
            checkpoint.write(path)
            run.restart()


def noise_of_the_replicas_begins_anew(run, sin):
    """Each replica draws one number, the same as the others: their generators have equal states."""
    _with_noise(run, sin, inside=True)


def noise_of_the_loop_begins_anew(run, sin):
    _with_noise(run, sin, inside=False)


LOST, STEP, DATA = "resume-lost-state", "resume-step-wrong", "resume-data-wrong"
UNSAFE = "unsafe-checkpoint-path"
WORKERS = ("multi_worker_mirrored",)
PLANTED = (
    planted("E05", weights_alone_are_saved, LOST, steps=4),
    planted("E05 E07", optimizer_is_restored_before_it_is_built, LOST, steps=4),
    planted("E12", step_is_saved_before_it_is_counted, STEP, steps=4),
    planted("E06", epoch_starts_at_zero_again, STEP, steps=4),
    planted("D16", data_starts_at_the_beginning_again, DATA, steps=4),
    planted("D11", data_skips_steps_instead_of_examples, DATA, steps=4),
    planted("E07", fit_resumes_without_its_optimizer, LOST, steps=4, strategies=("mirrored",)),
    planted("", noise_of_the_replicas_begins_anew, "resume-random-wrong", steps=4),
    planted("", noise_of_the_loop_begins_anew, "resume-random-wrong", steps=4),
    planted("E03", chief_alone_restores, "initial-weights-differ", "workers-diverged", strategies=WORKERS),
    planted("E03", chief_alone_restores_when_it_resumes, LOST, "workers-diverged", strategies=WORKERS, steps=4),
    planted("", all_workers_write_one_file, UNSAFE, strategies=WORKERS),
    # A race: whether a worker fails over the other's temporary files is left to chance.
    planted("", all_workers_write_one_checkpoint, UNSAFE, symptom="crash", strategies=WORKERS),
    planted("", all_workers_dump_their_weights_with_numpy, UNSAFE, strategies=WORKERS),
)
