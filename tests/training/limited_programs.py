"""Training programs with several loops, which the limit of steps may end before the last begins."""

from __future__ import annotations

import tensorflow as tf
import training_programs as programs


def _loop(run, step, count=24):
    for _ in run.steps(step, programs.batched(count, run.global_batch_size)):
        pass


def _begun(run):
    model, optimizer = programs.make(run)
    run.watch(model=model, optimizer=optimizer)
    return programs.step_of(run, model, optimizer)


def two_phases(run):
    """Two calls of one helper, as of a training in phases."""
    step = _begun(run)
    _loop(run, step)
    _loop(run, step)


def epochs(run):
    """One call, again and again, with a step function of its own in each epoch."""
    model, optimizer = programs.make(run)
    run.watch(model=model, optimizer=optimizer)
    for _ in range(3):
        _loop(run, programs.step_of(run, model, optimizer))


def phases_in_a_loop(run):
    """One call that is given other code the second time."""
    step = _begun(run)

    @tf.function
    def other(iterator):
        return step(iterator)

    for trained in (step, other):
        _loop(run, trained)


def no_data_left(run):
    """The second loop has no data, and the third asks for no step."""
    step = _begun(run)
    _loop(run, step)
    _loop(run, step, count=0)
    for _ in run.steps(step, programs.batched(24, run.global_batch_size), steps=0):
        pass


def batches_in_epochs_then_others(run):
    step = _begun(run)
    for _ in range(2):
        for batch in run.batches(programs.batched(24, run.global_batch_size)):
            run.record(loss=step(iter([batch])))
    for _ in run.batches(programs.batched(24, run.global_batch_size)):
        raise AssertionError("the limit was reached")


def fits_two_models(run):
    """Transfer learning: a model is trained, then another one. Evaluating and predicting need no step."""
    x, y = programs.examples(24)
    for _ in range(2):
        model, _optimizer = programs.make(run)
        model.compile(optimizer="sgd", loss="mse")
        run.watch(model=model)
        run.fit(model, x, y, batch_size=run.global_batch_size)
    run.fit(model, x, y, batch_size=run.global_batch_size)
    run.evaluate(model, x, y)
    run.predict(model, x)


def six_steps(run):
    step = _begun(run)
    for _ in run.steps(step, programs.batched(100, run.global_batch_size), steps=6):
        pass


def fits_four_epochs(run):
    x, y = programs.examples(24)
    model, _optimizer = programs.make(run)
    model.compile(optimizer="sgd", loss="mse")
    run.watch(model=model)
    run.fit(model, x, y, batch_size=run.global_batch_size, epochs=4)
