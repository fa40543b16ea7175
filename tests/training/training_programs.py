"""Training programs for the tests, as users write them; imported inside the workers."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def examples(count: int, width: int = 4, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    x = generator.normal(size=(count, width)).astype(dtype)
    return x, x[:, :1] * 2 + 1


def batched(count: int, size: int, ids: bool = False, dtype: str = "float32") -> tf.data.Dataset:
    x, y = examples(count, dtype=dtype)
    entries: Any = {"x": x, "y": y, "example_id": np.arange(count)} if ids else (x, y)
    return tf.data.Dataset.from_tensor_slices(entries).batch(size)


def step_of(run: Any, model: Any, optimizer: Any) -> Any:
    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
            with tf.GradientTape() as tape:
                errors = tf.square(model(x, training=True) - y)[:, 0]
                loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    return train_step


def make(run: Any, flavour: Any = keras, **settings: Any) -> tuple[Any, Any]:
    with run.strategy.scope():
        model = flavour.Sequential([flavour.layers.Dense(3, activation="tanh"), flavour.layers.Dense(1)])
        model.build((None, 4))
        optimizer = flavour.optimizers.SGD(0.1, momentum=0.9, **settings)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def custom_loop(run: Any) -> None:
    model, optimizer = make(run)
    run.watch(model=model, optimizer=optimizer)

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        size = context.get_per_replica_batch_size(run.global_batch_size)
        x, y = examples(24)
        data = tf.data.Dataset.from_tensor_slices((x, y))
        return data.shard(context.num_input_pipelines, context.input_pipeline_id).batch(size)

    for loss in run.steps(step_of(run, model, optimizer), dataset):
        assert isinstance(loss, float)


def large_and_untrained(run: Any) -> None:
    model, optimizer = make(run)
    with run.strategy.scope():
        table = tf.Variable(tf.ones((40, 50)), trainable=False, name="table")
    run.watch(model=model, optimizer=optimizer, variables=[table])
    list(run.steps(step_of(run, model, optimizer), batched(24, run.global_batch_size)))


def lazily_built_by_tf_keras(run: Any) -> None:
    """``fit`` builds the layers. The program then draws from Python's generator."""
    import tf_keras

    with run.strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
        model.compile(tf_keras.optimizers.SGD(0.1), "mse")
    run.watch(model=model, optimizer=model.optimizer)
    run.fit(model, batched(24, run.global_batch_size), verbose=0)
    run.value("drawn", random.random())


def dataset_loop(run: Any) -> None:
    """13 examples in batches of 8: the last batch is odd, and with 1 replica more than examples empty."""
    model, optimizer = make(run)
    run.watch(model=model, optimizer=optimizer)
    list(run.steps(step_of(run, model, optimizer), batched(13, run.global_batch_size, ids=True)))


def one_example(run: Any) -> None:
    model, optimizer = make(run)
    run.watch(model=model, optimizer=optimizer)
    list(run.steps(step_of(run, model, optimizer), batched(3, 1)))


