"""Programs that meet what Keras does by itself under a strategy, and the same programs with a mistake of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, FEATURES = 24, 8
LAYERS = keras.layers


def _arrays(examples: int = EXAMPLES) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(examples, FEATURES)).astype("float32")
    return x, x[:, :1] * x[:, 1:2]


def _set(run: Any, *arrays: np.ndarray) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays).batch(run.global_batch_size)


def _fit(
    run: Any,
    layers: Callable[[], list[Any]] = list,
    *,
    data: Any = None,
    loss: Any = "mse",
    rate: Any = 0.01,
    **of_optimizer: Any,
) -> None:
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), *layers(), LAYERS.Dense(1)])
        model.compile(keras.optimizers.Adam(rate, **of_optimizer), loss)
    run.watch(model=model)
    run.fit(model, data or _set(run, *_arrays()), epochs=2)


def dropout(run: Any) -> None:
    _fit(run, lambda: [LAYERS.Dense(8, activation="relu"), LAYERS.Dropout(0.5)])


def noise(run: Any) -> None:
    _fit(run, lambda: [LAYERS.GaussianNoise(0.1), LAYERS.Dense(8, activation="relu")])


class OwnNoise(keras.layers.Layer):
    """Layer with a seed of its own, which is the same on every replica: a mistake of the program."""

    def build(self, _shape: Any) -> None:
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.count.assign_add(1)
        seed = tf.stack([7, tf.convert_to_tensor(self.count)])
        return x + tf.cast(tf.random.stateless_normal(tf.shape(x), seed=seed), x.dtype)


def noise_of_the_program(run: Any) -> None:
    _fit(run, lambda: [OwnNoise(), LAYERS.Dense(8, activation="relu")])


def dropout_and_noise_of_the_program(run: Any) -> None:
    _fit(run, lambda: [OwnNoise(), LAYERS.Dense(8, activation="relu"), LAYERS.Dropout(0.5)])


def _scalar(y: Any, prediction: Any) -> Any:
    return keras.ops.mean(keras.ops.square(y - prediction))


def dropout_and_a_gradient_that_is_too_large(run: Any) -> None:
    """Keras scales only losses per example, so this loss is not divided by the number of replicas."""
    _fit(run, lambda: [LAYERS.Dense(8, activation="relu"), LAYERS.Dropout(0.5)], loss=_scalar)


class Positions(keras.layers.Layer):
    """Embedding of tokens plus embedding of their positions, as in many tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = LAYERS.Embedding(20, 4), LAYERS.Embedding(FEATURES, 4)

    def call(self, x: Any) -> Any:
        return self.tokens(x) + self.positions(keras.ops.arange(FEATURES))


def _fit_text(run: Any, loss: Any, optimizer: Any = keras.optimizers.Adam, exclude: str = "", **options: Any) -> None:
    x = np.random.default_rng(0).integers(0, 20, (EXAMPLES, FEATURES)).astype("int32")
    with run.strategy.scope():
        layers = [keras.Input((FEATURES,), dtype="int32"), Positions(), LAYERS.Flatten(), LAYERS.Dense(1)]
        model = keras.Sequential(layers)
        made = optimizer(0.01, **options)
        if exclude:
            made.exclude_from_weight_decay(var_names=[exclude])
        model.compile(made, loss)
    run.watch(model=model)
    run.fit(model, _set(run, x, x[:, :1] / 10), epochs=2)


def positions(run: Any, **options: Any) -> None:
    _fit_text(run, "mse", **options)


def positions_and_a_gradient_that_is_too_large(run: Any, **options: Any) -> None:
    _fit_text(run, _scalar, **options)


def positions_that_decay_under_a_strategy_only(run: Any) -> None:
    alone = run.strategy.num_replicas_in_sync == 1
    _fit_text(run, "mse", keras.optimizers.AdamW, exclude="embeddings" if alone else "", weight_decay=0.1)


def shared_metrics(run: Any) -> None:
    _fit(run)


def shared_metrics_of_two_outputs(run: Any) -> None:
    """Keras keeps a mean of the loss of each output, too."""
    x, y = _arrays()
    with run.strategy.scope():
        features = keras.Input((FEATURES,))
        hidden = LAYERS.Dense(6, activation="relu")(features)
        model = keras.Model(features, [LAYERS.Dense(1)(hidden), LAYERS.Dense(1)(hidden)])
        # The sum of cosines falls in some steps, and is not reset there.
        model.compile(keras.optimizers.SGD(0.05), ["mse", "cosine_similarity"], metrics=[["mae"], ["mse"]])
    run.watch(model=model)
    run.fit(model, tf.data.Dataset.from_tensor_slices((x, (y, -y))).batch(run.global_batch_size), epochs=2)


class Area(keras.metrics.AUC):
    """Area whose value, not its state, is multiplied."""

    def __init__(self, factor: float) -> None:
        super().__init__(name="area")
        self._factor = factor

    def result(self) -> Any:
        return self._factor * super().result()


