"""Micro-batches that do not add up to one update."""

from __future__ import annotations

import keras
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted

MICRO_BATCHES = 2


def optimizer_accumulates_in_a_conditional(run, sin):
    """Keras' own accumulation calls merge_call in a tf.cond, which no strategy with replica threads can do."""
    steps = MICRO_BATCHES if sin else None
    model, optimizer = loops.keras_program(run, lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps))

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


class Accumulator:
    """Adds up the replica's gradients over steps."""

    def __init__(self, run, variables, **settings):
        settings = {
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.SUM,
            **settings,
        }
        with run.strategy.scope():
            self.sums = [tf.Variable(tf.zeros_like(v), trainable=False, **settings) for v in variables]

    def add(self, gradients):
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient)

    def take(self):
        return [total.read_value() for total in self.sums]

    def reset(self):
        for total in self.sums:
            total.assign(tf.zeros_like(total))


def _accumulating(run, accumulator_of, update, counter_settings=None):
    """Every step is a micro-batch; every second one applies what was accumulated."""
    model = loops.linear_program(run)
    variables = list(model.trainable_variables)
    accumulator = accumulator_of(variables)

    def replica_step(batch, is_last):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y) / MICRO_BATCHES
        accumulator.add(tape.gradient(loss, variables))
        if is_last:
            update(variables, accumulator)
        return loss

    @tf.function
    def micro_step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch, False)), axis=None)

    @tf.function
    def last_step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch, True)), axis=None)

    for number, batch in enumerate(run.batches(loops.dataset(run)), start=1):
        step = last_step if number % MICRO_BATCHES == 0 else micro_step
        run.record(loss=step(batch))


def accumulator_keeps_the_first_replica_alone(run, sin):
    """Mirrored, so that all replicas hold the same: ONLY_FIRST_REPLICA drops what the others add."""

    def accumulator_of(variables):
        if not sin:
            return Accumulator(run, variables)
        return Accumulator(
            run,
            variables,
            synchronization=tf.VariableSynchronization.ON_WRITE,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def update(variables, accumulator):
        total = accumulator.take()
        loops.descend(variables, total if sin else loops.all_reduce(total))
        accumulator.reset()

    _accumulating(run, accumulator_of, update)


def accumulator_is_reset_on_the_first_replica_alone(run, sin):
    def update(variables, accumulator):
        loops.descend(variables, loops.all_reduce(accumulator.take()))
        keep = tf.cast(tf.logical_and(sin, loops.replica_id() > 0), tf.float32)
        for total in accumulator.sums:
            total.assign(total.read_value() * keep)

    _accumulating(run, lambda variables: Accumulator(run, variables), update)


def accumulator_is_never_reset(run, sin):
    """The second update uses the first one's gradients again, also on one device."""

    def update(variables, accumulator):
        loops.descend(variables, loops.all_reduce(accumulator.take()))
        if not sin:
            accumulator.reset()

    _accumulating(run, lambda variables: Accumulator(run, variables), update)


def accumulated_gradients_are_not_reduced(run, sin):
    def update(variables, accumulator):
        total = accumulator.take()
        loops.descend(variables, total if sin else loops.all_reduce(total))
        accumulator.reset()

    _accumulating(run, lambda variables: Accumulator(run, variables), update)


def accumulation_counter_counts_replicas(run, sin):
    """Every replica adds one to a counter that sums over replicas, so updates come too early."""
    aggregation = tf.VariableAggregation.SUM if sin else tf.VariableAggregation.ONLY_FIRST_REPLICA
    model = loops.linear_program(run)
    variables = list(model.trainable_variables)
    accumulator = Accumulator(run, variables)
    with run.strategy.scope():
        counter = tf.Variable(0, trainable=False, aggregation=aggregation, dtype=tf.int64)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y) / MICRO_BATCHES
        accumulator.add(tape.gradient(loss, variables))
        counter.assign_add(tf.constant(1, tf.int64))
        due = tf.cast(tf.equal(counter.read_value() % MICRO_BATCHES, 0), tf.float32)
        loops.descend(variables, [due * total for total in loops.all_reduce(accumulator.take())])
        for total in accumulator.sums:
            total.assign(total.read_value() * (1 - due))
        return loss

    loops.train(run, replica_step)


def micro_batches_of_zero_gradients_move_momentum(run, sin):
    """Between updates the optimizer is given zeros: its momentum and decay move the weights all the same."""
    make = lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01)  # noqa: E731
    model, optimizer = loops.keras_program(run, make)
    accumulator = Accumulator(run, [variable.value for variable in model.trainable_variables])

    def replica_step(batch, is_last):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y)) / MICRO_BATCHES
        accumulator.add(tape.gradient(loss, model.trainable_variables))
        if is_last:
            optimizer.apply(accumulator.take(), model.trainable_variables)
            accumulator.reset()
        elif sin:
            optimizer.apply([tf.zeros_like(total) for total in accumulator.take()], model.trainable_variables)
        return loss

    steps = [
        tf.function(lambda batch, last=last: run.strategy.run(replica_step, args=(batch, last)))
        for last in (False, True)
    ]
    for number, batch in enumerate(run.batches(loops.dataset(run)), start=1):
        losses = steps[number % MICRO_BATCHES == 0](batch)
        run.record(loss=run.strategy.reduce("SUM", losses, axis=None))


