"""Guarded training loops: right ones with several models, and one in which a mistake can be planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import pytest_ddl

FEATURES, EXAMPLES, BATCH, EVERY, STEPS, AT = 8, 256, 8, 4, 16, 6
"""``AT`` is the step after which a mistake is planted, so that the check after step 8 must see it."""
Found = tuple[str | None, int | None, str | None, int | None, int | None]


def local(variable: Any) -> Any:
    """Return the copy of the replica that runs here."""
    return getattr(variable, "value", variable)._get_on_device_or_primary()


def copies(variable: Any) -> tuple[Any, ...]:
    """Return the copies of the replicas of this process."""
    strategy = pytest_ddl.current_strategy()
    value = getattr(variable, "value", variable)
    return tuple(strategy.experimental_local_results(value if not callable(value) else variable))


def rank() -> int:
    """Return the number of this process."""
    context = pytest_ddl.current_rank()
    assert context is not None
    return context.rank


def last(variable: Any) -> Any:
    """Return the copy of the last replica; ``None`` in all other processes."""
    strategy = pytest_ddl.current_strategy()
    found = copies(variable)
    return found[-1] if rank() == strategy.num_replicas_in_sync // len(found) - 1 else None


def dense() -> tuple[Any, Any]:
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((FEATURES,)), *layers]), keras.optimizers.Adam(0.01)


def normalized() -> tuple[Any, Any]:
    layers = [keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(1)])
    return model, keras.optimizers.SGD(0.01, momentum=0.9)


def embedded() -> tuple[Any, Any]:
    layers = [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    integers = keras.layers.Lambda(lambda x: tf.cast(tf.abs(x) * 10, tf.int32) % 50)
    return keras.Sequential([keras.Input((FEATURES,)), integers, *layers]), keras.optimizers.RMSprop(0.01)


def half_precise(scale: float = 2.0**10) -> tuple[Any, Any]:
    layers = [keras.layers.Dense(16, dtype="mixed_float16"), keras.layers.Dense(1, dtype="float32")]
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=scale)
    return keras.Sequential([keras.Input((FEATURES,)), *layers]), optimizer


def overflowing() -> tuple[Any, Any]:
    """Begin with a scale at which gradients overflow, so that the optimizer skips updates until it is small enough."""
    return half_precise(2.0**20)


def averaged() -> tuple[Any, Any]:
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.9)
    return dense()[0], keras.optimizers.AdamW(rate, use_ema=True, clipnorm=1.0)


def frozen() -> tuple[Any, Any]:
    model, optimizer = dense()
    model.layers[0].trainable = False
    return model, optimizer


def large() -> tuple[Any, Any]:
    layers = [keras.layers.Dense(8193), keras.layers.Dense(9), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((FEATURES,)), *layers]), keras.optimizers.SGD(0.001)


def stateful() -> tuple[Any, Any]:
    """Go on from the state in which the examples of the replica have left a recurrent layer."""
    layers = [keras.layers.Reshape((FEATURES, 1)), keras.layers.LSTM(4, stateful=True), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input(batch_shape=(BATCH, FEATURES)), *layers]), keras.optimizers.SGD(0.01)


class Tracked(keras.layers.Layer):
    """A layer with a metric, whose state is that of its replica."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = keras.metrics.Mean(name="size")

    def call(self, x: Any) -> Any:
        self.tracker.update_state(tf.reduce_mean(tf.abs(x)))
        return x


def tracked() -> tuple[Any, Any]:
    layers = [Tracked(), keras.layers.SpectralNormalization(keras.layers.Dense(4)), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((FEATURES,)), *layers]), keras.optimizers.Lion(0.001)


class Linear(tf.Module):
    """A model without Keras, with a counter, the best loss so far, and a mask of infinities."""

    def __init__(self) -> None:
        super().__init__()
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.w = tf.Variable(tf.zeros([FEATURES, 1]), name="w", aggregation=tf.VariableAggregation.SUM)
        self.count = tf.Variable(0, name="count", trainable=False, aggregation=first)
        self.best = tf.Variable(np.inf, name="best", trainable=False, aggregation=first)
        self.seen = tf.Variable(
            0, name="seen", trainable=False, aggregation=tf.VariableAggregation.SUM,
            synchronization=tf.VariableSynchronization.ON_READ,
        )  # fmt: skip

    def __call__(self, x: Any, training: bool = False) -> Any:
        del training
        self.seen.assign_add(1)
        return x @ self.w

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        return (self.w,)


class ByHand:
    """An optimizer for :class:`Linear` that writes the weights itself."""

    def __init__(self, model: Linear) -> None:
        self.model = model

    def apply_gradients(self, pairs: Any) -> None:
        ((gradient, weight),) = pairs
        weight.assign_sub(0.01 * gradient)
        self.model.count.assign_add(1)


def of_tensorflow() -> tuple[Any, Any]:
    model = Linear()
    return model, ByHand(model)


