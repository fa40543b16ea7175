"""Updates of variables on parameter servers: lost, repeated, late; and data that every worker reads."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def statistics_are_read_and_written_back(run, sin):
    """Two workers read the same total, and the later assignment takes the earlier one back."""
    with run.strategy.scope():
        seen = tf.Variable(0.0, trainable=False, dtype=tf.float32, name="examples_seen")
        total = tf.Variable(tf.zeros((loops.FEATURES,)), trainable=False, name="sum_of_inputs")
    run.watch(variables=[seen, total])

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x = tf.cast(batch[0], tf.float32)
            before, summed = seen.read_value(), total.read_value()
            with tf.control_dependencies([before, summed]):
                # The features take their time.
                work = tf.random.stateless_uniform((300, 300), (1, 2))
                for _ in range(3):
                    work = tf.tanh(work @ work)
                nothing = tf.reduce_sum(work) * 0.0
            here = tf.cast(tf.shape(x)[0], tf.float32) + nothing
            if sin:
                seen.assign(before + here)
                total.assign(summed + tf.reduce_sum(x, 0) + nothing)
            else:
                seen.assign_add(here)
                total.assign_add(tf.reduce_sum(x, 0) + nothing)
            return tf.reduce_mean(x)

        return run.strategy.run(replica_step, args=(next(iterator),))

    def data(_context):
        # Alike for every step, so that only how many updates there were can matter.
        return tf.data.Dataset.from_tensors((np.ones((run.global_batch_size, loops.FEATURES), "float32"),)).repeat(80)

    for _ in run.steps(train_step, data, concurrent=True):
        pass


def weights_are_read_and_written_back(run, sin):
    """weight = weight - rate * gradient, with a gradient that does not depend on the weight."""
    with run.strategy.scope():
        weight = tf.Variable(tf.zeros((loops.FEATURES, 1)), name="weight")
    run.watch(variables=[weight])

    def replica_step(x):
        before = weight.read_value()
        with tf.control_dependencies([before]):
            work = tf.random.stateless_uniform((300, 300), (1, 2))
            for _ in range(3):
                work = tf.tanh(work @ work)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(x, weight)) + tf.reduce_sum(work) * 0.0
        gradient = tape.gradient(loss, weight) + tf.reduce_sum(work) * 0.0
        if sin:
            weight.assign(before - 0.01 * gradient)
        else:
            weight.assign_sub(0.01 * gradient)
        return loss

    @tf.function
    def train_step(iterator):
        return run.strategy.run(replica_step, args=(tf.cast(next(iterator)[0], tf.float32),))

    def data(_context):
        return tf.data.Dataset.from_tensors((np.ones((run.global_batch_size, loops.FEATURES), "float32"),)).repeat(80)

    for _ in run.steps(train_step, data, concurrent=True):
        pass


def every_worker_iterates_over_all_data(run, sin):
    """Each worker has a pipeline of its own, without shards. For data that is used once, steps take from one pipeline.

    TensorFlow documents that all workers read the same data, so this is tolerated, and the report names it.
    """
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, batch["x"], batch["y"]))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def data(_context):
        # Many steps, so that a worker that is slow to begin gets some of them, too.
        return loops.numbered_dataset(run, rows=40 * run.global_batch_size).batch(run.global_batch_size)

    for _ in run.steps(loops.summed(run, replica_step), data, concurrent=sin):
        pass


def _is_parameter_server(run):
    return isinstance(run.strategy, tf.distribute.ParameterServerStrategy)


def _scheduled_by_hand(run, model, optimizer, again):
    """Batches by number, so that a closure can run on any worker, and more than once."""
    x, y = loops.regression()
    floats = keras.config.floatx()
    x, y = tf.constant(x, floats), tf.constant(y, floats)
    size = run.global_batch_size

    @tf.function
    def step(number):
        def replica_step():
            first = number * size
            with tf.GradientTape() as tape:
                errors = loops.squared_errors(model, x[first : first + size], y[first : first + size])
                loss = loops.average(run, errors) * run.num_replicas
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.run(replica_step)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(run.strategy) if _is_parameter_server(run) else None
    for number in range(run.steps_limit):
        if coordinator is None:
            run.record(loss=step(tf.constant(number)))
            continue
        result = coordinator.schedule(step, args=(tf.constant(number),))
        coordinator.join()
        if number in again:
            coordinator.schedule(step, args=(tf.constant(number),))
            coordinator.join()
        run.record(loss=result.fetch())


def closure_is_scheduled_again(run, sin):
    model, optimizer = loops.keras_program(run)
    _scheduled_by_hand(run, model, optimizer, again=(1,) if sin else ())


def block_of_steps_is_rounded_up(run, sin):
    """Steps are scheduled in blocks of two; the last block has one too many."""
    model, optimizer = loops.keras_program(run, lambda: keras.optimizers.SGD(0.05, momentum=0.9))
    _scheduled_by_hand(run, model, optimizer, again=(run.steps_limit - 1,) if sin else ())


def gradients_are_taken_on_an_old_copy(run, sin):
    """Weights are cached beside the model, and refreshed only every third step if reading them is remote."""
    model = loops.linear_program(run)
    variables = list(model.trainable_variables)
    with run.strategy.scope():
        cached = [tf.Variable(v.read_value(), trainable=False, name=f"cached_{i}") for i, v in enumerate(variables)]
    refresh = 3 if sin and run.num_replicas > 1 else 1
    _stale(run, model, variables, cached, refresh)


def _stale(run, model, variables, cached, refresh):
    by_name = {id(variable): copy for variable, copy in zip(variables, cached, strict=True)}

    def replica_step(batch, is_due):
        x, y = batch
        if is_due:
            for copy, variable in zip(cached, variables, strict=True):
                copy.assign(variable.read_value())
        copies = {id(variable): by_name[id(variable)].read_value() for variable in variables}
        with tf.GradientTape() as tape:
            tape.watch(list(copies.values()))
            w1, b1, w2, b2 = (copies[id(v)] for v in (model.w1, model.b1, model.w2, model.b2))
            predictions = tf.matmul(tf.tanh(tf.matmul(x, w1) + b1), w2) + b2
            loss = tf.reduce_sum(tf.square(predictions - y)) / run.global_batch_size
        gradients = tape.gradient(loss, list(copies.values()))
        loops.descend(variables, loops.all_reduce(gradients))
        return loss

    @tf.function
    def train_step(batch, is_due):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch, is_due)), axis=None)

    for number, batch in enumerate(run.batches(loops.dataset(run))):
        run.record(loss=train_step(batch, number % refresh == 0))


def gradients_are_applied_one_step_late(run, sin):
    """The reduction overlaps with the next step: what is applied are the gradients of the one before."""
    model, optimizer = loops.keras_program(run)
    pending = []

    def gradients_of(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        return loss, tape.gradient(loss, model.trainable_variables)

    @tf.function
    def compute(batch):
        return run.strategy.run(gradients_of, args=(batch,))

    @tf.function
    def apply(gradients):
        run.strategy.run(lambda given: optimizer.apply(given, model.trainable_variables), args=(gradients,))

    late = 1 if sin and run.num_replicas > 1 else 0
    for batch in run.batches(loops.dataset(run)):
        losses, gradients = compute(batch)
        pending.append(gradients)
        if len(pending) > late:
            apply(pending.pop(0))
        run.record(loss=run.strategy.reduce("SUM", losses, axis=None))


PS = ("parameter_server",)
SCHEDULED = 40


def own_schedule_overwrites_updates(run, sin):
    """The program schedules its own steps, gives every worker all data again and again, and records once."""
    with run.strategy.scope():
        weight = tf.Variable(tf.zeros((loops.FEATURES, 1)), name="weight")
    run.watch(variables=[weight])

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x, y = (tf.cast(part, weight.dtype) for part in batch)
            before = weight.read_value()
            with tf.control_dependencies([before]):
                work = tf.random.stateless_uniform((300, 300), (1, 2))
                for _ in range(3):
                    work = tf.tanh(work @ work)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ weight - y))
            slow = tf.cast(tf.reduce_sum(work), weight.dtype) * 0.0
            change = -0.01 * tape.gradient(loss, weight) + slow
            if sin:
                weight.assign(before + change)
            else:
                weight.assign_add(change)

        run.strategy.run(replica_step, args=(next(iterator),))

    schedule(run, train_step)
    run.record()


def schedule(run, train_step):
    """Run steps on all workers at the same time; on one device, one after the other."""
    if isinstance(run.strategy, tf.distribute.experimental.ParameterServerStrategy):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(run.strategy)
        iterator = iter(coordinator.create_per_worker_dataset(lambda: loops.dataset(run).repeat()))
        for _ in range(SCHEDULED):
            coordinator.schedule(train_step, args=(iterator,))
        coordinator.join()
    else:
        iterator = iter(loops.dataset(run).repeat())
        for _ in range(SCHEDULED):
            train_step(iterator)


def gradients_are_scaled_by_the_closures_that_run(run, sin):
    """A closure multiplies its gradient by the number of closures that run. It is right if it runs by itself."""
    with run.strategy.scope():
        model, optimizer = loops.perceptron(), keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        running = tf.Variable(0.0, trainable=False, name="running")
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x, y = (tf.cast(part, model.compute_dtype) for part in batch)
            with tf.control_dependencies([running.assign_add(1.0)]):
                work = tf.random.stateless_uniform((300, 300), (1, 2))
                for _ in range(3):
                    work = tf.tanh(work @ work)
            with tf.control_dependencies([work]):
                number = tf.cast(running.read_value(), model.compute_dtype)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            gradients = [gradient * number if sin else gradient for gradient in gradients]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            running.assign_sub(1.0)

        run.strategy.run(replica_step, args=(next(iterator),))

    schedule(run, train_step)
    run.record()


PLANTED = (
    planted("F02", statistics_are_read_and_written_back, "lost-update", strategies=PS, steps=80),
    planted("F02", weights_are_read_and_written_back, "lost-update", strategies=PS, steps=80),
    planted("F04", every_worker_iterates_over_all_data, "examples-duplicated", strategies=PS, steps=40, strict=True),
    planted("", own_schedule_overwrites_updates, "lost-update", strategies=PS, steps=None),
    planted("", gradients_are_scaled_by_the_closures_that_run, "closure-depends-on-others", strategies=PS, steps=None),
    planted("", closure_is_scheduled_again, "duplicate-update", "iteration-count-wrong", strategies=PS),
    planted("C25", block_of_steps_is_rounded_up, "duplicate-update", "iteration-count-wrong", strategies=PS),
    planted("F08", gradients_are_taken_on_an_old_copy, "staleness-exceeded", steps=4),
    # With one replica per worker TensorFlow itself refuses to reduce what a function was given: it has no device.
    planted("F08", gradients_are_applied_one_step_late, "staleness-exceeded", strategies=("mirrored",), steps=4),
)
