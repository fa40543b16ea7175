"""Training functions that accumulate, hold back or never apply gradients, each named by its sin, and right twins."""

from __future__ import annotations

import keras
import tensorflow as tf
from gradient_programs import _data, _dense, _train


class _Accumulator:
    """Adds up gradients of micro-batches, per replica, as the documentation of TensorFlow advises."""

    def __init__(self, variables, every, counter=None):
        self.sums = [
            tf.Variable(
                tf.zeros(variable.shape, variable.dtype),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.NONE,
            )
            for variable in variables
        ]
        self.every = every
        self.counter = [0] if counter is None else counter

    def due(self):
        self.counter[0] += 1
        return self.counter[0] % self.every == 0


def _accumulate(run, *, every=2, optimizer=None, reset=True, zeros=False, add=None):
    """``every`` micro-batches, then an update, decided in Python; or zeros handed over in between."""
    with run.strategy.scope():
        model = _dense()
        optimizer = keras.optimizers.SGD(0.1) if optimizer is None else optimizer()
        optimizer.build(model.trainable_variables)
        accumulator = _Accumulator(model.trainable_variables, every)
    run.watch(model=model, optimizer=optimizer)

    def gradients_of(batch):
        with tf.GradientTape() as tape:
            output = model(batch[0], training=True)
            errors = tf.reduce_sum(tf.square(output - tf.cast(batch[1], output.dtype)), axis=-1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
        return loss, tape.gradient(loss, model.trainable_variables)

    def step(batch, apply):
        loss, gradients = gradients_of(batch)
        for total, gradient in zip(accumulator.sums, gradients, strict=True):
            total.assign_add(gradient if add is None else add(gradient))
        if apply or zeros:
            share = (1.0 if apply else 0.0) / every
            pairs = [
                (share * total.read_value(), v)
                for total, v in zip(accumulator.sums, model.trainable_variables, strict=True)
            ]
            optimizer.apply_gradients(pairs)
        if apply and reset:
            for total in accumulator.sums:
                total.assign(tf.zeros_like(total))
        return loss

    def graph(apply):
        @tf.function
        def train_step(batch):
            return run.strategy.reduce("SUM", run.strategy.run(step, args=(batch, apply)), axis=None)

        return train_step

    steps = {apply: graph(apply) for apply in (False, True)}
    for batch in run.batches(_data(run)):
        run.record(loss=steps[accumulator.due()](batch))


def right_accumulation(run):
    _accumulate(run)


def right_accumulation_after_the_record(run):
    """Each update comes after the record of its step, so it counts for the next step."""
    _update_after_the_record(run, every=2)


def accumulators_lose_a_batch_after_the_record(run):
    """The first micro-batch after each update is assigned instead of added, and the second one replaces it."""
    _update_after_the_record(run, every=3, add=lambda total, gradient: total.assign(gradient))


def _update_after_the_record(run, every, add=lambda total, gradient: total.assign_add(gradient)):
    with run.strategy.scope():
        model = _dense()
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
        sums = _Accumulator(model.trainable_variables, every).sums
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def accumulate(batch):
        def replica_step(batch):
            with tf.GradientTape() as tape:
                output = model(batch[0], training=True)
                errors = tf.reduce_sum(tf.square(output - tf.cast(batch[1], output.dtype)), axis=-1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
            for total, gradient in zip(sums, tape.gradient(loss, model.trainable_variables), strict=True):
                add(total, gradient)
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    @tf.function
    def update():
        def replica_step():
            pairs = zip(sums, model.trainable_variables, strict=True)
            optimizer.apply_gradients([(total.read_value() / every, variable) for total, variable in pairs])
            for total in sums:
                total.assign(tf.zeros_like(total))

        run.strategy.run(replica_step)

    for number, batch in enumerate(run.batches(_data(run)), 1):
        run.record(loss=accumulate(batch))
        if number % every == 0:
            update()


def right_accumulation_with_adam(run):
    _accumulate(run, optimizer=lambda: keras.optimizers.Adam(0.01))


def right_accumulation_by_zeros_and_plain_sgd(run):
    _accumulate(run, zeros=True)


def zeros_move_momentum(run):
    _accumulate(run, zeros=True, optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9))


def zeros_count_for_adam(run):
    _accumulate(run, zeros=True, optimizer=lambda: keras.optimizers.Adam(0.01))


def zeros_let_weights_decay(run):
    _accumulate(run, zeros=True, optimizer=lambda: keras.optimizers.SGD(0.1, weight_decay=0.1))


def accumulators_are_never_reset(run):
    _accumulate(run, reset=False)


def accumulators_are_never_reset_in_any_step(run):
    _accumulate(run, reset=False, every=1)


def accumulators_sum_over_replicas(run):
    def add(gradient):
        return tf.distribute.get_replica_context().all_reduce("sum", gradient)

    _accumulate(run, add=add)


def optimizers_share_a_counter(run):
    with run.strategy.scope():
        model = _dense()
        head, body = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)
        parts = [model.trainable_variables[:2], model.trainable_variables[2:]]
        body.build(parts[0])
        head.build(parts[1])
        counter = [0]
        accumulators = [_Accumulator(part, 2, counter) for part in parts]
    run.watch(model=model, optimizer=[body, head])

    def step(batch, due):
        with tf.GradientTape() as tape:
            output = model(batch[0], training=True)
            errors = tf.reduce_sum(tf.square(output - tf.cast(batch[1], output.dtype)), axis=-1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
        gradients = iter(tape.gradient(loss, model.trainable_variables))
        for apply, accumulator, optimizer, part in zip(due, accumulators, (body, head), parts, strict=True):
            for total in accumulator.sums:
                total.assign_add(next(gradients))
            if apply:
                optimizer.apply_gradients(
                    [(t.read_value() / 2.0, v) for t, v in zip(accumulator.sums, part, strict=True)]
                )
                for total in accumulator.sums:
                    total.assign(tf.zeros_like(total))
        return loss

    graphs = {}
    for batch in run.batches(_data(run)):
        due = tuple(accumulator.due() for accumulator in accumulators)
        if due not in graphs:
            graphs[due] = tf.function(
                lambda batch, due=due: run.strategy.reduce("SUM", run.strategy.run(step, args=(batch, due)), axis=None)
            )
        run.record(loss=graphs[due](batch))


def a_weight_is_left_out(run):
    def update(run, optimizer, gradients, variables):
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True))[1:])

    _train(run, update=update)


