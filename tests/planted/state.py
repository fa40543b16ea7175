"""State beside the weights: moving statistics, averages, slots, frozen weights, and who writes them."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def moving_statistics_of_keras_are_the_replicas_own(run, sin):
    make = lambda: keras.Sequential(  # noqa: E731
        [
            keras.Input((loops.FEATURES,)),
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(synchronized=not sin),
            keras.layers.Dense(1),
        ]
    )
    model, optimizer = loops.keras_program(run, model=make)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


def running_mean_is_the_replicas_own(run, sin):
    """A buffer of a hand-written normalisation, which standardises by it and not by the batch."""
    settings = (
        {}
        if sin
        else {
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.MEAN,
        }
    )
    model = loops.linear_program(run)
    with run.strategy.scope():
        mean = tf.Variable(tf.zeros((loops.FEATURES,)), trainable=False, name="running_mean", **settings)
    run.watch(variables=[mean])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
        return loss

    loops.train(run, replica_step)


def running_maximum_is_that_of_the_first_replica(run, sin):
    """Maximum of the inputs' magnitudes, for a quantised export."""
    model = loops.linear_program(run)
    with run.strategy.scope():
        largest = tf.Variable(
            tf.zeros((loops.FEATURES,)),
            trainable=False,
            name="largest",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
    run.watch(variables=[largest])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        here = tf.abs(x)
        if not sin:
            here = tf.distribute.get_replica_context().all_gather(here, axis=0)
        largest.assign(tf.maximum(largest, tf.reduce_max(here, 0)))
        return loss

    loops.train(run, replica_step)


def examples_seen_are_counted_per_replica(run, sin):
    model = loops.linear_program(run)
    with run.strategy.scope():
        seen = tf.Variable(0, trainable=False, name="examples_seen", dtype=tf.int64)
    run.watch(variables=[seen])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        count = tf.shape(x)[0]
        seen.assign_add(tf.cast(count if sin else loops.all_reduce(count), tf.int64))
        return loss

    loops.train(run, replica_step, loops.dataset(run, rows=21))


def weight_is_assigned_a_value_of_the_replica(run, sin):
    """A temperature is adapted to the replica's own predictions, and weighs the loss."""
    model = loops.linear_program(run)
    with run.strategy.scope():
        temperature = tf.Variable(1.0, trainable=False, name="temperature")
    run.watch(variables=[temperature])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y) / temperature
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        step = tf.reduce_sum(tf.square(y)) / run.global_batch_size
        if not sin:
            step = loops.all_reduce(step)
        temperature.assign_add(0.1 * step)
        return loss

    loops.train(run, replica_step)


def replicas_add_their_number(run, sin):
    with run.strategy.scope():
        weight = tf.Variable(np.full((loops.FEATURES, 1), 0.1, "float32"), name="weight")
    run.watch(variables=[weight])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.matmul(x, weight) - y)) / run.global_batch_size
        weight.assign_sub(0.05 * loops.all_reduce(tape.gradient(loss, weight)))
        jitter = tf.cast(loops.replica_id(), tf.float32) if sin else 0.0
        weight.assign_add(0.01 * jitter * tf.ones_like(weight))
        return loss

    loops.train(run, replica_step)


def pretrained_weights_differ_between_workers(run, sin):
    """Assigned from NumPy, which every worker seeded by its rank; only making a variable broadcasts."""
    with run.strategy.scope():
        model = loops.perceptron()
        optimizer = keras.optimizers.SGD(0.1)
        generator = np.random.default_rng(run.rank if sin else 0)
        for variable in model.trainable_variables:
            variable.assign(generator.normal(size=variable.shape) * 0.3)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


def head_is_reset_differently_by_every_worker(run, sin):
    """After two steps the last layer starts anew."""
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    generator = np.random.default_rng(run.seed + (run.rank if sin else 0))
    step = loops.summed(run, replica_step)
    data = iter(run.strategy.experimental_distribute_dataset(loops.dataset(run)))
    for number in range(4):
        loss = step(data)
        if number == 1:
            kernel = model.layers[-1].kernel
            kernel.assign(generator.normal(size=kernel.shape))
        run.record(loss=loss)


