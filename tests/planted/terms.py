"""Losses of several terms, of gathered rows, or of a part of the batch."""

from __future__ import annotations

import keras
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def _train(run, loss_of, model=None):
    model, optimizer = loops.keras_program(run, model=model)

    def replica_step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(model, *batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


def _encoder(*layers):
    return keras.Sequential(
        [keras.Input((loops.FEATURES,)), keras.layers.Dense(5, activation="tanh"), *layers, keras.layers.Dense(4)]
    )


def positives_lack_the_offset_of_the_replica(run, sin):
    """Embeddings are gathered from all replicas, and labels are the rows of the own ones."""

    def loss_of(model, x, _y):
        ours = tf.math.l2_normalize(model(x, training=True), axis=1)
        theirs = tf.math.l2_normalize(model(tf.reverse(x, [1]), training=True), axis=1)
        logits = tf.matmul(ours, tf.distribute.get_replica_context().all_gather(theirs, axis=0), transpose_b=True)
        rows = tf.shape(ours)[0]
        labels = tf.range(rows) + (0 if sin else loops.replica_id() * rows)
        return loops.average(run, tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    _train(run, loss_of, _encoder)


def divergence_of_codes_is_a_mean_over_the_replica(run, sin):
    """An autoencoder whose reconstruction is divided by the global batch, and whose second term is not."""

    def loss_of(model, x, _y):
        codes = model(x, training=True)
        mean, logarithm = codes[:, :2], codes[:, 2:]
        errors = tf.reduce_sum(tf.square(x[:, :2] - mean), axis=1)
        divergence = -0.5 * tf.reduce_sum(1.0 + logarithm - tf.square(mean) - tf.exp(logarithm), axis=1)
        term = tf.reduce_mean(divergence) if sin else loops.average(run, divergence)
        return loops.average(run, errors) + term

    _train(run, loss_of, _encoder)


def parts_are_cut_to_a_multiple_of_four(run, sin):
    """12 examples are 6 for each replica, of which it takes 4."""

    def loss_of(model, x, y):
        taken = tf.shape(x)[0] // 4 * 4 if sin else tf.shape(x)[0]
        return loops.average(run, loops.squared_errors(model, x[:taken], y[:taken]))

    _train(run, loss_of)


def only_the_first_examples_of_a_part_count(run, sin):
    """One device takes three examples of the batch, and each replica three of its part."""

    def loss_of(model, x, y):
        errors = tf.square(loops.squared_errors(model, x, y))
        return loops.average(run, errors[:3] if sin else errors)

    _train(run, loss_of)


def entropy_is_summed_beside_means(run, sin):
    """The loss of an actor-critic has two means and the sum of the entropies, and is divided by the replicas."""

    def loss_of(model, x, y):
        outputs = model(x, training=True)
        logarithms, value = tf.nn.log_softmax(outputs[:, :3]), outputs[:, 3]
        advantage = tf.stop_gradient(y[:, 0] - value)
        entropy = -tf.reduce_sum(tf.exp(logarithms) * logarithms, axis=1)
        bonus = tf.reduce_sum(entropy) if sin else tf.reduce_mean(entropy)
        losses = tf.reduce_mean(tf.square(value - y[:, 0]) - logarithms[:, 0] * advantage)
        return (losses - 0.1 * bonus) / run.num_replicas

    _train(run, loss_of, _encoder)


def weights_of_tasks_are_penalised_by_each_replica(run, sin):
    """The uncertainties of two tasks are trained, and their sum keeps them small. It is a term without examples."""

    class TwoTasks(keras.Model):
        def build(self, _shape):
            self.layer = keras.layers.Dense(2)
            self.layer.build((None, loops.FEATURES))
            self.logarithms = self.add_weight(shape=(2,), initializer="zeros", name="logarithms")

        def call(self, x):
            return self.layer(x)

    def made():
        model = TwoTasks()
        model.build((None, loops.FEATURES))
        return model

    def loss_of(model, x, y):
        first, second = tf.unstack(model(x), axis=1)
        errors = [loops.average(run, tf.square(first - y[:, 0])), loops.average(run, tf.abs(second + y[:, 0]))]
        share = 1.0 if sin else 1.0 / run.num_replicas
        return sum(
            tf.exp(-model.logarithms[task]) * error + share * model.logarithms[task]
            for task, error in enumerate(errors)
        )

    _train(run, loss_of, made)


def _share_of_valid(run, valid, sin):
    """Weights that are divided by their sum over the replica, or over all replicas."""
    total = tf.reduce_sum(valid)
    return valid / (total * run.num_replicas if sin else loops.all_reduce(total))


def weights_count_per_replica_behind_synchronized_normalization(run, sin):
    def loss_of(model, x, y):
        errors = tf.reduce_sum(tf.square(model(x, training=True) - y), axis=1)
        return tf.reduce_sum(errors * _share_of_valid(run, 1.5 + tf.tanh(x[:, 0]), sin))

    _train(run, loss_of, lambda: _encoder(keras.layers.BatchNormalization(synchronized=True)))


def labels_of_a_second_task_count_per_replica(run, sin):
    """Two tasks; some examples have no label of the second."""

    def two_heads():
        inputs = keras.Input((loops.FEATURES,))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        return keras.Model(inputs, [keras.layers.Dense(1, name=name)(hidden) for name in ("first", "second")])

    def loss_of(model, x, y):
        first, second = model(x, training=True)
        share = _share_of_valid(run, tf.cast(x[:, 3] > -1.0, x.dtype) + 0.01, sin)
        return loops.average(run, tf.square(first - y)[:, 0]) + tf.reduce_sum(tf.square(second + y)[:, 0] * share)

    _train(run, loss_of, two_heads)


def labels_are_reversed_under_a_strategy(run, sin):
    def loss_of(model, x, y):
        targets = y[::-1] if sin and run.num_replicas > 1 else y
        return loops.average(run, loops.squared_errors(model, x, targets))

    _train(run, loss_of)


MASKED = "masked-loss-normalised-per-replica"
PLANTED = (
    planted("", positives_lack_the_offset_of_the_replica, "gathered-positions-wrong"),
    planted("", parts_are_cut_to_a_multiple_of_four, "examples-dropped", batch=12),
    planted("", only_the_first_examples_of_a_part_count, "batch-coupled-loss"),
    planted("", entropy_is_summed_beside_means, "gradient-scaled-by-inverse-replica-count"),
    planted("", weights_of_tasks_are_penalised_by_each_replica, "regularization-scaled-by-replica-count"),
    planted("", divergence_of_codes_is_a_mean_over_the_replica, "gradient-scaled-by-replica-count"),
    planted("", weights_count_per_replica_behind_synchronized_normalization, MASKED),
    planted("", labels_of_a_second_task_count_per_replica, MASKED),
    planted("", labels_are_reversed_under_a_strategy, "examples-altered"),
)
