"""Programs that draw random numbers for their examples, right ones and ones with a wrong mean over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

ROWS = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")
TARGETS = ROWS[:, :1] - 2 * ROWS[:, 1:2]


def _data(run: Any, examples: int = 96) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((ROWS[:examples], TARGETS[:examples])).batch(run.global_batch_size)


def _train(run: Any, loss_of: Callable[..., Any], data: Any = None, layers: Any = (), eager: bool = False) -> None:
    """Train with ``loss_of(model, x, y) -> loss of the replica``."""
    with run.strategy.scope():
        hidden = [keras.layers.Dense(5, activation="tanh"), *layers]
        model = keras.Sequential([keras.Input((6,)), *hidden, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(batch: Any) -> Any:
        x, y = (tf.cast(part, model.compute_dtype) for part in batch)
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    def step(iterator: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _ in run.steps(step if eager else tf.function(step), _data(run) if data is None else data):
        pass


def _errors(model: Any, x: Any, y: Any) -> Any:
    return tf.square(model(x, training=True) - y)[:, 0]


def _mean(run: Any, losses: Any) -> Any:
    return tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)


def _all_reduced(value: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce("sum", value)


def _mask(x: Any) -> Any:
    return tf.cast(tf.random.uniform([tf.shape(x)[0]]) < 0.4, x.dtype)


def masked(run: Any, examples: int = 96) -> None:
    def loss_of(model: Any, x: Any, y: Any) -> Any:
        mask = _mask(x)
        return tf.math.divide_no_nan(tf.reduce_sum(_errors(model, x, y) * mask), _all_reduced(tf.reduce_sum(mask)))

    _train(run, loss_of, _data(run, examples))


def masked_in_uneven_batches(run: Any) -> None:
    masked(run, 31)


def masked_by_replica(run: Any, examples: int = 96) -> None:
    """Each replica divides by the number of its own masked examples."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        mask = _mask(x)
        total = tf.reduce_sum(_errors(model, x, y) * mask)
        return tf.math.divide_no_nan(total, tf.reduce_sum(mask)) / run.num_replicas

    _train(run, loss_of, _data(run, examples))


def mixed_up(run: Any, order_of: Any = lambda count: tf.random.shuffle(tf.range(count))) -> None:
    """Each example is mixed with another one of its replica."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        share = tf.cast(tf.random.uniform([tf.shape(x)[0], 1]), x.dtype)
        order = order_of(tf.shape(x)[0])
        x, y = (share * part + (1 - share) * tf.gather(part, order) for part in (x, y))
        return _mean(run, _errors(model, x, y))

    _train(run, loss_of)


def mixed_up_by_sorting(run: Any) -> None:
    mixed_up(run, lambda count: tf.argsort(tf.random.uniform([count])))


def mixed_up_and_weighed_by_replica(run: Any) -> None:
    """The weights of the mixture are divided by their sum on the replica."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        share = tf.cast(tf.random.uniform([tf.shape(x)[0], 1]), x.dtype)
        order = tf.random.shuffle(tf.range(tf.shape(x)[0]))
        mixed = share * x + (1 - share) * tf.gather(x, order)
        losses = share[:, 0] * _errors(model, mixed, y)
        return tf.reduce_sum(losses) / tf.reduce_sum(share) / run.num_replicas

    _train(run, loss_of)


def noise_on_gradients(run: Any, too_little: bool = False) -> None:
    """Each replica adds a part of the noise on the gradient: N independent parts need 1/sqrt(N) of its scale."""
    share = 1 / run.num_replicas if too_little else run.num_replicas**-0.5

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        drawn = [(weight, tf.random.normal(weight.shape, dtype=x.dtype)) for weight in model.trainable_variables]
        noise = tf.add_n([tf.reduce_sum(tf.convert_to_tensor(weight) * normal) for weight, normal in drawn])
        return _mean(run, _errors(model, x, y)) + 0.1 * share * noise

    _train(run, loss_of)


def noise_by_time(run: Any, by_replica: bool = False) -> None:
    """A denoising loss: each example has a random time, and times have weights of their own."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        time = tf.random.uniform([tf.shape(x)[0]], 0, 10, tf.int32)
        noise = tf.cast(tf.random.normal(tf.shape(x)), x.dtype)
        level = tf.cast(time, x.dtype)[:, None] / 10
        weights = 1 / (1 + tf.cast(time, x.dtype))
        losses = weights * _errors(model, (1 - level) * x + level * noise, y)
        if by_replica:
            return tf.reduce_sum(losses) / tf.reduce_sum(weights) / run.num_replicas
        return tf.reduce_sum(losses) / _all_reduced(tf.reduce_sum(weights))

    _train(run, loss_of)


def noise_weighed_by_replica(run: Any) -> None:
    noise_by_time(run, by_replica=True)


def hardest_examples_of_the_replica(run: Any) -> None:
    """Noise is added, and the replica's half with the larger errors is trained on."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        losses = _errors(model, x + 0.3 * tf.cast(tf.random.normal(tf.shape(x)), x.dtype), y)
        count = tf.shape(x)[0] // 2
        return tf.reduce_sum(tf.math.top_k(losses, count).values) / run.global_batch_size

    _train(run, loss_of)


