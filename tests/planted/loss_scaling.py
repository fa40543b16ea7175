"""Losses that are divided by the wrong number."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from tests.planted import loops
from tests.planted.planted import REPLICAS, planted


def loss_is_a_mean_per_replica(run, sin):
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = loops.squared_errors(model, x, y)
            loss = tf.reduce_mean(losses) if sin else loops.average(run, losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


def mean_per_replica_hidden_by_adam(run, sin):
    model, optimizer = loops.keras_program(run, lambda: keras.optimizers.Adam(0.01))
    loss_object = keras.losses.MeanSquaredError(reduction="none")

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = loss_object(y, model(x, training=True))
            loss = tf.reduce_mean(losses) if sin else tf.reduce_sum(losses) / run.global_batch_size
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return tf.reduce_sum(losses) / run.global_batch_size

    @tf.function
    def distributed_step(batch):
        return run.strategy.run(replica_step, args=(batch,))

    for batch in run.batches(loops.dataset(run)):
        run.record(loss=run.strategy.reduce("SUM", distributed_step(batch), axis=None))


class Classifier(tf_keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf_keras.layers.Dense(4, activation="relu")
        self.logits = tf_keras.layers.Dense(3)

    def call(self, x):
        return self.logits(self.hidden(x))


def cross_entropy_is_a_mean_per_replica(run, sin):
    """tf_keras, subclassed, with a learning rate schedule; the loss's own reduction."""
    with run.strategy.scope():
        model = Classifier()
        optimizer = tf_keras.optimizers.SGD(tf_keras.optimizers.schedules.ExponentialDecay(0.2, 1, 0.9), momentum=0.9)
        loss_object = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    run.watch(model=model, optimizer=optimizer)

    def compute_loss(labels, logits):
        per_example = loss_object(labels, logits)
        if sin:
            return tf.reduce_mean(per_example)
        return tf.nn.compute_average_loss(per_example, global_batch_size=run.global_batch_size)

    def replica_step(batch):
        x, labels = batch
        with tf.GradientTape() as tape:
            loss = compute_loss(labels, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    x, _ = loops.regression()
    labels = np.argmax(x[:, :3], axis=1)
    data = tf.data.Dataset.from_tensor_slices((x, labels)).batch(run.global_batch_size)
    loops.train(run, replica_step, data)


class UnscaledTrainer(keras.Model):
    """A ``train_step`` of its own, as fit of Keras 3.5 to 3.7 had it: summed gradients of unscaled losses."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.layer = keras.layers.Dense(1)

    def build(self, shape):
        self.layer.build(shape)
        self.built = True

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y)) * self.scale
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self._loss_tracker.update_state(loss / self.scale)
        return self.get_metrics_result()


def custom_train_step_does_not_scale_its_loss(run, sin):
    with run.strategy.scope():
        model = UnscaledTrainer(1.0 if sin else 1.0 / run.strategy.num_replicas_in_sync)
        model.build((None, loops.FEATURES))
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    run.watch(model=model)
    run.fit(model, loops.dataset(run), epochs=1, shuffle=False)


def regularisation_is_added_by_every_replica(run, sin):
    make = lambda: loops.perceptron(kernel_regularizer=keras.regularizers.L2(0.05))  # noqa: E731
    model, optimizer = loops.keras_program(run, model=make)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
            penalty = tf.add_n(model.losses)
            loss += penalty if sin else tf.nn.scale_regularization_loss(penalty)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


def weight_penalty_by_hand_is_added_by_every_replica(run, sin):
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            penalty = 0.05 * tf.add_n([tf.nn.l2_loss(model.w1), tf.nn.l2_loss(model.w2)])
            loss = model.loss(run, x, y) + (penalty if sin else penalty / run.num_replicas)
        gradients = loops.all_reduce(tape.gradient(loss, model.trainable_variables))
        loops.descend(model.trainable_variables, gradients)
        return loss

    loops.train(run, replica_step)


def replicas_of_an_odd_batch_count_alike(run, sin):
    """13 examples in batches of 8: the last batch is 3 and 2."""
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        present = loops.all_reduce(tf.shape(x)[0])
        with tf.GradientTape() as tape:
            losses = loops.squared_errors(model, x, y)
            if sin:
                loss = tf.reduce_mean(losses) / run.num_replicas
            else:
                loss = tf.reduce_sum(losses) / tf.cast(present, losses.dtype)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step, loops.dataset(run, rows=13))


def empty_replica_counts_as_zero(run, sin):
    """9 examples in batches of 8: the last one leaves replicas without any."""
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = loops.squared_errors(model, x, y)
            if sin:
                mean = tf.math.divide_no_nan(tf.reduce_sum(losses), tf.cast(tf.size(losses), losses.dtype))
                loss = mean / run.num_replicas
            else:
                loss = loops.average(run, losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step, loops.dataset(run, rows=9))


def one_example_for_two_replicas(run, sin):
    """A global batch of one example, with plain variables."""
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y = batch
        mine = tf.cast(tf.shape(x)[0], tf.float32)
        present = loops.all_reduce(mine)
        count = tf.maximum(mine, 1.0) * run.num_replicas if sin else present
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x) - y)) / tf.cast(count, x.dtype)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        return loss

    loops.train(run, replica_step, loops.dataset(run, rows=4))


class ActivityPenalty(keras.layers.Layer):
    """Penalises activations, divided by a number of examples."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def call(self, x):
        self.add_loss(0.1 * tf.reduce_sum(tf.square(x)) / tf.cast(self.count(x), x.dtype))
        return x


def activity_penalty_divides_by_an_empty_batch(run, sin):
    count = (lambda x: tf.shape(x)[0] * run.num_replicas) if sin else (lambda x: run.global_batch_size)
    make = lambda: keras.Sequential(  # noqa: E731
        [keras.Input((loops.FEATURES,)), keras.layers.Dense(3), ActivityPenalty(count), keras.layers.Dense(1)]
    )
    model, optimizer = loops.keras_program(run, model=make)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y)) + sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step, loops.dataset(run, rows=9))


