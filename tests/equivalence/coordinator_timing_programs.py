"""Training functions that record steps, or end, while closures that they have scheduled still run."""

from __future__ import annotations

import tensorflow as tf
from coordinator_programs import STEPS, given_data, is_coordinated, linear, schedule


def _slow(quick):
    @tf.function
    def step(iterator):
        work = tf.random.stateless_uniform((500, 500), (1, 2))
        for _ in range(4):
            work = tf.tanh(work @ work)
        with tf.control_dependencies([work]):
            return quick(iterator)

    return step


def never_joins(run):
    """Nothing waits for the closures: the weights are recorded while they still run."""
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    schedule(run, _slow(step), join=False)
    run.record()


def joins_after_recording(run):
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    schedule(run, _slow(step), join=False)
    run.record()
    if is_coordinated(run):
        tf.distribute.coordinator.ClusterCoordinator(run.strategy).join()


def never_joins_and_records_each_step(run):
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    schedule(run, _slow(step), after=lambda loss: run.record(loss=loss), join=False)
    if is_coordinated(run):
        run.record()


def changes_the_rate_half_way(run, join=False):
    """The learning rate changes while the first half of the closures still runs, if nothing waits for it."""
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    schedule(run, _slow(step), join=join)
    optimizer.learning_rate.assign(0.5 * optimizer.learning_rate)
    schedule(run, _slow(step))
    run.record()


def waits_before_the_rate_changes(run):
    changes_the_rate_half_way(run, join=True)


def records_before_the_last_closures_end(run):
    """The second half of the closures ends after the last recorded step, and the program waits for it."""
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    step = _slow(step)
    if not is_coordinated(run):
        schedule(run, step, after=lambda loss: run.record(loss=loss))
        return
    coordinator = tf.distribute.coordinator.ClusterCoordinator(run.strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: given_data(run)))
    for half in range(2):
        for _ in range(STEPS // 2):
            coordinator.schedule(step, args=(iterator,))
        if half == 0:
            coordinator.join()
        run.record()
    coordinator.join()


def omits_steps_after_the_last_record(run):
    """One device takes two more steps after its last record, and the coordinator does not."""
    records_every_fifth_step(run, steps=STEPS - 2 if is_coordinated(run) else STEPS)


def records_every_fifth_step(run, steps=STEPS):
    """The last two steps are not recorded: neither on one device nor by the coordinator."""
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    if is_coordinated(run):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(run.strategy)
        iterator = iter(coordinator.create_per_worker_dataset(lambda: given_data(run)))
        take, wait = lambda: coordinator.schedule(step, args=(iterator,)), coordinator.join
    else:
        iterator = iter(given_data(run))
        take, wait = lambda: step(iterator), lambda: None
    for number in range(1, steps + 1):
        take()
        if number % 5 == 0:
            wait()
            run.record()
    wait()


def records_each_closure(run):
    """The steps are recorded while closures run, and the program waits for all of them at its end."""
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    if not is_coordinated(run):
        schedule(run, step, after=lambda loss: run.record(loss=loss))
        return
    coordinator = tf.distribute.coordinator.ClusterCoordinator(run.strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: given_data(run)))
    for _ in range(STEPS):
        coordinator.schedule(step, args=(iterator,))
        run.record()
    coordinator.join()


def records_before_the_first_closure_ends(run):
    """No recorded step holds an update: the workers are slow, and the program waits for them at its end."""
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    if not is_coordinated(run):
        schedule(run, step, after=lambda loss: run.record(loss=loss))
        return
    for _ in range(STEPS):
        run.record()
    schedule(run, step)