def raw_operations(run: Any) -> None:
    def loss_of(model: Any, x: Any, y: Any) -> Any:
        noise = tf.raw_ops.RandomStandardNormal(shape=tf.shape(x), dtype=tf.float32)
        mask = tf.raw_ops.RandomUniform(shape=tf.shape(x)[:1], dtype=tf.float32) < 0.6
        losses = _errors(model, x + 0.1 * tf.cast(noise, x.dtype), y)
        return _mean(run, losses * tf.cast(mask, x.dtype))

    _train(run, loss_of)


def raw_mask_by_replica(run: Any) -> None:
    def loss_of(model: Any, x: Any, y: Any) -> Any:
        mask = tf.cast(tf.raw_ops.RandomUniform(shape=tf.shape(x)[:1], dtype=tf.float32) < 0.6, x.dtype)
        total = tf.reduce_sum(_errors(model, x, y) * mask)
        return tf.math.divide_no_nan(total, tf.reduce_sum(mask)) / run.num_replicas

    _train(run, loss_of)


def generator(run: Any) -> None:
    with run.strategy.scope():
        made = tf.random.Generator.from_seed(3)

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        return _mean(run, _errors(model, x + 0.1 * made.normal(tf.shape(x), dtype=x.dtype), y))

    _train(run, loss_of)


def micro_batches(run: Any) -> None:
    """Noise is drawn for each half of the examples by an operation of its own."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        parts = zip(tf.split(x, 2), tf.split(y, 2), strict=True)
        noisy = [(half + 0.1 * tf.cast(tf.random.normal(tf.shape(half)), x.dtype), target) for half, target in parts]
        return sum(_mean(run, _errors(model, half, target)) for half, target in noisy)

    _train(run, loss_of)


def micro_batches_in_a_loop(run: Any) -> None:
    def loss_of(model: Any, x: Any, y: Any) -> Any:
        half = tf.shape(x)[0] // 2
        total = tf.zeros([], x.dtype)
        for part in tf.range(2):
            own = x[part * half : (part + 1) * half]
            noise = tf.cast(tf.random.normal(tf.shape(own)), x.dtype)
            total += _mean(run, _errors(model, own + 0.1 * noise, y[part * half : (part + 1) * half]))
        return total

    _train(run, loss_of)


def several_numbers_for_each_example(run: Any) -> None:
    def loss_of(model: Any, x: Any, y: Any) -> Any:
        many, targets = tf.repeat(x, 3, axis=0), tf.repeat(y, 3, axis=0)
        noise = tf.cast(tf.random.normal(tf.shape(many)), x.dtype)
        return _mean(run, _errors(model, many + 0.1 * noise, targets)) / 3

    _train(run, loss_of)


def random_images(run: Any) -> None:
    def loss_of(model: Any, x: Any, y: Any) -> Any:
        images = tf.reshape(x, [-1, 2, 3, 1])
        images = tf.image.random_flip_left_right(tf.image.random_brightness(images, 0.2))
        images = tf.image.stateless_random_contrast(images, 0.5, 1.5, _own_seed(model))
        return _mean(run, _errors(model, tf.reshape(images, [-1, 6]), y))

    _train(run, loss_of)


def _own_seed(model: Any) -> Any:
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    moving = tf.cast(1e6 * tf.reduce_sum(model.trainable_variables[0]), tf.int32)
    return tf.stack([tf.cast(replica, tf.int32), moving])


def sampled_classes(run: Any, loss: Any = tf.nn.sampled_softmax_loss, by_replica: bool = False) -> None:
    """A step of word2vec: each replica draws classes of its own."""
    numbers = np.random.default_rng(3)
    words, labels = numbers.integers(0, 50, 96), numbers.integers(0, 50, (96, 1))
    with run.strategy.scope():
        shapes = {"embeddings": (50, 8), "weights": (50, 8), "biases": (50,)}
        variables = [
            tf.Variable(numbers.normal(size=s).astype("float32") * 0.1, name=name) for name, s in shapes.items()
        ]
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(variables)
    run.watch(variables=variables, optimizer=optimizer)

    def replica_step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            table, weights, biases = (tf.convert_to_tensor(variable) for variable in variables)
            losses = loss(weights, biases, y, tf.gather(table, x), num_sampled=8, num_classes=50)
            value = tf.reduce_mean(losses) if by_replica else _mean(run, losses)
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(value, variables)]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return value

    @tf.function
    def step(iterator: Any) -> Any:
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    data = tf.data.Dataset.from_tensor_slices((words.astype("int64"), labels.astype("int64")))
    for _ in run.steps(step, data.batch(run.global_batch_size)):
        pass


def noise_contrast(run: Any) -> None:
    sampled_classes(run, tf.nn.nce_loss)


def sampled_classes_and_a_mean_by_replica(run: Any) -> None:
    sampled_classes(run, by_replica=True)


def numbers_for_real_words(run: Any) -> None:
    """Numbers are drawn only for the words that are no padding: their count depends on the data."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        real = tf.where(x[:, 0] > 0)
        noise = tf.random.normal([tf.shape(real)[0], 6])
        noisy = tf.tensor_scatter_nd_add(x, real, 0.1 * tf.cast(noise, x.dtype))
        return _mean(run, _errors(model, noisy, y))

    _train(run, loss_of)


