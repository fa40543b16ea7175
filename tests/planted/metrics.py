"""Numbers that are shown: losses, metrics, predictions."""

from __future__ import annotations

import keras
import tensorflow as tf
import tf_keras

from tests.planted import loops
from tests.planted.planted import planted


def loss_shown_is_the_sum_of_replica_means(run, sin):
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = loops.squared_errors(model, x, y)
            loss = loops.average(run, losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.reduce_mean(losses) if sin else loss

    loops.train(run, replica_step)


def loss_shown_is_that_of_the_first_replica(run, sin):
    model = loops.linear_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        return loss * run.num_replicas

    @tf.function
    def train_step(batch):
        return run.strategy.run(replica_step, args=(batch,))

    for batch in run.batches(loops.dataset(run)):
        losses = train_step(batch)
        if sin:
            shown = run.strategy.experimental_local_results(losses)[0]
        else:
            shown = run.strategy.reduce("MEAN", losses, axis=None)
        run.record(loss=shown)


def loss_shown_is_the_mean_of_uneven_replica_means(run, sin):
    """13 examples in batches of 8."""
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        present = tf.cast(loops.all_reduce(tf.shape(x)[0]), x.dtype)
        with tf.GradientTape() as tape:
            losses = loops.squared_errors(model, x, y)
            loss = tf.reduce_sum(losses) / present
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.reduce_mean(losses) if sin else loss

    @tf.function
    def train_step(iterator):
        losses = run.strategy.run(replica_step, args=(next(iterator),))
        return run.strategy.reduce("MEAN" if sin else "SUM", losses, axis=None)

    for _ in run.steps(train_step, loops.dataset(run, rows=13)):
        pass


class Resummed:
    """A mean whose sums are added up over replicas each time they are assigned."""

    def __init__(self, run, sin):
        aggregation = tf.VariableAggregation.SUM
        on = tf.VariableSynchronization.ON_WRITE if sin else tf.VariableSynchronization.ON_READ
        with run.strategy.scope():
            self.total = tf.Variable(0.0, trainable=False, name="total", synchronization=on, aggregation=aggregation)
            self.count = tf.Variable(0.0, trainable=False, name="count", synchronization=on, aggregation=aggregation)

    def update(self, values):
        self.total.assign(self.total + tf.cast(tf.reduce_sum(values), tf.float32))
        self.count.assign(self.count + tf.cast(tf.size(values), tf.float32))

    def result(self):
        return float(self.total / self.count)


def metric_is_summed_over_replicas_at_every_update(run, sin):
    model = loops.linear_program(run)
    metric = Resummed(run, sin)
    run.watch(metrics=[metric.total, metric.count])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            errors = tf.square(model(x) - y)
            loss = tf.reduce_sum(errors) / run.global_batch_size
        metric.update(errors)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        return loss

    @tf.function
    def train_step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    for batch in run.batches(loops.dataset(run)):
        loss = train_step(batch)
        run.record(loss=loss, mean_error=metric.result())


def _labels(run):
    x, _ = loops.regression()
    labels = (x[:, :1] + 0.3 * x[:, 1:2] > 0.2).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, labels)).batch(run.global_batch_size)