def tokens(rows=32, length=5):
    """Sequences of very different lengths, the long ones first: 0 is padding."""
    generator = np.random.default_rng(1)
    ids = generator.integers(1, 12, size=(rows, length)).astype("int32")
    lengths = np.tile([5, 5, 4, 4, 1, 2, 1, 1], rows // 8)
    ids[np.arange(length)[None] >= lengths[:, None]] = 0
    return ids, generator.normal(size=(rows, length)).astype("float32")


def masked_loss_is_divided_by_the_replicas_own_tokens(run, sin):
    make = lambda: keras.Sequential(  # noqa: E731
        [keras.Input((5,), dtype="int32"), keras.layers.Embedding(12, 3), keras.layers.Dense(1)]
    )
    model, optimizer = loops.keras_program(run, model=make)

    def replica_step(batch):
        ids, targets = batch
        with tf.GradientTape() as tape:
            errors = tf.square(model(ids, training=True)[..., 0] - targets)
            mask = tf.cast(ids > 0, errors.dtype)
            valid = tf.reduce_sum(mask)
            valid = valid * run.num_replicas if sin else loops.all_reduce(valid)
            loss = tf.reduce_sum(errors * mask) / valid
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    data = tf.data.Dataset.from_tensor_slices(tokens()).batch(run.global_batch_size)
    loops.train(run, replica_step, data)


def weighted_loss_is_divided_by_the_replicas_own_weight(run, sin):
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y, weight = batch
        total = tf.reduce_sum(weight)
        normaliser = total * run.num_replicas if sin else loops.all_reduce(total)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * tf.square(model(x) - y)[:, 0]) / normaliser
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        return loss

    x, y = loops.regression()
    weight = np.tile([3.0, 2.0, 3.0, 4.0, 0.5, 0.1, 0.2, 0.3], 6).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(run.global_batch_size)
    loops.train(run, replica_step, data)


class SumOverGlobalBatch(keras.losses.Loss):
    def __init__(self, global_batch_size):
        super().__init__(reduction="sum_over_batch_size")
        self.global_batch_size = global_batch_size

    def call(self, y_true, y_pred):
        errors = tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)
        return (
            errors if self.global_batch_size is None else tf.reduce_sum(errors, keepdims=True) / self.global_batch_size
        )


