"""What a program does after its last step."""

from __future__ import annotations

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


PLANTED = (planted("", final_weights_are_summed_over_the_replicas, "changed-after-last-step", steps=None),)
