"""Right results, slowly."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def every_gradient_is_reduced_by_itself(run, sin):
    """Ten variables, ten collectives."""
    with run.strategy.scope():
        generator = np.random.default_rng(6)
        layers = [
            (
                tf.Variable(generator.normal(size=(loops.FEATURES, loops.FEATURES)).astype("float32") * 0.4),
                tf.Variable(tf.zeros((loops.FEATURES,))),
            )
            for _ in range(5)
        ]
    variables = [variable for layer in layers for variable in layer]
    run.watch(variables=variables)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            for kernel, bias in layers:
                x = tf.tanh(tf.matmul(x, kernel) + bias)
            loss = tf.reduce_sum(tf.square(tf.reduce_mean(x, 1, keepdims=True) - y)) / run.global_batch_size
        gradients = tape.gradient(loss, variables)
        gradients = [loops.all_reduce(g) for g in gradients] if sin else loops.all_reduce(gradients)
        loops.descend(variables, gradients)
        return loss

    loops.train(run, replica_step)


def number_of_the_step_is_a_python_number(run, sin):
    """Every step is another argument, and so another trace."""
    model = loops.linear_program(run)

    def replica_step(batch, number):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        rate = 0.1 / (1.0 + number)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)), rate)
        return loss

    @tf.function
    def train_step(batch, number):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch, number)), axis=None)

    for number, batch in enumerate(run.batches(loops.dataset(run))):
        run.record(loss=train_step(batch, float(number) if sin else tf.constant(float(number))))


def step_is_decorated_within_the_loop(run, sin):
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    compiled = tf.function(step)
    for batch in run.batches(loops.dataset(run)):
        if sin:
            compiled = tf.function(lambda given: step(given))
        run.record(loss=compiled(batch))


def step_is_not_compiled(run, sin):
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def train_step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    if not sin:
        train_step = tf.function(train_step)
    for batch in run.batches(loops.dataset(run)):
        run.record(loss=train_step(batch))


def power_iteration_broadcasts_in_every_step(run, sin):
    """Spectral normalisation: vectors of the first replica are broadcast one by one; all compute the same anyway."""
    model = loops.linear_program(run)
    aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA if sin else tf.VariableAggregation.NONE
    with run.strategy.scope():
        vectors = [
            tf.Variable(tf.ones((loops.FEATURES, 1)) * (1.0 + number), trainable=False, aggregation=aggregation)
            for number in range(6)
        ]

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        for vector in vectors:
            turned = tf.matmul(model.w1, tf.matmul(model.w1, vector, transpose_a=True))
            vector.assign(turned / tf.norm(turned))
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        return loss

    loops.train(run, replica_step)


PLANTED = (
    planted("K02", every_gradient_is_reduced_by_itself, "collective-per-variable", symptom="slow"),
    planted("", number_of_the_step_is_a_python_number, "retraced-every-step", symptom="slow"),
    planted("", step_is_decorated_within_the_loop, "retraced-every-step", symptom="slow", steps=4),
    planted("", step_is_not_compiled, "eager-step", symptom="slow"),
    planted("K05", power_iteration_broadcasts_in_every_step, "collective-per-variable", symptom="slow"),
)
