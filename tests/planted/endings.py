"""Training before a program's first watch, and after its last step."""

from __future__ import annotations

import keras
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def _step(model, optimizer, run):
    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return replica_step


def final_weights_are_summed_over_the_replicas(run, sin):
    """The data's length is not known: the loop ends in a step that finds no batch."""
    model, optimizer = loops.keras_program(run)
    loops.train(run, _step(model, optimizer, run), loops.dataset(run, 24).filter(lambda *_example: True))
    for variable in model.trainable_variables:
        variable.assign(variable * (run.num_replicas if sin else 0.5))


def _after_the_loop(run):
    model, optimizer = loops.keras_program(run)
    loops.train(run, _step(model, optimizer, run))
    return optimizer


def learning_rate_is_scaled_after_the_loop(run, sin):
    """A next phase would train with a rate that depends on the number of replicas."""
    optimizer = _after_the_loop(run)
    optimizer.learning_rate = 0.01 * (run.num_replicas if sin else 1.0)


def momentum_is_scaled_after_the_loop(run, sin):
    optimizer = _after_the_loop(run)
    optimizer.momentum = 0.5 / (run.num_replicas if sin else 1.0)


def warm_up_multiplies_the_gradient(run, sin):
    """The program trains before it watches; its loss is then the mean of a replica instead of the global batch."""
    with run.strategy.scope():
        model = loops.perceptron()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    right = _step(model, optimizer, run)

    def warming_up(batch):
        x, y = (tf.cast(part, model.compute_dtype) for part in batch)
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y)) * (run.num_replicas if sin else 1.0)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = loops.summed(run, warming_up)
    iterator = iter(run.strategy.experimental_distribute_dataset(loops.dataset(run)))
    for _ in range(4):
        step(iterator)
    run.watch(model=model, optimizer=optimizer)
    loops.train(run, right)


PLANTED = (
    planted("", final_weights_are_summed_over_the_replicas, "changed-after-last-step", steps=None),
    planted("", learning_rate_is_scaled_after_the_loop, "changed-after-last-step"),
    planted("", momentum_is_scaled_after_the_loop, "changed-after-last-step"),
    planted("", warm_up_multiplies_the_gradient, "initial-weights-differ"),
)
