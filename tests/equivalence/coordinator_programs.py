"""Training functions that schedule their own steps on a ClusterCoordinator, and what these steps compute."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

FEATURES = 4
STEPS = 12


def given_data(run):
    """Return batches without an end."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(48, FEATURES)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1] * 2))
    return dataset.repeat().batch(run.global_batch_size, drop_remainder=True)


def is_coordinated(run):
    return isinstance(run.strategy, tf.distribute.experimental.ParameterServerStrategy)


def schedule(run, step, after=None, own_data=False, more=0, join=True, data=given_data):
    """Run the steps on whichever worker is free; on one device, one after the other."""
    if not is_coordinated(run):
        iterator = iter(data(run))
        for _ in range(STEPS):
            loss = step(iterator)
            if after is not None:
                after(loss)
        return
    coordinator = tf.distribute.coordinator.ClusterCoordinator(run.strategy)
    of_worker = (lambda: data(run).shuffle(4, seed=1)) if own_data else (lambda: data(run))
    iterator = iter(coordinator.create_per_worker_dataset(of_worker))
    for _ in range(STEPS + more):
        coordinator.schedule(step, args=(iterator,))
    if join:
        coordinator.join()


def linear(run, factor=1.0, optimizer=None):
    """Return a linear model, its optimizer and a step that trains it."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05) if optimizer is None else optimizer()
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(iterator):
        def replica_step(batch):
            x, y = batch
            x, y = tf.cast(x, model.compute_dtype), tf.cast(y, model.compute_dtype)
            with tf.GradientTape() as tape:
                loss = factor * tf.reduce_mean(tf.square(model(x) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.run(replica_step, args=(next(iterator),))

    return model, optimizer, step


def records_once(run):
    """The data is whole on every worker, and repeated: nothing is said of which batches are consumed."""
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    schedule(run, step)
    run.record()


def schedules_more(run):
    """Each worker takes one step more than its share of those of one device."""
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    schedule(run, step, more=2)
    run.record()


def ascends(run):
    """All updates arrive, and each has the wrong sign."""
    model, optimizer, step = linear(run, factor=-1.0 if is_coordinated(run) else 1.0)
    run.watch(model=model, optimizer=optimizer)
    schedule(run, step)
    run.record()


def takes_steps_three_times_as_long(run):
    model, optimizer, step = linear(run, factor=3.0 if is_coordinated(run) else 1.0)
    run.watch(model=model, optimizer=optimizer)
    schedule(run, step, after=lambda loss: run.record(loss=loss))
    if is_coordinated(run):
        run.record()


def _shuffled(run):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(48, FEATURES)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1] * 2)).shuffle(48).repeat().batch(run.global_batch_size)


def _trains_on_shuffled_data(run, data=_shuffled, optimizer=None, gradient=lambda value, _number: value, hidden=False):
    """Train as the tutorial does. Each closure has a number, by which a program may do something else."""
    model, optimizer, _step = linear(run, optimizer=optimizer)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def step(iterator, number):
        given = next(iterator)

        def replica_step(batch=None):
            x, y = (tf.cast(part, model.compute_dtype) for part in (given if batch is None else batch))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            gradients = [gradient(value, tf.cast(number, value.dtype)) for value in gradients]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        run.strategy.run(replica_step, args=() if hidden else (given,))

    if is_coordinated(run):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(run.strategy)
        iterator = iter(coordinator.create_per_worker_dataset(lambda: data(run)))
        for number in range(STEPS):
            coordinator.schedule(step, args=(iterator, tf.constant(number)))
        coordinator.join()
    else:
        iterator = iter(data(run))
        for number in range(STEPS):
            step(iterator, tf.constant(number))
    run.record()


def trains_adam_on_shuffled_data(run):
    _trains_on_shuffled_data(run, optimizer=lambda: keras.optimizers.Adam(0.01))


def weighs_each_closure_by_its_number(run):
    _trains_on_shuffled_data(run, gradient=lambda value, number: value / (1 + number))


def weighs_each_closure_by_a_counter(run):
    """The order in which closures count is another one each time, and every order is right."""
    model, optimizer, _step = linear(run)
    with run.strategy.scope():
        begun = tf.Variable(0.0, trainable=False, name="begun")
    run.watch(model=model, optimizer=optimizer, variables=[begun])

    @tf.function
    def step(iterator):
        def replica_step(batch):
            begun.assign_add(1.0)
            x, y = (tf.cast(part, model.compute_dtype) for part in batch)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y)) / tf.cast(begun, model.compute_dtype)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        run.strategy.run(replica_step, args=(next(iterator),))

    schedule(run, step)
    run.record()


def ascends_on_shuffled_data(run):
    sign = -1.0 if is_coordinated(run) else 1.0
    _trains_on_shuffled_data(run, gradient=lambda value, _number: sign * value)


def takes_longer_steps_on_shuffled_data(run):
    """A factor of 1.2 is less than what another order of the examples may change."""
    factor = 1.2 if is_coordinated(run) else 1.0
    _trains_on_shuffled_data(run, gradient=lambda value, _number: factor * value)


def takes_longer_steps_in_every_other_closure(run):
    if is_coordinated(run):
        _trains_on_shuffled_data(run, gradient=lambda value, number: value * (1 + number % 2))
    else:
        _trains_on_shuffled_data(run)


def _keeps(run, change, watched=True, waits=True, name="kept", reduce=tf.reduce_mean):
    """Keep a value of the batches in a variable beside the weights."""
    model, optimizer, _step = linear(run)
    with run.strategy.scope():
        kept = tf.Variable(tf.zeros((FEATURES,)), trainable=False, name=name)
        begun = tf.Variable(0, dtype=tf.int64, trainable=False, name="begun")
    run.watch(model=model, optimizer=optimizer, variables=[kept] if watched else [])

    @tf.function
    def step(iterator):
        def replica_step(batch):
            x, y = (tf.cast(part, model.compute_dtype) for part in batch)
            before = kept.read_value()
            with tf.control_dependencies([before]):
                turns = _wait_for_another(begun) if waits and _may_overlap(run) else 0
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            slow = tf.cast(turns, kept.dtype) * 0.0
            change(kept, before, reduce(tf.cast(x, kept.dtype), axis=0) + slow)

        run.strategy.run(replica_step, args=(next(iterator),))

    schedule(run, step, data=_shuffled)
    run.record()


def adds_up_what_it_consumes(run):
    _keeps(run, lambda total, _before, more: total.assign_add(more), name="sum_of_features", reduce=tf.reduce_sum)


def writes_its_sum_back(run):
    """Two workers read the same sum, and the later assignment takes the earlier one back."""
    _keeps(run, lambda total, before, more: total.assign(before + more), name="sum_of_features", reduce=tf.reduce_sum)


def writes_a_moving_average_back(run):
    _keeps(run, lambda kept, before, mean: kept.assign(0.9 * before + 0.1 * mean))


def writes_an_unwatched_average_back(run):
    _keeps(run, lambda kept, before, mean: kept.assign(0.9 * before + 0.1 * mean), watched=False)


def writes_a_moving_average_back_in_turn(run):
    _keeps(run, lambda kept, _before, mean: kept.assign(0.9 * kept + 0.1 * mean), waits=False)


def keeps_the_largest(run):
    def change(kept, _before, mean):
        if tf.reduce_max(mean) > tf.reduce_max(kept):
            kept.assign(mean)

    _keeps(run, change, waits=False)


def keeps_the_latest(run):
    _keeps(run, lambda kept, _before, mean: kept.assign(mean), watched=False)


def keeps_the_latest_of_one_sign(run):
    def change(kept, _before, mean):
        if tf.reduce_max(mean) > 0:
            kept.assign(mean)

    _keeps(run, change, watched=False, waits=False)


def moves_an_average_by_differences(run):
    _keeps(run, lambda kept, before, mean: kept.assign_sub(0.1 * (before - mean)), watched=False)


def consumes_examples_of_its_own(run):
    """Under the coordinator, the features are not scaled as on one device."""
    scale = 0.1 if is_coordinated(run) else 1.0
    _trains_on_shuffled_data(run, lambda run: _shuffled(run).map(lambda x, y: (scale * x, y)))


def hides_its_batch(run):
    """The replica function takes its batch from a variable of the step, so that nobody sees it."""
    _trains_on_shuffled_data(run, hidden=True)


def consumes_other_examples(run):
    """Every worker trains on data of its own: one device says nothing of the weights."""
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    schedule(run, step, own_data=True)
    run.record()


def consumes_half_of_the_data(run):
    """Under the coordinator, each worker reads only the first examples, without an order of its own."""
    half = lambda run: given_data(run).take(2).repeat() if is_coordinated(run) else given_data(run)  # noqa: E731
    _trains_on_shuffled_data(run, half)


def gives_one_batch_to_all_closures(run):
    """The batches are arguments of the closures, and under the coordinator each gets the first."""
    model, optimizer, _step = linear(run)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def step(x, y):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - tf.cast(y, model.compute_dtype)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        run.strategy.run(replica_step, args=(x, y))

    batches = list(given_data(run).take(4))
    if is_coordinated(run):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(run.strategy)
        for _batch in batches:
            coordinator.schedule(step, args=batches[0])
        coordinator.join()
    else:
        for batch in batches:
            step(*batch)
    run.record()


def records_each_step_of_one_device(run):
    model, optimizer, step = linear(run)
    run.watch(model=model, optimizer=optimizer)
    schedule(run, step, after=lambda loss: run.record(loss=loss))
    if is_coordinated(run):
        run.record()


def loses_updates(run):
    """Every update of the weights overwrites those that other workers made while it was computed."""
    _loses_updates(run, lambda _loss: None)
    run.record()


def loses_updates_recorded_on_one_device(run):
    _loses_updates(run, lambda loss: run.record(loss=loss))
    if is_coordinated(run):
        run.record()


def _may_overlap(run):
    """Return whether closures of two workers may run at the same time: not if the check runs them one by one."""
    return is_coordinated(run) and not run._settings.one_by_one


def _wait_for_another(begun):
    """Wait until two closures have begun.

    Without this, a worker that is slow to begin leaves all closures to the other, and no update is lost.
    """
    begun.assign_add(1)
    return tf.while_loop(
        lambda turn: (turn < 20_000) & (begun.read_value() < 2), lambda turn: (turn + 1,), [tf.constant(0)]
    )[0]


def _loses_updates(run, after):
    with run.strategy.scope():
        weight = tf.Variable(tf.zeros((FEATURES, 1)), name="weight")
        begun = tf.Variable(0, dtype=tf.int64, trainable=False, name="begun")
    run.watch(variables=[weight])

    @tf.function
    def step(iterator):
        x, y = next(iterator)
        x, y = tf.cast(x, weight.dtype), tf.cast(y, weight.dtype)
        before = weight.read_value()
        with tf.control_dependencies([before]):
            turns = _wait_for_another(begun) if _may_overlap(run) else 0
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weight - y))
        gradient = tape.gradient(loss, weight)
        weight.assign(before - 0.01 * gradient + tf.cast(turns, weight.dtype) * 0.0)
        return loss

    schedule(run, step, after)


def moves_by_a_rule_of_its_own(run):
    """Steps of which each depends on the one before, without a gradient: no sum gives their result."""
    with run.strategy.scope():
        weight = tf.Variable(tf.ones((FEATURES, 1)), name="weight")
    run.watch(variables=[weight])

    @tf.function
    def step(iterator):
        x, _y = next(iterator)
        weight.assign(weight * 0.5 + tf.cast(tf.reduce_mean(x), weight.dtype))
        return tf.reduce_sum(weight)

    schedule(run, step)
    run.record()