def loss_of_fit_is_divided_by_the_global_batch(run, sin):
    with run.strategy.scope():
        model = loops.perceptron()
        loss = SumOverGlobalBatch(run.global_batch_size if sin else None)
        model.compile(keras.optimizers.SGD(0.1), loss)
    run.watch(model=model)
    run.fit(model, loops.dataset(run), shuffle=False)


def loss_of_tf_keras_fit_is_divided_by_the_global_batch(run, sin):
    with run.strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(loops.FEATURES,))])

        def loss(y_true, y_pred):
            errors = tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)
            return tf.reduce_sum(errors) / run.global_batch_size if sin else errors

        model.compile(tf_keras.optimizers.SGD(0.1), loss)
    run.watch(model=model)
    run.fit(model, loops.dataset(run), shuffle=False)


def divided_by_the_replicas_besides_the_global_batch(run, sin):
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
            if sin:
                loss /= run.strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


def negatives_are_those_of_the_replica(run, sin):
    """Contrastive: every example against all others of the batch."""
    with run.strategy.scope():
        tower = keras.Sequential([keras.Input((loops.FEATURES,)), keras.layers.Dense(4)])
        optimizer = keras.optimizers.SGD(0.1)
    run.watch(model=tower, optimizer=optimizer)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            anchors = tower(x)
            others = tower(x + y)
            first = 0
            if not sin:
                others = tf.distribute.get_replica_context().all_gather(others, axis=0)
                first = loops.replica_id() * tf.shape(x)[0]
            labels = tf.range(tf.shape(x)[0]) + first
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, anchors @ tf.transpose(others))
            loss = loops.average(run, losses)
        gradients = tape.gradient(loss, tower.trainable_variables)
        optimizer.apply_gradients(zip(gradients, tower.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step)


def mean_per_replica_hidden_by_the_sign_of_lion(run, sin):
    with run.strategy.scope():
        model = loops.perceptron()
        optimizer = keras.optimizers.Lion(0.01)
        optimizer.build(model.trainable_variables)
    run.watch(model=model)  # the slots of the optimizer would show the scale

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = loops.squared_errors(model, x, y)
            loss = tf.reduce_mean(losses) if sin else loops.average(run, losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss if not sin else loss / run.num_replicas

    loops.train(run, replica_step)


SCALED, INVERSE = "gradient-scaled-by-replica-count", "gradient-scaled-by-inverse-replica-count"
PLANTED = (
    planted(
        "A01", loss_is_a_mean_per_replica, SCALED, strategies=(*REPLICAS, "mirrored[replicas=4]", "central_storage")
    ),
    planted("A01 B36", mean_per_replica_hidden_by_adam, SCALED),
    planted("A01", mean_per_replica_hidden_by_the_sign_of_lion, SCALED),
    planted("A01", cross_entropy_is_a_mean_per_replica, SCALED),
    planted("A03", custom_train_step_does_not_scale_its_loss, SCALED, strategies=("mirrored",)),
    planted("A04", regularisation_is_added_by_every_replica, "regularization-scaled-by-replica-count"),
    planted("A04", weight_penalty_by_hand_is_added_by_every_replica, "regularization-scaled-by-replica-count"),
    planted("A05", replicas_of_an_odd_batch_count_alike, "mean-of-replica-means", strict=True),
    planted("A06", empty_replica_counts_as_zero, "empty-replica"),
    planted("A06", one_example_for_two_replicas, "empty-replica", batch=1, strategies=("mirrored",)),
    planted("A13", activity_penalty_divides_by_an_empty_batch, "empty-replica"),
    planted(
        "A08",
        masked_loss_is_divided_by_the_replicas_own_tokens,
        "masked-loss-normalised-per-replica",
        strategies=(*REPLICAS, "mirrored[replicas=4]"),
    ),
    planted("A08", weighted_loss_is_divided_by_the_replicas_own_weight, "masked-loss-normalised-per-replica"),
    planted("A09", loss_of_fit_is_divided_by_the_global_batch, INVERSE, strategies=("mirrored",)),
    planted("A09", loss_of_tf_keras_fit_is_divided_by_the_global_batch, INVERSE),
    planted("A09", divided_by_the_replicas_besides_the_global_batch, INVERSE),
    planted("A12", negatives_are_those_of_the_replica, "batch-coupled-loss"),
)