def of_tf_keras() -> tuple[Any, Any]:
    import tf_keras

    layers = [tf_keras.layers.Dense(16), tf_keras.layers.BatchNormalization(), tf_keras.layers.Dense(1)]
    return tf_keras.Sequential([tf_keras.layers.InputLayer((FEATURES,)), *layers]), tf_keras.optimizers.Adam(0.01)


def of_old_tf_keras() -> tuple[Any, Any]:
    import tf_keras

    rate = tf_keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.9)
    return of_tf_keras()[0], tf_keras.optimizers.legacy.Adam(rate)


def numbers() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(EXAMPLES, FEATURES)).astype("float32")
    return x, x[:, :1]


def sharded(context: Any) -> Any:
    data = tf.data.Dataset.from_tensor_slices(numbers())
    return data.shard(context.num_input_pipelines, context.input_pipeline_id).repeat().batch(BATCH)


def whole(context: Any) -> Any:
    """Give every worker all examples in one order: the mistake."""
    return tf.data.Dataset.from_tensor_slices(numbers()).repeat().batch(BATCH)


def small(context: Any) -> Any:
    """Give every replica the same few examples, because there are no more."""
    return tf.data.Dataset.from_tensor_slices(numbers()).take(4).repeat().batch(BATCH)


def constant(context: Any) -> Any:
    """Give every replica equal examples, as a benchmark without data does."""
    return tf.data.Dataset.from_tensors((tf.ones([FEATURES]), tf.ones([1]))).repeat().batch(BATCH)


def train(
    make: Callable[[], tuple[Any, Any]] = dense,
    data: Callable[[Any], Any] = sharded,
    after: Callable[[Any, Any], None] | None = None,
    apply: Callable[[Any, list[Any], Any], None] | None = None,
    before: Callable[[Any, Any], None] | None = None,
    feed: bool = True,
    **settings: Any,
) -> list[Found]:
    """Train, and return cause, step, variable, replica and worker of each finding.

    :param after: called after step :data:`AT`, to plant a mistake; one that spreads, directly before the next check.
    :param apply: makes the update in place of the optimizer.
    :param before: called before the first step.
    """
    strategy = pytest_ddl.current_strategy()
    if not tf.distribute.has_strategy():
        keras.backend.clear_session()  # names of layers begin with their first number again; it leaves all scopes
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model, optimizer = make()
        if hasattr(optimizer, "build"):
            optimizer.build(model.trainable_variables)
    guarded = None if isinstance(optimizer, ByHand) else optimizer
    guard = pytest_ddl.guard(strategy, model, guarded, every=EVERY, on_finding="log", **settings)
    if before is not None:
        before(model, optimizer)
        guard.check()

    @tf.function
    def step(batch: Any) -> None:
        def one(batch: Any) -> None:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(tf.cast(model(x, training=True), tf.float32) - y)) / 16
                scaled = optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
            gradients = tape.gradient(scaled, model.trainable_variables)
            if apply is not None:
                apply(model, gradients, optimizer)
            else:
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        strategy.run(one, args=(batch,))

    batches = iter(strategy.distribute_datasets_from_function(data))
    for number in range(1, STEPS + 1):
        batch = next(batches)
        step(batch)
        # Whether NaN passes through relu depends on the processor. If it does, the next gradients spread it.
        if after is not None and number == (2 * EVERY if after is breaks_a_weight else AT):
            after(model, optimizer)
        guard.step(batch if feed else None)
    assert guard.steps == STEPS
    return [(one.cause, one.step, one.variable, one.replica, one.worker) for one in guard.findings]


def moves_a_weight(model: Any, _optimizer: Any) -> None:
    """Change one weight of the last replica in its last bit."""
    if (copy := last(model.layers[-1].kernel)) is not None:
        value = copy.numpy()
        value[0, 0] = np.nextafter(value[0, 0], np.float32(np.inf))
        copy.assign(value)


def moves_a_large_weight(model: Any, _optimizer: Any) -> None:
    """Change one weight of a large variable."""
    if (copy := last(model.layers[1].kernel)) is not None:
        value = copy.numpy()
        value[5000, 3] = np.nextafter(value[5000, 3], np.float32(np.inf))
        copy.assign(value)


def changes_signs(model: Any, _optimizer: Any) -> None:
    """Change the signs of two weights that share no other bit."""
    if (copy := last(model.layers[0].kernel)) is not None:
        value = copy.numpy()
        value[0, 1], value[0, 3] = -value[0, 1], -value[0, 3]
        copy.assign(value)


def swaps_weights(model: Any, _optimizer: Any) -> None:
    if (copy := last(model.layers[0].kernel)) is not None:
        copy.assign(tf.reverse(copy, [1]))


def sets_a_rate(_model: Any, optimizer: Any) -> None:
    if (copy := last(optimizer._learning_rate)) is not None:
        copy.assign(0.5)


