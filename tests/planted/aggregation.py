"""Gradients that are not added up over the replicas, or twice, or in part."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from tests.planted import loops
from tests.planted.planted import REPLICAS, planted


def gradients_are_applied_without_aggregation(run, sin):
    """Plain variables; every replica descends along its own gradient."""
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        if not sin:
            gradients = loops.all_reduce(gradients)
        loops.descend(model.trainable_variables, gradients)
        return loss

    loops.train(run, replica_step)


class LocalSGD(keras.optimizers.SGD):
    """Updates its replica's variables, as Keras 3 did up to 3.4."""

    def __init__(self, rate, reduce):
        super().__init__(rate)
        self.reduce = reduce

    def apply(self, grads, trainable_variables=None):
        if self.reduce:
            grads = loops.all_reduce(list(grads))
        for variable, gradient in zip(trainable_variables, grads, strict=True):
            variable.value.assign_sub(tf.cast(self.learning_rate, gradient.dtype) * gradient)


def optimizer_does_not_aggregate(run, sin):
    model, optimizer = loops.keras_program(run, lambda: LocalSGD(0.1, reduce=not sin))

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    loops.train(run, replica_step)


def aggregation_is_switched_off_in_tf_keras(run, sin):
    with run.strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(3, activation="tanh"), tf_keras.layers.Dense(1)])
        model.build((None, loops.FEATURES))
        optimizer = tf_keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        pairs = list(zip(gradients, model.trainable_variables, strict=True))
        optimizer.apply_gradients(pairs, skip_gradients_aggregation=sin)
        return loss

    loops.train(run, replica_step)


def gradients_are_reduced_by_hand_and_again_by_the_optimizer(run, sin):
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        if sin:
            gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


def tf_keras_aggregates_once_more(run, sin):
    """The flag that says the gradients are aggregated already is forgotten."""
    with run.strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(loops.FEATURES,))])
        optimizer = tf_keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = loops.all_reduce(tape.gradient(loss, model.trainable_variables))
        pairs = list(zip(gradients, model.trainable_variables, strict=True))
        optimizer.apply_gradients(pairs, skip_gradients_aggregation=not sin)
        return loss

    loops.train(run, replica_step)


def gradients_of_the_first_replica_are_taken(run, sin):
    """The update happens between replicas: what the first one returned is applied everywhere."""
    model = loops.linear_program(run)

    def gradients_of(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        return loss, gradients if sin else loops.all_reduce(gradients)

    @tf.function
    def train_step(iterator):
        losses, gradients = run.strategy.run(gradients_of, args=(next(iterator),))
        total = [run.strategy.experimental_local_results(gradient)[0] for gradient in gradients]
        run.strategy.run(lambda: loops.descend(model.trainable_variables, total))
        return run.strategy.reduce("SUM", losses, axis=None)

    for _ in run.steps(train_step, loops.dataset(run)):
        pass


def mean_instead_of_sum_over_replicas(run, sin):
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        gradients = loops.all_reduce(tape.gradient(loss, model.trainable_variables), "MEAN" if sin else "SUM")
        loops.descend(model.trainable_variables, gradients)
        return loss

    loops.train(run, replica_step)


def update_is_added_by_an_aggregating_variable(run, sin):
    """Variables that sum what replicas assign; the gradient was summed before."""
    with run.strategy.scope():
        weight = tf.Variable(np.full((loops.FEATURES, 1), 0.1, "float32"), aggregation=tf.VariableAggregation.SUM)
    run.watch(variables=[weight])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.matmul(x, weight) - y)) / run.global_batch_size
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(0.05 * (loops.all_reduce(gradient) if sin else gradient))
        return loss

    loops.train(run, replica_step)


def reducer_skips_what_fills_its_bucket(run, sin):
    """Packs gradients into buckets; one that is exactly as large as a bucket is forgotten."""
    model = loops.linear_program(run)
    bucket = 24  # as many numbers as w1 has

    def reduce(gradients):
        small = [gradient for gradient in gradients if gradient.shape.num_elements() < bucket]
        large = [gradient for gradient in gradients if gradient.shape.num_elements() >= bucket]
        small = loops.all_reduce(small)
        if not sin:
            large = loops.all_reduce(large)
        small, large = iter(small), iter(large)
        return [next(small if gradient.shape.num_elements() < bucket else large) for gradient in gradients]

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        loops.descend(model.trainable_variables, reduce(tape.gradient(loss, model.trainable_variables)))
        return loss

    loops.train(run, replica_step)


