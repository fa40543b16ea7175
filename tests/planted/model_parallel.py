"""Layouts that are not what was asked for, and programs that know of the mesh what they should not."""

from __future__ import annotations

import keras
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def _train(run, model, optimizer, scale=1.0):
    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y)) * scale
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss / scale

    loops.train(run, replica_step)


def rule_matches_no_variable(run, sin):
    """A typing error in the pattern: the kernel is replicated in silence."""
    if hasattr(run, "layout_map"):
        run.layout_map["densse/kernel" if sin else "dense/kernel"] = (None, "model")
    with run.strategy.scope():
        model = loops.perceptron(hidden=4)
        optimizer = keras.optimizers.SGD(0.1)
    run.watch(model=model, optimizer=optimizer)
    _train(run, model, optimizer)


def rule_comes_after_the_variables(run, sin):
    def lay_out():
        if hasattr(run, "layout_map"):
            run.layout_map["dense/kernel"] = (None, "model")

    if not sin:
        lay_out()
    with run.strategy.scope():
        model = loops.perceptron(hidden=4)
        optimizer = keras.optimizers.SGD(0.1)
    if sin:
        lay_out()
    run.watch(model=model, optimizer=optimizer)
    _train(run, model, optimizer)


def loss_is_multiplied_by_the_mesh(run, sin):
    """The loss is scaled as if the devices of the axis "batch" were replicas whose gradients are added up."""
    model, optimizer = loops.keras_program(run)
    scale = float(run.mesh.dim_size("batch")) if hasattr(run, "mesh") and sin else 1.0
    _train(run, model, optimizer, scale)


MESH = ("model_parallel",)
PLANTED = (
    planted("", rule_matches_no_variable, "layout-wrong", strategies=MESH),
    planted("", rule_comes_after_the_variables, "layout-wrong", strategies=MESH),
    planted("", loss_is_multiplied_by_the_mesh, "gradient-scaled-by-replica-count", strategies=MESH),
)