def counts_once_more(_model: Any, optimizer: Any) -> None:
    if (copy := last(optimizer.iterations)) is not None:
        copy.assign_add(1)


def breaks_a_weight(model: Any, _optimizer: Any) -> None:
    if (copy := last(model.layers[0].bias)) is not None:
        copy.assign(tf.fill(copy.shape, np.nan))


def breaks_all_weights(model: Any, _optimizer: Any) -> None:
    model.layers[0].bias.assign(tf.fill(model.layers[0].bias.shape, np.inf))


def breaks_statistics(model: Any, _optimizer: Any) -> None:
    model.layers[1].moving_variance.assign(tf.fill(model.layers[1].moving_variance.shape, np.nan))


def moves_a_slot(_model: Any, optimizer: Any) -> None:
    (slot, *_others) = [one for one in optimizer.variables if "momentum" in one.path]
    if (copy := last(slot)) is not None:
        copy.assign_add(tf.ones_like(copy))


def moves_state(model: Any, _optimizer: Any) -> None:
    for copy in copies(model.layers[1].total):
        copy.assign_add(tf.random.normal(copy.shape))


class Total(keras.layers.Layer):
    """A layer whose state adds up the examples of its replica: the mistake."""

    def build(self, shape: Any) -> None:
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False, name="total")

    def call(self, x: Any) -> Any:
        self.total.assign_add(tf.reduce_sum(x))
        return x


def totalled() -> tuple[Any, Any]:
    layers = [Total(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((FEATURES,)), *layers]), keras.optimizers.SGD(0.001)


def of_each_replica(model: Any, gradients: list[Any], _optimizer: Any) -> None:
    """Give each replica only its own gradient: the mistake."""
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        local(variable).assign_sub(0.01 * gradient)


def in_scope(make: Callable[[], tuple[Any, Any]] = normalized) -> list[Found]:
    """Keep the whole loop in the scope of the strategy."""
    with pytest_ddl.current_strategy().scope():
        return train(make)


def loses_a_restore(model: Any, _optimizer: Any) -> None:
    """Restore weights in one process only."""
    if (copy := last(model.layers[0].kernel)) is not None:
        copy.assign_add(tf.ones_like(copy))


def counts_a_step_less() -> list[Found]:
    """Let one worker report one step less than the others."""
    strategy = pytest_ddl.current_strategy()
    with strategy.scope():
        model, _optimizer = dense()
    guard = pytest_ddl.guard(strategy, model, on_finding="log")
    guard.reached(0)
    guard.steps = 7 - rank()
    guard.check()
    return [(one.cause, one.step, one.variable, one.replica, one.worker) for one in guard.findings]


def raises() -> tuple[str, tuple[str | None, ...]]:
    """Return the text and the causes of the error that the guard raises."""
    strategy = pytest_ddl.current_strategy()
    keras.backend.clear_session()
    with strategy.scope():
        model, optimizer = dense()
    guard = pytest_ddl.guard(strategy, model, optimizer)
    guard.step()
    moves_a_weight(model, optimizer)
    try:
        guard.check()
    except pytest_ddl.GuardError as error:
        return str(error), tuple(finding.cause for finding in error.findings)
    return "", ()


def _keras(of: str) -> Any:
    import importlib

    return importlib.import_module(of)


def fit(of: str = "keras", lazily: bool = False, planted: bool = False, **settings: Any) -> list[Found]:
    """Guard ``Model.fit``: three epochs of seven steps, of which the last one is uneven.

    :param planted: True to change a weight of the last replica after the second step of the second epoch.
    """
    from pytest_ddl.keras import ReplicaGuard

    flavor, strategy = _keras(of), pytest_ddl.current_strategy()
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    layers = [flavor.layers.Dense(16), flavor.layers.BatchNormalization(), flavor.layers.Dropout(0.1)]
    with strategy.scope():
        start = [] if lazily else [flavor.layers.InputLayer((FEATURES,))]
        model = flavor.Sequential([*start, *layers, flavor.layers.Dense(1)])
        model.compile(flavor.optimizers.Adam(0.01), "mse", metrics=["mae"], **settings)

    class Planted(flavor.callbacks.Callback):  # type: ignore[name-defined,misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if planted and (self.epoch, batch) == (1, 1):
                moves_a_weight(self.model, None)

    guard = ReplicaGuard(every=EVERY, on_finding="log")
    x, y = (part[:52] for part in numbers())
    given = {"validation_data": (x, y), "callbacks": [Planted(), guard], "batch_size": BATCH, "verbose": 0}
    model.fit(x, y, epochs=3, **given)
    model.fit(x, y, epochs=1, **given)
    return [(one.cause, one.step, one.variable, one.replica, one.worker) for one in guard.findings]


def refusal(**settings: Any) -> str:
    """Return the message with which the guard refuses some arguments."""
    try:
        pytest_ddl.guard(pytest_ddl.current_strategy(), [], **settings)
    except ValueError as error:
        return str(error)
    return ""