class Momentum:
    """Written by hand, with a slot per weight."""

    def __init__(self, run, variables, **settings):
        with run.strategy.scope():
            self.slots = [
                tf.Variable(tf.zeros_like(v), trainable=False, name=f"momentum_{number}", **settings)
                for number, v in enumerate(variables)
            ]


def squared_gradients_are_averaged_over_replicas(run, sin):
    """RMSprop whose moments take the mean of the replicas' squares instead of the square of the sum."""
    model = loops.linear_program(run)
    variables = list(model.trainable_variables)
    moments = Momentum(run, variables, aggregation=tf.VariableAggregation.MEAN).slots
    run.watch(variables=moments)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        own = tape.gradient(loss, variables)
        total = loops.all_reduce(own)
        for variable, moment, mine, gradient in zip(variables, moments, own, total, strict=True):
            moment.assign(0.9 * moment + 0.1 * tf.square(mine if sin else gradient))
            variable.assign_sub(0.02 * gradient / (tf.sqrt(moment) + 0.1))
        return loss

    loops.train(run, replica_step)


def slot_is_written_by_every_replica(run, sin):
    """The slot holds the value that its replica computed, as Nadam's momentum cache once did."""
    model = loops.linear_program(run)
    variables = list(model.trainable_variables)
    moments = Momentum(run, variables).slots
    run.watch(variables=moments)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        own = tape.gradient(loss, variables)
        total = loops.all_reduce(own)
        for variable, moment, mine, gradient in zip(variables, moments, own, total, strict=True):
            moment.assign(0.9 * moment + 0.1 * tf.square(mine if sin else gradient))
            variable.assign_sub(0.02 * gradient / (tf.sqrt(moment) + 0.1))
        return loss

    loops.train(run, replica_step)


def momentum_of_the_optimizer_is_scaled(run, sin):
    """A callback that "corrects" the momentum for the number of replicas."""
    model, optimizer = loops.keras_program(run, lambda: keras.optimizers.SGD(0.05, momentum=0.9))

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = loops.summed(run, replica_step)
    data = iter(run.strategy.experimental_distribute_dataset(loops.dataset(run)))
    for _ in range(3):
        loss = step(data)
        if sin:
            with run.strategy.scope():
                for momentum in optimizer.momentums:
                    momentum.assign(momentum / run.num_replicas)
        run.record(loss=loss)


def average_of_weights_takes_the_replicas_own_update(run, sin):
    """An exponential moving average gets the update that the replica would have made by itself."""
    model = loops.linear_program(run)
    variables = list(model.trainable_variables)
    with run.strategy.scope():
        averages = [tf.Variable(v.read_value(), trainable=False, name=f"ema_{i}") for i, v in enumerate(variables)]
    run.watch(variables=averages)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        own = tape.gradient(loss, variables)
        total = loops.all_reduce(own)
        for variable, average, mine, gradient in zip(variables, averages, own, total, strict=True):
            ahead = variable - 0.1 * (mine * run.num_replicas if sin else gradient)
            average.assign(0.9 * average + 0.1 * ahead)
            variable.assign_sub(0.1 * gradient)
        return loss

    loops.train(run, replica_step)


def frozen_layer_is_updated(run, sin):
    """All weights are handed to the optimizer, those of the frozen backbone too."""
    with run.strategy.scope():
        model = loops.perceptron()
        variables = model.trainable_variables
        model.layers[0].trainable = False
        optimizer = keras.optimizers.SGD(0.1)
        if not sin:
            variables = model.trainable_variables
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    loops.train(run, replica_step)