def fitted(run: Any) -> None:
    with run.strategy.scope():
        layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dropout(0.4), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    run.watch(model=model, optimizer=model.optimizer)
    run.fit(model, _data(run))


def noise_in_eager_steps(run: Any) -> None:
    def loss_of(model: Any, x: Any, y: Any) -> Any:
        return _mean(run, _errors(model, x + 0.1 * tf.cast(tf.random.normal(tf.shape(x)), x.dtype), y))

    _train(run, loss_of, eager=True)


def noise_over_a_dimension_before_the_examples(run: Any) -> None:
    def loss_of(model: Any, x: Any, y: Any) -> Any:
        noise = tf.cast(tf.random.normal([3, tf.shape(x)[0], 6]), x.dtype)
        return _mean(run, _errors(model, x + 0.1 * tf.reduce_mean(noise, axis=0), y))

    _train(run, loss_of)


def words_found_by_a_mask(run: Any) -> None:
    """Numbers are drawn only for the masked examples. Their count follows from the random mask."""

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        chosen = tf.where(_mask(x) > 0)
        noise = tf.cast(tf.random.normal([tf.shape(chosen)[0], 6]), x.dtype)
        return _mean(run, _errors(model, tf.tensor_scatter_nd_add(x, chosen, 0.1 * noise), y))

    _train(run, loss_of)


def one_example_after_the_other(run: Any, share: float = 1.0) -> None:
    """Each example is made brighter or darker by a number of its own."""

    def brighter(row: Any) -> Any:
        return row * tf.cast(tf.random.uniform([], 0.5, 1.5), row.dtype)

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        return _mean(run, _errors(model, tf.map_fn(brighter, x), y)) * (1 if run.is_reference else share)

    _train(run, loss_of)


def one_example_after_the_other_and_too_much(run: Any) -> None:
    one_example_after_the_other(run, 2.0)


def noise_by_index(run: Any, mapped: Callable[..., Any], own: bool = True) -> None:
    """Each example has a seed of its own, from its index on its replica. Replicas may forget to add their number."""
    with run.strategy.scope():
        done = tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        first = tf.cast(replica, tf.int32) * (1000 if own else 0)
        now = done.assign_add(1)
        noise = mapped(lambda index: tf.random.stateless_normal([6], tf.stack([first + index, now])), tf.shape(x)[0])
        return _mean(run, _errors(model, x + tf.cast(noise, x.dtype), y))

    _train(run, loss_of)


def in_a_loop(draw: Callable[..., Any], count: Any) -> Any:
    return tf.map_fn(draw, tf.range(count), fn_output_signature=tf.float32)


def coins(run: Any, own: bool = True) -> None:
    """The sign of each example is drawn. Replicas may forget to add their number to the seed."""
    with run.strategy.scope():
        done = tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.stack([7 + (tf.cast(replica, tf.int32) if own else 0), done.assign_add(1)])
        coin = tf.random.stateless_uniform([tf.shape(x)[0], 1], seed, maxval=2, dtype=tf.int32)
        return _mean(run, _errors(model, x * tf.cast(2 * coin - 1, x.dtype), y))

    _train(run, loss_of)


def noise_in_a_branch(run: Any, by_replica: bool = False) -> None:
    """Only some examples get noise, which a branch of a vectorized map draws."""

    def noisy(row: Any) -> Any:
        return tf.cond(row[0] > 0, lambda: row + 0.1 * tf.random.normal([6], dtype=row.dtype), lambda: row)

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        errors = _errors(model, tf.vectorized_map(noisy, x), y)
        return tf.reduce_mean(errors) if by_replica else _mean(run, errors)

    _train(run, loss_of)


def vectorized(draw: Callable[..., Any], count: Any) -> Any:
    return tf.vectorized_map(draw, tf.range(count))