def contract(run: Any) -> None:
    """The example of the documentation, to the letter: nothing is built before the loop."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
    run.watch(model=model, optimizer=optimizer)
    list(run.steps(step_of(run, model, optimizer), batched(24, run.global_batch_size)))


def tf_keras_loop(run: Any) -> None:
    import tf_keras

    model, optimizer = make(run, tf_keras)
    run.watch(model=model, optimizer=optimizer)
    list(run.steps(step_of(run, model, optimizer), batched(16, run.global_batch_size)))


def late_layers(run: Any, flavour: Any = keras) -> None:
    """Model and optimizer are built by the first batch."""
    with run.strategy.scope():
        model = flavour.Sequential([flavour.layers.Dense(2), flavour.layers.Dense(1)])
        optimizer = flavour.optimizers.SGD(0.1, momentum=0.9)
    run.watch(model=model, optimizer=optimizer)
    list(run.steps(step_of(run, model, optimizer), batched(16, run.global_batch_size)))


def late_tf_keras_layers(run: Any) -> None:
    import tf_keras

    late_layers(run, tf_keras)


def batch_norm(run: Any) -> None:
    with run.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.BatchNormalization(synchronized=False),
                keras.layers.Dropout(0.5, seed=1),
                keras.layers.Dense(2, trainable=False, kernel_regularizer=keras.regularizers.L2(0.1)),
                keras.layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), clipnorm=1.0)
        optimizer.build(model.trainable_variables)
    run.watch(model=model)
    run.watch(optimizer=optimizer)
    list(run.steps(step_of(run, model, optimizer), batched(16, run.global_batch_size)))


def embedding(run: Any, name: str = "SGD") -> None:
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(10, 3)])
        model.add(keras.layers.Flatten())
        model.add(keras.layers.Dense(1))
        optimizer = getattr(keras.optimizers, name)(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    ids = np.arange(32).reshape(16, 2) % 10
    data = tf.data.Dataset.from_tensor_slices((ids.astype("int32"), ids[:, :1].astype("float32")))
    list(run.steps(step_of(run, model, optimizer), data.batch(run.global_batch_size)))


def embedding_with_adagrad(run: Any) -> None:
    embedding(run, "Adagrad")


def raises_at_two(run: Any) -> None:
    model, optimizer = make(run)
    run.watch(model=model, optimizer=optimizer)
    for _ in run.steps(step_of(run, model, optimizer), batched(64, run.global_batch_size)):
        if run.completed_steps == 2:
            raise ValueError("after step two")


def exits(_run: Any) -> None:
    raise SystemExit(3)


def restarts(run: Any) -> None:
    model, optimizer = make(run)
    run.watch(model=model, optimizer=optimizer)
    for _ in run.steps(step_of(run, model, optimizer), batched(64, run.global_batch_size)):
        if run.completed_steps == 2:
            run.restart()


def plain_variables(run: Any) -> None:
    """A loop that drives itself: no Keras, eager, ``batches`` and ``record``, recorded ids."""
    with run.strategy.scope():
        weights = {
            "w": tf.Variable(tf.ones((4, 1)), aggregation=tf.VariableAggregation.MEAN),
            "count": tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA),
        }
    run.watch(variables=weights)

    def replica_step(batch):
        run.examples(batch["example_id"] + 100)
        with tf.GradientTape() as tape:
            error = tf.matmul(batch["x"], weights["w"]) - batch["y"]
            loss = tf.reduce_sum(error**2) / run.global_batch_size
        gradient = tape.gradient(loss, weights["w"])
        total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
        weights["w"].assign_sub(0.1 * total)
        weights["count"].assign_add(1)
        return loss

    for batch in run.batches(batched(16, run.global_batch_size, ids=True)):
        losses = run.strategy.run(replica_step, args=(batch,))
        run.record(loss=run.strategy.reduce("SUM", losses, axis=None), extra=2.5)


def two_loops(run: Any) -> None:
    model, optimizer = make(run)
    run.watch(model=model, optimizer=optimizer)
    step = step_of(run, model, optimizer)
    first = list(run.steps(step, batched(64, run.global_batch_size), steps=2))
    second = list(run.steps(step, batched(64, run.global_batch_size)))
    assert (len(first), len(second)) == (2, 3)


def metrics(run: Any) -> None:
    with run.strategy.scope():
        mean = keras.metrics.Mean(name="mean")
    run.watch(metrics=mean)

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            mean.update_state(batch[0])

        run.strategy.run(replica_step, args=(next(iterator),))

    list(run.steps(train_step, batched(16, run.global_batch_size)))


def fits(run: Any) -> None:
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    run.watch(model=model)
    run.fit(model, batched(32, run.global_batch_size), epochs=2)
    run.evaluate(model, batched(16, run.global_batch_size))
    run.predict(model, batched(16, run.global_batch_size))


def fits_tf_keras(run: Any) -> None:
    import tf_keras

    with run.strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
        model.compile(tf_keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    run.watch(model=model)
    run.fit(model, batched(32, run.global_batch_size), epochs=2)
    run.evaluate(model, batched(16, run.global_batch_size), return_dict=True)


def fits_tf_keras_epochs(run: Any) -> None:
    import tf_keras

    with run.strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
        model.compile(tf_keras.optimizers.SGD(0.1), "mse")
    run.watch(model=model)
    run.fit(model, batched(32, run.global_batch_size).repeat(), epochs=2, steps_per_epoch=3)


def fits_arrays(run: Any) -> None:
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    run.watch(model=model)
    x, y = examples(32)
    run.fit(model, x, y=y, batch_size=run.global_batch_size, shuffle=False)


def compiled(run: Any) -> None:
    """A replica function under XLA: the observing operation cannot be compiled into it."""
    with run.strategy.scope():
        weight = tf.Variable(1.0)
    run.watch(variables=[weight])

    @tf.function(jit_compile=True)
    def whole_step(x):
        return run.strategy.run(lambda value: weight.assign_add(tf.reduce_sum(value)), args=(x,))

    for batch, _ in run.batches(batched(16, run.global_batch_size)):
        whole_step(batch)
        run.record()


def dtypes(run: Any) -> None:
    model, optimizer = make(run)
    run.watch(model=model, optimizer=optimizer)
    seen = []
    for x, y in run.batches(batched(8, 4)):
        seen.append((x.dtype.name, y.dtype.name))
    run.record(**{f"{name}": 1.0 for pair in seen for name in pair})


def casts(run: Any, eager: bool = False) -> None:
    """Casts to float16 in the step, and its loss to bfloat16 outside."""
    with run.strategy.scope():
        weight = tf.Variable(tf.ones([4, 1]))
    run.watch(variables=[weight])

    def train_step(iterator):
        def replica_step(batch):
            with tf.GradientTape() as tape:
                shown = tf.cast(tf.cast(batch[0], tf.float16) @ tf.cast(weight, tf.float16), tf.float32)
                loss = tf.reduce_mean(tf.square(shown - batch[1]))
            weight.assign_sub(0.1 * tape.gradient(loss, weight))
            return loss

        loss = run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)
        return tf.cast(loss, tf.bfloat16)

    for _loss in run.steps(train_step if eager else tf.function(train_step), batched(16, 8)):
        pass


def casts_after_a_failure(run: Any, eager: bool = False) -> None:
    """The first replica function of each step raises; the cast is outside of every replica function."""
    with run.strategy.scope():
        weight = tf.Variable(tf.ones([4, 1]))
    run.watch(variables=[weight])

    def refused() -> Any:
        raise ValueError("not on this device")

    def train_step(iterator):
        batch = next(iterator)
        with contextlib.suppress(ValueError):
            run.strategy.run(refused)
        return tf.cast(tf.reduce_mean(batch[0] @ weight), tf.bfloat16)

    for _loss in run.steps(train_step if eager else tf.function(train_step), batched(16, 8)):
        pass


def asynchronous(run: Any) -> None:
    model, optimizer = make(run)
    run.watch(model=model, optimizer=optimizer)

    def dataset(_context):
        return batched(64, run.global_batch_size).repeat()

    losses = list(run.steps(step_of(run, model, optimizer), dataset, concurrent=True))
    assert len(losses) == run.steps_limit


def overlaps(run: Any) -> None:
    """Five batches of a finite dataset, and then as many of a dataset function."""
    model, optimizer = make(run)
    with run.strategy.scope():
        # Keras reads and then writes its iterations, so that workers at the same time can count one less.
        count = tf.Variable(0, dtype=tf.int64, trainable=False)
    run.watch(model=model, optimizer=optimizer)
    train_step = step_of(run, model, optimizer)

    @tf.function
    def step(iterator):
        count.assign_add(1)
        return train_step(iterator)

    assert len(list(run.steps(step, batched(40, run.global_batch_size)))) == 5
    assert len(list(run.steps(step, lambda _context: batched(40, run.global_batch_size)))) == 5
    assert len(list(run.steps(step, batched(40, run.global_batch_size), steps=2))) == 2
    if isinstance(run.strategy, tf.distribute.ParameterServerStrategy):
        # No step runs beyond the limit of a loop. Elsewhere, a call that finds no more data counts one, too.
        assert int(count.numpy()) == 12


def leaves_a_mess(_run: Any) -> None:
    keras.config.set_floatx("float16")
    keras.config.set_dtype_policy("mixed_bfloat16")
    tf.config.run_functions_eagerly(True)


def tells_state(run: Any) -> None:
    run.record(
        floatx=float(keras.config.floatx() == "float32"),
        policy=float(keras.config.dtype_policy().name == "float32"),
        eager=float(tf.config.functions_run_eagerly()),
        draw=np.random.random(),
    )


def squared_errors(run: Any, errors: Any) -> Any:
    if tf.reduce_sum(errors) < 0:  # a tensor: only AutoGraph can take this branch in a graph
        errors = -errors
    return tf.nn.compute_average_loss(tf.square(errors), global_batch_size=run.global_batch_size)


def needs_autograph(run: Any) -> None:
    model, optimizer = _watched(run)

    def replica_step(batch):
        return _learn(run, model, optimizer, batch)

    @tf.function
    def train_step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    _count_conversions(run, train_step)


def a_function_in_a_function_needs_autograph(run: Any) -> None:
    model, optimizer = _watched(run)

    @tf.function
    def train_step(batch):
        def replica_step(batch):
            return _learn(run, model, optimizer, batch)

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    _count_conversions(run, train_step)


def _watched(run: Any) -> tuple[Any, Any]:
    model, optimizer = make(run)
    run.watch(model=model, optimizer=optimizer)
    return model, optimizer


def _learn(run: Any, model: Any, optimizer: Any, batch: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = squared_errors(run, (model(batch[0], training=True) - batch[1])[:, 0])
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return loss


def _count_conversions(run: Any, train_step: Any) -> None:
    # AutoGraph finds the conversions of an earlier run in this process until its functions are collected.
    gc.collect()
    before = set(sys.modules)
    for batch in run.strategy.experimental_distribute_dataset(batched(24, run.global_batch_size)):
        run.record(loss=train_step(batch))
        run.value("converted", sum(name.startswith("__autograph_generated_file") for name in set(sys.modules) - before))