def backbone_thaws_under_a_strategy(run, sin):
    """The flag is set before the model is cloned for distribution, and clones do not have it."""
    with run.strategy.scope():
        backbone = keras.Sequential([keras.Input((loops.FEATURES,)), keras.layers.Dense(4, activation="tanh")])
        head = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        frozen = run.num_replicas == 1 or not sin
    run.watch(model=[backbone, head], optimizer=optimizer)
    variables = head.trainable_variables + ([] if frozen else backbone.trainable_variables)
    backbone.trainable = False

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, tf.square(head(backbone(x)) - y)[:, 0])
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    loops.train(run, replica_step)


def variable_is_made_outside_the_scope(run, sin):
    """Every replica thread subtracts from the one bias."""
    model = loops.linear_program(run)
    if sin:
        bias = tf.Variable([0.5], name="bias")
    else:
        with run.strategy.scope():
            bias = tf.Variable([0.5], name="bias")
    run.watch(variables=[bias])
    variables = [*model.trainable_variables, bias]

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x) + bias - y)) / run.global_batch_size
        loops.descend(variables, loops.all_reduce(tape.gradient(loss, variables)))
        return loss

    loops.train(run, replica_step)


def counter_is_made_outside_the_scope(run, sin):
    """A step counter that decays the rate, stepped by each replica."""
    model = loops.linear_program(run)
    if sin:
        counter = tf.Variable(0.0, trainable=False, name="counter")
    else:
        with run.strategy.scope():
            counter = tf.Variable(0.0, trainable=False, name="counter")
    run.watch(variables=[counter])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        counter.assign_add(1.0)
        return loss

    loops.train(run, replica_step)


def counter_of_the_loop_is_stepped_by_every_replica(run, sin):
    """The counter is trainable, as TensorFlow makes it, and outside the scope: the loop itself may count with it."""
    model = loops.linear_program(run)
    counter = tf.Variable(0.0, name="counter")
    run.watch(variables=[counter])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        if sin:
            counter.assign_add(1.0)
        return loss

    for _loss in run.steps(loops.summed(run, replica_step), loops.dataset(run)):
        if not sin:
            counter.assign_add(1.0)


STATE, OPTIMIZER = "state-not-aggregated", "optimizer-state-mismatch"
ONE_PROCESS = ("mirrored", "mirrored[replicas=4]")
WORKERS = ("multi_worker_mirrored",)
PLANTED = (
    planted("C01", moving_statistics_of_keras_are_the_replicas_own, STATE),
    planted("C24", running_mean_is_the_replicas_own, STATE),
    planted("C24", running_maximum_is_that_of_the_first_replica, STATE),
    planted("C24", examples_seen_are_counted_per_replica, STATE, "replicas-diverged"),
    planted("C16", weight_is_assigned_a_value_of_the_replica, "replicas-diverged", STATE, strategies=ONE_PROCESS),
    planted("C16", replicas_add_their_number, "replicas-diverged", strategies=ONE_PROCESS),
    planted("C17", pretrained_weights_differ_between_workers, "initial-weights-differ", strategies=WORKERS),
    planted("C17", head_is_reset_differently_by_every_worker, "workers-diverged", strategies=WORKERS, steps=4),
    planted("C18", squared_gradients_are_averaged_over_replicas, OPTIMIZER, STATE),
    planted("B34", slot_is_written_by_every_replica, OPTIMIZER, STATE, "replicas-diverged"),
    planted("C18", momentum_of_the_optimizer_is_scaled, OPTIMIZER),
    planted("C27", average_of_weights_takes_the_replicas_own_update, STATE),
    planted("", frozen_layer_is_updated, "frozen-variable-moved"),
    planted("", backbone_thaws_under_a_strategy, "frozen-variable-moved"),
    planted("", variable_is_made_outside_the_scope, "variable-outside-scope", strategies=ONE_PROCESS),
    planted("", counter_is_made_outside_the_scope, "variable-outside-scope", strategies=ONE_PROCESS),
    planted("", counter_of_the_loop_is_stepped_by_every_replica, "variable-outside-scope", strategies=ONE_PROCESS),
)