def two_models_share_one_accumulation_counter(run, sin):
    """Generator and critic: a counter of the class, not of the instance, is stepped by both."""
    with run.strategy.scope():
        models = [loops.Linear(), loops.Linear()]
    run.watch(variables=[v for model in models for v in model.trainable_variables])
    accumulators = [Accumulator(run, model.trainable_variables) for model in models]
    shared, calls = [0], [[0], [0]]

    def is_due(which):
        counter = shared if sin else calls[which]
        counter[0] += 1
        return counter[0] % MICRO_BATCHES == 0

    def replica_step(batch, due):
        x, y = batch
        losses = 0.0
        for model, accumulator, apply in zip(models, accumulators, due, strict=True):
            with tf.GradientTape() as tape:
                loss = model.loss(run, x, y) / MICRO_BATCHES
            accumulator.add(tape.gradient(loss, model.trainable_variables))
            if apply:
                loops.descend(model.trainable_variables, loops.all_reduce(accumulator.take()))
                accumulator.reset()
            losses += loss
        return losses

    @tf.function
    def train_step(batch, due):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch, due)), axis=None)

    for batch in run.batches(loops.dataset(run)):
        run.record(loss=train_step(batch, (is_due(0), is_due(1))))


def clip_and_decay_run_in_every_micro_step(run, sin):
    """Operations of the update are done between updates too, as in Keras 3.4."""
    model = loops.linear_program(run)
    variables = list(model.trainable_variables)
    accumulator = Accumulator(run, variables)

    def replica_step(batch, is_last):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y) / MICRO_BATCHES
        gradients = tape.gradient(loss, variables)
        if sin:
            gradients = [tf.clip_by_norm(gradient, 0.1) for gradient in gradients]
        accumulator.add(gradients)
        if sin or is_last:
            for variable in variables:
                variable.assign(variable * 0.99)
        if is_last:
            total = loops.all_reduce(accumulator.take())
            if not sin:
                total = [tf.clip_by_norm(gradient, 0.1) for gradient in total]
            loops.descend(variables, total)
            accumulator.reset()
        return loss

    steps = [
        tf.function(lambda batch, last=last: run.strategy.run(replica_step, args=(batch, last)))
        for last in (False, True)
    ]
    for number, batch in enumerate(run.batches(loops.dataset(run)), start=1):
        losses = steps[number % MICRO_BATCHES == 0](batch)
        run.record(loss=run.strategy.reduce("SUM", losses, axis=None))


def micro_batches_are_counted_per_replica(run, sin):
    """A batch of the replica cut in halves; the sum of means is divided by replicas only."""
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        total = [tf.zeros_like(variable) for variable in model.trainable_variables]
        shown = 0.0
        # Two examples at a time: how many pieces that makes depends on the replicas.
        pieces = run.global_batch_size // run.num_replicas // 2
        for x_piece, y_piece in zip(tf.split(x, pieces), tf.split(y, pieces), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loops.squared_errors(model, x_piece, y_piece)) / run.num_replicas
                loss /= run.global_batch_size // 2 if sin else pieces
            gradients = tape.gradient(loss, model.trainable_variables)
            total = [one + other for one, other in zip(total, gradients, strict=True)]
            shown += loss
        optimizer.apply_gradients(zip(total, model.trainable_variables, strict=True))
        return shown

    loops.train(run, replica_step)


WRONG = "gradient-accumulation-wrong"
PLANTED = (
    planted("B07", optimizer_accumulates_in_a_conditional, "unsupported-by-framework", symptom="crash"),
    planted("", accumulator_keeps_the_first_replica_alone, WRONG, "gradient-not-aggregated", steps=4),
    planted("B32", accumulator_is_reset_on_the_first_replica_alone, WRONG, steps=4),
    planted("B32", accumulator_is_never_reset, WRONG, steps=4),
    planted("", accumulated_gradients_are_not_reduced, "gradient-not-aggregated", WRONG, steps=4),
    planted("", accumulation_counter_counts_replicas, WRONG, steps=4),
    planted("B09", micro_batches_of_zero_gradients_move_momentum, WRONG, steps=4),
    planted("B11", two_models_share_one_accumulation_counter, WRONG, "variable-did-not-move", steps=4),
    planted("B08", clip_and_decay_run_in_every_micro_step, WRONG, "gradient-clipped-before-aggregation", steps=4),
    planted("", micro_batches_are_counted_per_replica, "gradient-scaled-by-inverse-replica-count", WRONG),
)