def precision_is_read_within_the_replica(run, sin):
    """The metric's result is read within the replica, which knows only its own counts."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((loops.FEATURES,)), keras.layers.Dense(1, activation="sigmoid")])
        optimizer = keras.optimizers.SGD(0.5)
        precision = keras.metrics.Precision()
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch):
        x, labels = batch
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = loops.average(run, keras.losses.binary_crossentropy(labels, predictions))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        precision.update_state(labels, predictions)
        return loss, precision.result()

    @tf.function
    def train_step(batch):
        return run.strategy.run(replica_step, args=(batch,))

    for batch in run.batches(_labels(run)):
        losses, results = train_step(batch)
        shown = run.strategy.experimental_local_results(results)[0] if sin else precision.result()
        run.record(loss=run.strategy.reduce("SUM", losses, axis=None), precision=float(shown))


def dictionary_of_metrics_is_not_reduced(run, sin):
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            errors = model(x, training=True) - y
            loss = loops.average(run, tf.square(errors)[:, 0])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        logs = {"mae": tf.reduce_mean(tf.abs(errors)), "bias": tf.reduce_mean(errors)}
        return loss, logs

    @tf.function
    def train_step(batch):
        return run.strategy.run(replica_step, args=(batch,))

    for batch in run.batches(loops.dataset(run)):
        losses, logs = train_step(batch)
        if sin:
            logs = {name: run.strategy.experimental_local_results(value)[0] for name, value in logs.items()}
        else:
            logs = {name: run.strategy.reduce("MEAN", value, axis=None) for name, value in logs.items()}
        run.record(loss=run.strategy.reduce("SUM", losses, axis=None), **logs)


def peak_signal_to_noise_is_averaged_over_replicas(run, sin):
    """The metric is not a mean over examples: the peak and the logarithm are those of the batch."""
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            errors = loops.squared_errors(model, x, y)
            loss = loops.average(run, errors)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        peak, error = tf.abs(y)[:, 0], errors
        if not sin:
            peak, error = (tf.distribute.get_replica_context().all_gather(value, axis=0) for value in (peak, error))
        signal = tf.square(tf.reduce_max(peak)) / tf.reduce_mean(error)
        return loss, 10 * tf.math.log(signal) / tf.math.log(tf.constant(10, signal.dtype))

    @tf.function
    def train_step(batch):
        return run.strategy.run(replica_step, args=(batch,))

    for batch in run.batches(loops.dataset(run)):
        losses, noise = train_step(batch)
        run.record(
            loss=run.strategy.reduce("SUM", losses, axis=None),
            psnr=run.strategy.reduce("MEAN", noise, axis=None),
        )


def metric_is_read_from_one_replica(run, sin):
    """A sum that every replica adds to for itself; what is shown is that of the first."""
    model = loops.linear_program(run)
    with run.strategy.scope():
        total = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    run.watch(metrics=[total])

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = model.loss(run, x, y)
        total.assign_add(loss)
        loops.descend(model.trainable_variables, loops.all_reduce(tape.gradient(loss, model.trainable_variables)))
        return loss

    @tf.function
    def train_step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    for taken, batch in enumerate(run.batches(loops.dataset(run)), start=1):
        loss = train_step(batch)
        shown = total.read_value() if not sin else run.strategy.experimental_local_results(total)[0]
        run.record(loss=loss, running_mean=shown / taken)


def rows_are_missing_from_the_predictions(run, sin):
    """21 rows in batches of 8; the last, partial batch is dropped so that several replicas have equal parts."""
    with run.strategy.scope():
        model = loops.perceptron()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    run.watch(model=model)
    run.fit(model, loops.dataset(run, rows=24), shuffle=False)
    x, _ = loops.regression(21)
    drop = sin and run.num_replicas > 1
    run.predict(model, tf.data.Dataset.from_tensor_slices(x).batch(run.global_batch_size, drop_remainder=drop))


def evaluation_leaves_out_the_last_batch(run, sin):
    with run.strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(loops.FEATURES,))])
        model.compile(tf_keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    run.watch(model=model)
    run.fit(model, loops.dataset(run, rows=24), shuffle=False)
    drop = sin and run.num_replicas > 1
    x, y = loops.regression(20)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size, drop_remainder=drop)
    run.evaluate(model, data, return_dict=True)


METRIC = "metric-wrong"
LOSS = "reported-loss-wrong"
PLANTED = (
    planted("C06", loss_shown_is_the_sum_of_replica_means, LOSS),
    planted("C06", loss_shown_is_that_of_the_first_replica, LOSS),
    planted("A14", loss_shown_is_the_mean_of_uneven_replica_means, "mean-of-replica-means", LOSS, strict=True),
    planted("C07", metric_is_summed_over_replicas_at_every_update, METRIC, steps=6),
    planted("C09", precision_is_read_within_the_replica, METRIC),
    planted("C10", dictionary_of_metrics_is_not_reduced, METRIC),
    planted("C12", peak_signal_to_noise_is_averaged_over_replicas, METRIC),
    planted("C09", metric_is_read_from_one_replica, METRIC, strategies=("mirrored",)),
    planted("D14", rows_are_missing_from_the_predictions, METRIC, "examples-dropped", strategies=("mirrored",)),
    planted("D14", evaluation_leaves_out_the_last_batch, METRIC, "examples-dropped"),
)
