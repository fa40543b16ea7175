"""Programs that draw random numbers in their replica functions, each in its own way."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

EXAMPLES = 24


def _loop(run: Any, draw: Any, eager: bool = False) -> None:
    """Trains one weight; ``draw(x, replica, step)`` makes what is added to the examples."""
    with run.strategy.scope():
        weight = tf.Variable(tf.ones([3], keras.backend.floatx()), name="weight")
        step = tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    run.watch(variables=[weight])
    x = tf.reshape(tf.range(3.0 * EXAMPLES), (EXAMPLES, 3)) / 100
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(run.global_batch_size)

    def replica_step(batch: Any) -> Any:
        context = tf.distribute.get_replica_context()
        noise = tf.cast(draw(batch, context.replica_id_in_sync_group, step.read_value()), batch.dtype)
        return tf.reduce_sum((batch + noise) * weight) / run.global_batch_size

    def train_step(batch: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    train_step = train_step if eager else tf.function(train_step)
    for batch in run.batches(dataset):
        loss = train_step(batch)
        step.assign_add(1)
        run.record(loss=loss)


def _seed(replica: Any, step: Any) -> Any:
    return tf.stack([tf.cast(replica, tf.int32), tf.cast(step, tf.int32)])


def stateless(run: Any) -> None:
    _loop(run, lambda x, replica, step: tf.random.stateless_normal(tf.shape(x), _seed(replica, step)))


def eager(run: Any) -> None:
    _loop(run, lambda x, replica, step: tf.random.stateless_normal(tf.shape(x), _seed(replica, step)), eager=True)


def folded(run: Any) -> None:
    """Making a seed is no draw."""

    def draw(x: Any, replica: Any, step: Any) -> Any:
        seed = tf.random.experimental.stateless_fold_in(tf.stack([7, step]), replica)
        return tf.random.stateless_uniform(tf.shape(x), tf.random.split(seed, 2)[0])

    _loop(run, draw)


def legacy(run: Any) -> None:
    _loop(run, lambda x, _replica, _step: tf.nn.dropout(tf.ones_like(x), 0.5) + tf.random.normal(tf.shape(x)))


def in_a_loop(run: Any) -> None:
    def draw(x: Any, replica: Any, step: Any) -> Any:
        def body(i: Any, total: Any) -> Any:
            return i + 1, total + tf.random.stateless_normal(tf.shape(x), _seed(replica, 9 * step + i))

        return tf.while_loop(lambda i, _total: i < 2, body, (0, tf.zeros(tf.shape(x))))[1]

    _loop(run, draw)


def nested_function(run: Any) -> None:
    @tf.function
    def noise(shape: Any, seed: Any) -> Any:
        return tf.random.stateless_normal(shape, seed)

    _loop(run, lambda x, replica, step: noise(tf.shape(x), _seed(replica, step)))


def every_kind(run: Any) -> None:
    """Integers, categories, an order, gamma and Poisson numbers."""

    def draw(x: Any, _replica: Any, _step: Any) -> Any:
        rows = tf.shape(x)[0]
        integers = tf.random.uniform((rows, 1), 0, 10, tf.int32)
        categories = tf.random.categorical(tf.math.log([[0.2, 0.7, 0.1]]) * tf.ones((rows, 1)), 1)
        order = tf.random.shuffle(tf.range(rows))[:, None]
        numbers = tf.random.gamma((rows, 1), 2.0) + tf.random.poisson((rows, 1), 3.0)
        return sum(tf.cast(part, x.dtype) for part in (integers, categories, order, numbers))

    _loop(run, draw)


def under_a_name_of_initializers(run: Any) -> None:
    """A draw of the program's own, in a scope with a name that TensorFlow gives to initial values."""

    def draw(x: Any, replica: Any, step: Any) -> Any:
        with tf.name_scope("Initializer"):
            return tf.random.stateless_normal(tf.shape(x), _seed(replica, step))

    _loop(run, draw)


def creates_a_variable(run: Any) -> None:
    """The first call draws the initial value of a variable, which is no draw of a step."""
    made: list[Any] = []

    def draw(x: Any, replica: Any, step: Any) -> Any:
        if not made:
            made.append(tf.Variable(lambda: tf.random.normal([3]), name="scale"))
        return tf.random.stateless_normal(tf.shape(x), _seed(replica, step)) * made[0]

    _loop(run, draw)


def seeds_of_keras(run: Any) -> None:
    """A generator, a number, and a seed of the generator in a function of TensorFlow."""
    with run.strategy.scope():
        generator = keras.random.SeedGenerator(1, name="generator")

    def draw(x: Any, _replica: Any, _step: Any) -> Any:
        drawn = [keras.random.normal(tf.shape(x), seed=seed) for seed in (generator, 7)]
        return sum(drawn) + tf.random.stateless_normal(tf.shape(x), generator.next(), dtype=drawn[0].dtype)

    _loop(run, draw)


def draws_nothing(run: Any) -> None:
    _loop(run, lambda x, _replica, _step: tf.zeros_like(x))


def one_by_one(run: Any) -> None:
    _loop(run, lambda x, _replica, _step: tf.map_fn(lambda row: tf.random.normal([3], dtype=row.dtype), x))


def vectorized(run: Any) -> None:
    def draw(x: Any, replica: Any, step: Any) -> Any:
        first = tf.cast(replica, tf.int32) * 1000
        indices = tf.range(tf.shape(x)[0])
        return tf.vectorized_map(lambda index: tf.random.stateless_normal([3], _seed(first + index, step)), indices)

    _loop(run, draw)


def vectorized_twice(run: Any) -> None:
    def draw(x: Any, _replica: Any, _step: Any) -> Any:
        def row(_index: Any) -> Any:
            return tf.vectorized_map(lambda _column: tf.random.normal([], dtype=x.dtype), tf.range(3))

        return tf.vectorized_map(row, tf.range(tf.shape(x)[0]))

    _loop(run, draw)
