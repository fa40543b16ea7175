"""Examples that are seen twice or never, and batches of the wrong size."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def _train(run, data):
    """Train on batches with ids, from the data that the program made."""
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, batch["x"], batch["y"]))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step, data)


def workers_shuffle_differently(run, sin):
    """Every worker keeps every other batch of its own order."""
    seed = run.rank if sin else 1
    _train(run, loops.numbered_dataset(run).shuffle(48, seed=seed).batch(run.global_batch_size))


def workers_shuffle_differently_without_ids(run, sin):
    """The same with plain tuples, several epochs, and a seed taken from the operating system."""
    seed = int.from_bytes(__import__("os").urandom(4), "little") if sin and run.num_ranks > 1 else 5
    data = tf.data.Dataset.from_tensor_slices(loops.regression(16)).shuffle(16, seed=seed)
    model, optimizer = loops.keras_program(run)

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loops.train(run, replica_step, data.batch(run.global_batch_size))


def every_worker_reads_everything(run, sin):
    """A dataset function that does not look at its context's pipeline."""

    def data(context):
        examples = loops.numbered_dataset(run)
        if not sin:
            examples = examples.shard(context.num_input_pipelines, context.input_pipeline_id)
        return examples.batch(context.get_per_replica_batch_size(run.global_batch_size))

    _train(run, data)


def every_worker_draws_the_same_examples(run, sin):
    """Sampling with NumPy from a generator that every worker seeds alike; each takes what it drew."""

    def data(context):
        order = np.random.default_rng(1).permutation(48)
        size = context.get_per_replica_batch_size(run.global_batch_size)
        if sin:
            order = order[: 48 // context.num_input_pipelines]
        else:
            steps = order.reshape(-1, context.num_input_pipelines, run.global_batch_size // context.num_input_pipelines)
            order = steps[:, context.input_pipeline_id].reshape(-1)
        x, y = loops.regression()
        examples = {"x": x[order], "y": y[order], "example_id": order}
        return tf.data.Dataset.from_tensor_slices(examples).batch(size)

    _train(run, data)


def replicas_get_whole_global_batches(run, sin):
    """A dataset function that batches by the global batch size."""

    def data(context):
        examples = loops.numbered_dataset(run).shard(context.num_input_pipelines, context.input_pipeline_id)
        size = run.global_batch_size if sin else context.get_per_replica_batch_size(run.global_batch_size)
        return examples.batch(size)

    _train(run, data)


def batch_is_divided_by_the_replicas_twice(run, sin):
    """Batched by the replica's share, and then split once more by the strategy."""
    size = run.global_batch_size // run.strategy.num_replicas_in_sync if sin else run.global_batch_size
    _train(run, loops.numbered_dataset(run).batch(size))


def data_is_sharded_twice(run, sin):
    """The program shards the data by hand, and experimental_distribute_dataset shards it again."""
    examples = loops.numbered_dataset(run, rows=48)
    if sin:
        examples = examples.shard(run.num_ranks, run.rank)
    _train(run, examples.batch(run.global_batch_size))


def tail_of_every_shard_is_dropped(run, sin):
    """44 examples in batches of 8, without the partial batch if there are several replicas."""
    examples = loops.numbered_dataset(run, rows=44)
    _train(run, examples.batch(run.global_batch_size, drop_remainder=sin and run.num_replicas > 1))


def workers_have_different_numbers_of_batches(run, sin):
    """Sharded by batches, of which there are five; of a fixed size, so that none can be empty."""

    def data(context):
        examples = loops.numbered_dataset(run, rows=20)
        pipelines, mine = context.num_input_pipelines, context.input_pipeline_id
        size = context.get_per_replica_batch_size(run.global_batch_size)
        if not sin:
            examples = examples.take(16)
        return examples.batch(size, drop_remainder=True).shard(pipelines, mine)

    _train(run, data)


def files_are_fewer_than_workers(run, sin):
    """One file, sharded by file."""
    path = run.rank_path / "examples.tfrecord"
    x, y = loops.regression()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row, target in zip(x, y, strict=True):
            writer.write(np.concatenate([row, target]).tobytes())

    def parse(record):
        row = tf.io.decode_raw(record, tf.float32)
        return {"x": tf.reshape(row[:-1], (loops.FEATURES,)), "y": tf.reshape(row[-1:], (1,))}

    policies = tf.data.experimental.AutoShardPolicy
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.FILE if sin else policies.DATA
    data = tf.data.TFRecordDataset([str(path)]).map(parse).batch(run.global_batch_size)
    _train(run, data.with_options(options))


def copy_to_the_second_device_loses_data(run, sin):
    """A copy ahead of the step that zeroes rows on one replica, as a broken peer-to-peer transfer did."""
    model, optimizer = loops.keras_program(run)

    def copy(batch):
        x, y = batch
        broken = tf.cast(tf.logical_and(sin, loops.replica_id() == 1), x.dtype)
        first_row = tf.cast(tf.range(tf.shape(x)[0]) == 0, x.dtype)[:, None]
        return x * (1 - broken * first_row), y

    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def to_device(batch):
        return run.strategy.run(copy, args=(batch,))

    @tf.function
    def train_step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    for batch in run.batches(loops.dataset(run)):
        run.record(loss=train_step(to_device(batch)))


def fit_takes_a_shard_of_a_shard(run, sin):
    """Keras' fit with a dataset that was sharded by replica by hand."""
    with run.strategy.scope():
        model = loops.perceptron()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    run.watch(model=model)
    data = tf.data.Dataset.from_tensor_slices(loops.regression())
    if sin:
        data = data.shard(run.strategy.num_replicas_in_sync, 0)
    run.fit(model, data.batch(run.global_batch_size), shuffle=False, epochs=1)


DROPPED, DUPLICATED = "examples-dropped", "examples-duplicated"
WORKERS = ("multi_worker_mirrored",)
PLANTED = (
    planted("D01", workers_shuffle_differently, DUPLICATED, DROPPED, strategies=WORKERS, steps=None),
    planted("D01", workers_shuffle_differently_without_ids, DUPLICATED, DROPPED, strategies=WORKERS, steps=None),
    planted("D09", every_worker_reads_everything, DUPLICATED, strategies=WORKERS),
    planted("D09", every_worker_draws_the_same_examples, DUPLICATED, strategies=WORKERS),
    planted("", replicas_get_whole_global_batches, "global-batch-wrong"),
    planted("", batch_is_divided_by_the_replicas_twice, "global-batch-wrong"),
    planted("", data_is_sharded_twice, DROPPED, strategies=WORKERS, steps=None),
    planted("", tail_of_every_shard_is_dropped, DROPPED, "unequal-steps", steps=None),
    planted(
        "D05",
        workers_have_different_numbers_of_batches,
        "unequal-steps",
        symptom="hang",
        strategies=WORKERS,
        steps=None,
        sin_timeout=60,
    ),
    planted(
        "D03",
        files_are_fewer_than_workers,
        "unequal-steps",
        "examples-dropped",
        "worker-raised",
        symptom="crash",
        strategies=WORKERS,
        sin_timeout=60,
    ),
    planted("D17", copy_to_the_second_device_loses_data, DROPPED),
    planted("", fit_takes_a_shard_of_a_shard, DROPPED, "unequal-steps", strategies=("mirrored",), steps=None),
)