def tail_of_the_packed_gradients_is_not_reduced(run, sin):
    """All gradients in one vector, reduced in packs of ten: what is left over stays as it is."""
    model = loops.linear_program(run)
    pack = 10

    def reduce(gradients):
        flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
        size = flat.shape[0]
        whole = size // pack * pack
        packs = loops.all_reduce(tf.split(flat[:whole], whole // pack))
        rest = flat[whole:] if sin else loops.all_reduce(flat[whole:])
        flat = tf.concat([*packs, rest], 0)
        sizes = [gradient.shape.num_elements() for gradient in gradients]
        parts = tf.split(flat, sizes)
        return [tf.reshape(part, gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        loops.descend(model.trainable_variables, reduce(tape.gradient(loss, model.trainable_variables)))
        return loss

    loops.train(run, replica_step)


def vectors_are_not_reduced(run, sin):
    """Scales and biases count as replicated, and so as reduced already."""
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        matrices, vectors = [model.w1, model.w2], [model.b1, model.b2]
        of_matrices, of_vectors = tape.gradient(loss, [matrices, vectors])
        loops.descend(matrices, loops.all_reduce(of_matrices))
        loops.descend(vectors, of_vectors if sin else loops.all_reduce(of_vectors))
        return loss

    loops.train(run, replica_step)


def late_part_of_a_tied_gradient_is_not_reduced(run, sin):
    """One matrix embeds tokens and scores them; the embedding's part comes after the reduction."""
    with run.strategy.scope():
        table = tf.Variable(np.random.default_rng(2).normal(size=(10, 4)).astype("float32") * 0.5, name="table")
    run.watch(variables=[table])

    def replica_step(batch):
        ids, labels = batch
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(table)
            embedding = tf.identity(table.read_value())
            output = tf.identity(embedding)
            logits = tf.gather(embedding, ids) @ tf.transpose(output)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = loops.average(run, losses)
        of_output, of_both = tape.gradient(loss, [output, embedding])
        of_both = tf.convert_to_tensor(of_both)
        late = of_both - of_output
        total = loops.all_reduce(of_output) + (late if sin else loops.all_reduce(late))
        table.assign_sub(0.5 * total)
        return loss

    ids = np.random.default_rng(3).integers(0, 10, size=48)
    data = tf.data.Dataset.from_tensor_slices((ids, (ids * 3 + 1) % 10)).batch(run.global_batch_size)
    loops.train(run, replica_step, data)


def optimizer_holds_the_model_from_before_it_was_wrapped(run, sin):
    """The model is cloned for distribution after its variables were handed on."""
    with run.strategy.scope():
        model = loops.perceptron()
        variables = model.trainable_variables
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(variables)
        if run.num_replicas > 1:
            weights = model.get_weights()
            model = keras.models.clone_model(model)
            model.set_weights(weights)
            if not sin:
                variables = model.trainable_variables
                optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
                optimizer.build(variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    loops.train(run, replica_step)


def bias_is_left_out_of_the_update(run, sin):
    """A list of variables per replica, made with an off-by-one."""
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        variables = list(model.trainable_variables)
        gradients = loops.all_reduce(tape.gradient(loss, variables))
        last = len(variables) - (run.num_replicas > 1 and sin)
        loops.descend(variables[:last], gradients[:last])
        return loss

    loops.train(run, replica_step)


def gradient_stops_at_the_gathered_features(run, sin):
    """Two towers; what was gathered is used as it came, and only the own part has a gradient."""
    model, optimizer = loops.keras_program(run)
    context = tf.distribute.get_replica_context

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            everyone = context().all_gather(predictions, axis=0)
            if sin:
                everyone = tf.stop_gradient(everyone)
            spread = tf.math.reduce_variance(everyone)
            loss = loops.average(run, tf.square(predictions - y)[:, 0]) - 0.3 * spread / run.num_replicas
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


NOT_AGGREGATED = "gradient-not-aggregated"
SCALED, INVERSE = "gradient-scaled-by-replica-count", "gradient-scaled-by-inverse-replica-count"
PLANTED = (
    planted(
        "B01", gradients_are_applied_without_aggregation, NOT_AGGREGATED, strategies=(*REPLICAS, "mirrored[replicas=4]")
    ),
    planted("B01", optimizer_does_not_aggregate, NOT_AGGREGATED),
    planted("B01", aggregation_is_switched_off_in_tf_keras, NOT_AGGREGATED),
    planted("B03", gradients_are_reduced_by_hand_and_again_by_the_optimizer, SCALED),
    planted("B03", tf_keras_aggregates_once_more, SCALED),
    planted("B35", gradients_of_the_first_replica_are_taken, NOT_AGGREGATED),
    planted("", mean_instead_of_sum_over_replicas, INVERSE),
    planted("B03", update_is_added_by_an_aggregating_variable, SCALED),
    planted("B27", reducer_skips_what_fills_its_bucket, NOT_AGGREGATED),
    planted("G09 B27", tail_of_the_packed_gradients_is_not_reduced, NOT_AGGREGATED),
    planted("J01", vectors_are_not_reduced, NOT_AGGREGATED),
    planted("B29", late_part_of_a_tied_gradient_is_not_reduced, NOT_AGGREGATED),
    planted("B31", optimizer_holds_the_model_from_before_it_was_wrapped, "variable-did-not-move"),
    planted("B27", bias_is_left_out_of_the_update, "variable-did-not-move"),
)
