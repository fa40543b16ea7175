"""Training programs whose loops end with their data, or with an iterator of their own."""

from __future__ import annotations

import tensorflow as tf
import training_programs as programs


def unknown_length(run, count=40):
    """The run's data, whose number of batches cannot be known before."""
    return programs.batched(count, run.global_batch_size).filter(lambda *_example: True)


def _train(run, step, dataset):
    for _loss in run.steps(step, dataset):
        pass


def scales_its_weights_after_the_loop(run):
    model, optimizer = programs.make(run)
    run.watch(model=model, optimizer=optimizer)
    _train(run, programs.step_of(run, model, optimizer), unknown_length(run))
    for variable in model.trainable_variables:
        variable.assign(variable * 2.0)


def decays_before_it_takes_a_batch(run):
    """The step that finds the data's end has changed the weights by then."""
    model, optimizer = programs.make(run)
    run.watch(model=model, optimizer=optimizer)
    step = programs.step_of(run, model, optimizer)

    def decaying(iterator):
        for variable in model.trainable_variables:
            variable.assign(variable * 0.5)
        return step(iterator)

    _train(run, decaying, unknown_length(run))
    for variable in model.trainable_variables:
        variable.assign(variable * 2.0)


def runs_out_of_its_own_data(run):
    """An iterator of the program's own ends in the third of five steps."""
    model, optimizer = programs.make(run)
    run.watch(model=model, optimizer=optimizer)
    step = programs.step_of(run, model, optimizer)
    other = iter(tf.data.Dataset.range(2))

    def both(iterator):
        next(other)
        return step(iterator)

    _train(run, both, unknown_length(run))


def runs_out_of_its_own_data_in_the_graph(run):
    model, optimizer = programs.make(run)
    run.watch(model=model, optimizer=optimizer)
    step = programs.step_of(run, model, optimizer)
    other = iter(tf.data.Dataset.range(2))

    @tf.function
    def both(iterator):
        loss = step(iterator)
        with tf.control_dependencies([loss]):
            return loss + 0.0 * tf.cast(next(other), loss.dtype)

    _train(run, both, unknown_length(run))


def ends_both_together(run):
    model, optimizer = programs.make(run)
    run.watch(model=model, optimizer=optimizer)
    step = programs.step_of(run, model, optimizer)
    other = iter(tf.data.Dataset.range(5))

    def both(iterator):
        next(other)
        return step(iterator)

    _train(run, both, unknown_length(run))


def takes_two_batches_in_a_step(run):
    """Take two batches in each step, so that the third step gets only one of five."""
    model, optimizer = programs.make(run)
    run.watch(model=model, optimizer=optimizer)
    step = programs.step_of(run, model, optimizer)

    def twice(iterator):
        step(iterator)
        return step(iterator)

    _train(run, twice, unknown_length(run))


def schedules_a_step_that_runs_out_of_its_own_data(run):
    with run.strategy.scope():
        weight = tf.Variable(0.0)
    run.watch(variables=[weight])

    @tf.function
    def step(iterator):
        weight.assign_add(tf.reduce_sum(next(iterator)[0]))
        return tf.cast(next(iter(tf.data.Dataset.range(0))), tf.float32)

    _train(run, step, programs.batched(40, run.global_batch_size))