def optimizer_holds_a_stale_copy(run):
    with run.strategy.scope():
        model, old = _dense(), _dense()
        optimizer = keras.optimizers.SGD(0.1)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            with tf.GradientTape() as tape:
                output = model(batch[0])
                errors = tf.reduce_sum(tf.square(output - tf.cast(batch[1], output.dtype)), axis=-1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, old.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, _data(run)):
        pass


class _InPython(keras.optimizers.schedules.LearningRateSchedule):
    """Reads a Python number: that of the time when the step was traced."""

    epoch = 0

    def __call__(self, step):
        return 0.1 / (1 + self.epoch)


def _with_schedule(run, optimizer):
    with run.strategy.scope():
        model = _dense()
        schedule = _InPython()
        optimizer = optimizer(schedule)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            with tf.GradientTape() as tape:
                output = model(batch[0])
                errors = tf.reduce_sum(tf.square(output - tf.cast(batch[1], output.dtype)), axis=-1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, _data(run)):
        schedule.epoch += 1


def schedule_of_a_python_number(run):
    _with_schedule(run, keras.optimizers.SGD)


def schedule_of_a_python_number_with_adam(run):
    _with_schedule(run, keras.optimizers.Adam)


def right_schedule(run):
    _train(run, optimizer=lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)))


def right_schedule_with_adam(run):
    _train(run, optimizer=lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)))