class Deviation(keras.metrics.Metric):
    """Metric of the program, with state of its own."""

    def __init__(self, factor: float) -> None:
        super().__init__(name="deviation")
        self._factor = factor
        self.squares = self.add_variable(shape=(), initializer="zeros", name="squares")
        self.number = self.add_variable(shape=(), initializer="zeros", name="number")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.squares.assign_add(keras.ops.sum(keras.ops.square(y - predicted)))
        self.number.assign_add(keras.ops.cast(keras.ops.size(y), "float32"))

    def result(self) -> Any:
        return self._factor * keras.ops.log(1.0 + self.squares / (self.number + 3.0))


def shared_state_of_a_metric_of_the_program(run: Any, factor: float = 1.0) -> None:
    x, y = _arrays()
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), LAYERS.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=[Deviation(factor)])
    run.watch(model=model)
    run.fit(model, _set(run, x, y), epochs=2, validation_data=_set(run, x[:20], y[:20]))
    run.evaluate(model, _set(run, x, y))


def shared_state_of_a_metric_that_is_wrong(run: Any) -> None:
    shared_state_of_a_metric_of_the_program(run, 1.0 if run.num_replicas == 1 else 1.01)


def shared_counts_of_positives(run: Any, factor: float = 1.0) -> None:
    x, _y = _arrays()
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), LAYERS.Dense(1, activation="sigmoid")])
        metrics = [keras.metrics.Precision(thresholds=[0.3, 0.6]), keras.metrics.Recall(), Area(factor)]
        metrics += [keras.metrics.AUC(curve="PR", name="under_precision"), keras.metrics.PrecisionAtRecall(0.5)]
        metrics += [keras.metrics.BinaryIoU(), keras.metrics.R2Score()]
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=metrics)
    run.watch(model=model)
    run.fit(model, _set(run, x, (x[:, :1] > 0).astype("float32")), epochs=2)


def shared_counts_and_an_area_that_is_wrong(run: Any) -> None:
    shared_counts_of_positives(run, 1.0 if run.num_replicas == 1 else 1.01)


def shared_metrics_and_a_gradient_that_is_too_large(run: Any) -> None:
    _fit(run, loss=_scalar)


def averages_that_overwrite(run: Any) -> None:
    _fit(run, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2)


def accumulated_by_the_optimizer(run: Any) -> None:
    _fit(run, gradient_accumulation_steps=2)


def averages_that_the_loop_puts_into_the_weights(run: Any) -> None:
    """The way around, which the known behavior names."""
    x, y = _arrays()
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), LAYERS.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def step(batches: Any) -> Any:
        def of_replica(batch: Any) -> Any:
            features, target = batch
            with tf.GradientTape() as tape:
                errors = tf.reduce_mean(tf.square(model(features) - target), -1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(of_replica, args=(next(batches),)), axis=None)

    data = run.strategy.experimental_distribute_dataset(_set(run, x, y))
    for number, _loss in enumerate(run.steps(step, data), 1):
        if number % 2 == 0:
            optimizer.finalize_variable_values(model.trainable_variables)


def strings(run: Any) -> None:
    words, y = np.array(["a", "b", "c", "d"] * 6)[:, None], np.arange(EXAMPLES, dtype="float32")
    with run.strategy.scope():
        given = keras.Input((1,), dtype="string")
        lookup = LAYERS.StringLookup(vocabulary=["a", "b", "c"], output_mode="one_hot")
        model = keras.Model(given, LAYERS.Dense(1)(lookup(given)))
        model.compile("sgd", "mse")
    run.watch(model=model)
    run.fit(model, _set(run, words, y))


def trained_before_strings(run: Any, watched: bool = False) -> None:
    """A loop of the program, whose gradients are not divided by the number of replicas, before what Keras cannot do."""
    with run.strategy.scope():
        weight = tf.Variable(tf.zeros((FEATURES, 1)))
    if watched:
        run.watch(variables=[weight])

    def of_replica(batch: Any) -> None:
        features, target = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(features @ weight - target))
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(0.1 * tf.distribute.get_replica_context().all_reduce("SUM", gradient))

    step = tf.function(lambda batch: run.strategy.run(of_replica, args=(batch,)))
    for batch in run.strategy.experimental_distribute_dataset(_set(run, *_arrays())):
        step(batch)
    strings(run)


def one_example(run: Any) -> None:
    _fit(run, data=_set(run, *_arrays(1)))


