"""Gradients of embeddings, which are rows with ids, and what becomes of the ids."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted

TOKENS, WIDTH = 12, 3


def sentences(run, rows=48, length=2):
    """Ids that differ between the halves of every batch, some in both; ``length`` tokens each."""
    generator = np.random.default_rng(4)
    ids = generator.integers(0, TOKENS, size=(rows, length)).astype("int32")
    targets = generator.normal(size=(rows,)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((ids, targets)).batch(run.global_batch_size)


class Bag(tf.Module):
    """Adds up the embeddings of a sentence."""

    def __init__(self):
        super().__init__()
        generator = np.random.default_rng(5)
        self.table = tf.Variable(generator.normal(size=(TOKENS, WIDTH)).astype("float32"), name="table")
        self.weight = tf.Variable(generator.normal(size=(WIDTH,)).astype("float32"), name="weight")

    def loss(self, run, ids, targets):
        rows = tf.gather(self.table, ids)
        predictions = tf.reduce_sum(tf.reduce_sum(rows, 1) * self.weight, -1)
        return tf.reduce_sum(tf.square(predictions - targets)) / run.global_batch_size


def bag_program(run):
    with run.strategy.scope():
        model = Bag()
    run.watch(variables=[model.table, model.weight])
    return model


def rows_are_added_up_without_their_ids(run, sin):
    """The values of the replicas' slices are summed as if all had the same ids."""
    model = bag_program(run)

    def replica_step(batch):
        ids, targets = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, ids, targets)
        table, weight = tape.gradient(loss, [model.table, model.weight])
        if sin:
            table = tf.IndexedSlices(loops.all_reduce(table.values), table.indices, table.dense_shape)
        else:
            table = loops.all_reduce(tf.convert_to_tensor(table))
        model.table.assign_sub(0.1 * tf.convert_to_tensor(table))
        model.weight.assign_sub(0.1 * loops.all_reduce(weight))
        return loss

    loops.train(run, replica_step, sentences(run))


def averaged_rows_are_handed_to_the_optimizer(run, sin):
    """The mistake above with an optimizer of Keras, which adds up the slices once more, by their ids."""
    make = lambda: keras.Sequential(  # noqa: E731
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(TOKENS, WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model, optimizer = loops.keras_program(run, model=make)

    def replica_step(batch):
        ids, targets = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, tf.square(model(ids)[:, 0] - targets))
        gradients = tape.gradient(loss, model.trainable_variables)
        if sin:
            gradients = [
                tf.IndexedSlices(loops.all_reduce(g.values) / run.num_replicas, g.indices, g.dense_shape)
                if isinstance(g, tf.IndexedSlices)
                else g
                for g in gradients
            ]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step, sentences(run))


def rows_of_several_replicas_overwrite_each_other(run, sin):
    """Every replica adds up its own duplicates; those between replicas are scattered one over the other."""
    model = bag_program(run)
    gather = lambda value: tf.distribute.get_replica_context().all_gather(value, axis=0)  # noqa: E731

    def replica_step(batch):
        ids, targets = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, ids, targets)
        table, weight = tape.gradient(loss, [model.table, model.weight])
        unique, position = tf.unique(table.indices)
        values = tf.math.unsorted_segment_sum(table.values, position, tf.size(unique))
        unique, values = gather(unique), gather(values)
        scatter = tf.tensor_scatter_nd_update if sin else tf.tensor_scatter_nd_add
        total = scatter(tf.zeros((TOKENS, WIDTH)), unique[:, None], values)
        model.table.assign_sub(0.1 * total)
        model.weight.assign_sub(0.1 * loops.all_reduce(weight))
        return loss

    loops.train(run, replica_step, sentences(run))


def rows_of_the_own_replica_alone_are_updated(run, sin):
    """Dense gradients are reduced; sparse ones are scattered on their own replica."""
    model = bag_program(run)

    def replica_step(batch):
        ids, targets = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, ids, targets)
        variables = [model.table, model.weight]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            if not (sin and isinstance(gradient, tf.IndexedSlices)):
                gradient = loops.all_reduce(tf.convert_to_tensor(gradient))
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    loops.train(run, replica_step, sentences(run))


def lists_of_ids_of_different_length_are_reduced(run, sin):
    """Every replica has as many distinct ids as its sentences: shapes of the reduction differ."""
    model = bag_program(run)

    def replica_step(batch):
        ids, targets = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, ids, targets)
        table, weight = tape.gradient(loss, [model.table, model.weight])
        if sin:
            unique, position = tf.unique(table.indices)
            values = tf.math.unsorted_segment_sum(table.values, position, tf.size(unique))
            values = loops.all_reduce(values)
            table = tf.scatter_nd(unique[:, None], values, (TOKENS, WIDTH))
        else:
            table = loops.all_reduce(tf.convert_to_tensor(table))
        model.table.assign_sub(0.1 * table)
        model.weight.assign_sub(0.1 * loops.all_reduce(weight))
        return loss

    loops.train(run, replica_step, sentences(run))


SPARSE = "sparse-gradient-mismatch"
PLANTED = (
    planted("B14", rows_are_added_up_without_their_ids, SPARSE),
    planted("B14", averaged_rows_are_handed_to_the_optimizer, SPARSE),
    planted("B16 F07", rows_of_several_replicas_overwrite_each_other, SPARSE),
    planted("B16", rows_of_the_own_replica_alone_are_updated, SPARSE, "gradient-not-aggregated"),
    planted(
        "B15",
        lists_of_ids_of_different_length_are_reduced,
        "collective-shape-mismatch",
        symptom="crash",
        strategies=("multi_worker_mirrored",),
        sin_timeout=60,
    ),
)