class ScaledLater(keras.Model):
    """Model whose loss is multiplied by the number of replicas from the third step on."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.inner = keras.Sequential([keras.Input((FEATURES,)), LAYERS.Dense(8, activation="relu"), LAYERS.Dense(1)])

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs) * tf.where(self.optimizer.iterations < 2, 1.0, self.scale)


def shared_metrics_and_a_gradient_that_is_too_large_from_step_3(run: Any) -> None:
    """The metrics of Keras differ from step 2 on, and the mistake of the program shows one step later."""
    with run.strategy.scope():
        model = ScaledLater(float(run.num_replicas))
        model.compile(keras.optimizers.SGD(0.05), "mse")
        model.build((None, FEATURES))
    run.watch(model=model)
    run.fit(model, _set(run, *_arrays()), epochs=2)


def normalized(run: Any) -> None:
    """Two batch normalizations, of which the second one gets other inputs than on one device."""
    block = lambda: [LAYERS.Dense(8), LAYERS.BatchNormalization(), LAYERS.ReLU()]  # noqa: E731
    _fit(run, lambda: [*block(), *block()])


def normalized_while_the_rate_is_zero(run: Any) -> None:
    """A warm-up: the first step changes the moving statistics, and no weight."""
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.0, 0.01])
    block = lambda: [LAYERS.Dense(8), LAYERS.BatchNormalization(), LAYERS.ReLU()]  # noqa: E731
    _fit(run, lambda: [*block(), *block()], rate=rate)


def tuned_after_a_frozen_fit(run: Any, *first: Any) -> None:
    """Transfer learning: the statistics stand still in the first fit, and differ in the first step of the second."""
    block = lambda: [LAYERS.Dense(8), LAYERS.BatchNormalization(), LAYERS.ReLU()]  # noqa: E731
    with run.strategy.scope():
        base = keras.Sequential([keras.Input((FEATURES,)), *(one() for one in first), *block(), *block()])
        model = keras.Sequential([keras.Input((FEATURES,)), base, LAYERS.Dense(1)])
    run.watch(model=model)
    for trainable, rate in ((False, 0.01), (True, 1e-4)):
        base.trainable = trainable
        with run.strategy.scope():
            model.compile(keras.optimizers.Adam(rate), "mse")
        run.watch(optimizer=model.optimizer)
        run.fit(model, _set(run, *_arrays()), epochs=1)


def tuned_with_a_state_of_the_program(run: Any) -> None:
    tuned_after_a_frozen_fit(run, MeanOfInputs)


class Rescaled(keras.Model):
    """Model whose step multiplies the mean of Keras' own layer by the number of replicas: a mistake of the program."""

    def __init__(self, *before: Any) -> None:
        super().__init__()
        self.norm = LAYERS.BatchNormalization()
        self.inner = keras.Sequential([keras.Input((FEATURES,)), LAYERS.Dense(8), self.norm, *before, LAYERS.Dense(1)])

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        count = tf.distribute.get_strategy().num_replicas_in_sync
        self.norm.moving_mean.assign(self.norm.moving_mean * tf.cast(count, self.norm.moving_mean.dtype))
        return logs


def dropout_and_a_mean_that_is_scaled(run: Any) -> None:
    with run.strategy.scope():
        model = Rescaled(LAYERS.Dropout(0.5))
        model.compile(keras.optimizers.Adam(0.01), "mse")
        model.build((None, FEATURES))
    run.watch(model=model)
    run.fit(model, _set(run, *_arrays()), epochs=2)


def normalized_and_synchronized(run: Any) -> None:
    """Apply the workaround."""
    _fit(run, lambda: [LAYERS.Dense(8), LAYERS.BatchNormalization(synchronized=True), LAYERS.ReLU()])


def normalized_and_weighted_by_class(run: Any, *first: Any) -> None:
    """Arrays with weights of their classes, of which the last quarter is held back for validation."""
    block = lambda: [LAYERS.Dense(8), LAYERS.BatchNormalization(), LAYERS.ReLU()]  # noqa: E731
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), *(one() for one in first), *block(), *block()])
        model.add(LAYERS.Dense(1))
        model.compile(keras.optimizers.Adam(0.01), "mse")
    run.watch(model=model)
    x, y = _arrays(2 * EXAMPLES)
    settings = {"class_weight": {0: 1.0, 1: 3.0}, "validation_split": 0.25, "shuffle": False, "epochs": 2}
    run.fit(model, x, (y > 0).astype("float32"), batch_size=run.global_batch_size, **settings)


class MeanOfInputs(keras.layers.Layer):
    """Layer that keeps the mean of its replica's inputs: a mistake of the program."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, axis=0))
        return x


def normalized_and_a_state_of_the_program(run: Any) -> None:
    _fit(run, lambda: [MeanOfInputs(), LAYERS.Dense(8), LAYERS.BatchNormalization(), LAYERS.ReLU()])


def weighted_by_class_and_a_state_of_the_program(run: Any) -> None:
    normalized_and_weighted_by_class(run, MeanOfInputs)


def evaluated_with_shared_metrics(run: Any, by_copy: bool = False) -> None:
    x, y = _arrays()
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), LAYERS.Dense(4), LAYERS.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    run.watch(model=model)
    if by_copy:
        model = keras.models.clone_model(model)
        model.compile(loss="mse", metrics=["mae"])
    else:
        run.fit(model, _set(run, x, y), validation_data=_set(run, x[:20], y[:20]))
    run.evaluate(model, _set(run, x, y))


def evaluated_by_a_copy(run: Any) -> None:
    """Apply the workaround."""
    evaluated_with_shared_metrics(run, by_copy=True)
