"""Right programs that pass more to ``strategy.run`` than their batch, in every way that a program gets a batch."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

X = np.random.default_rng(3).normal(size=(16, 6)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]


def _data(run, examples=None):
    given = (X, Y) if examples is None else examples
    return tf.data.Dataset.from_tensor_slices(given).batch(run.global_batch_size)


def _weight(run):
    with run.strategy.scope():
        weight = tf.Variable(tf.zeros([6, 1]), name="weight", aggregation=tf.VariableAggregation.SUM)
    run.watch(variables=weight)
    return weight


def _descend(run, weight, x, y, factor=1.0):
    with tf.GradientTape() as tape:
        loss = factor * tf.reduce_sum(tf.square(x @ weight - y)) / run.global_batch_size
    gradient = tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, weight))
    weight.assign_sub(0.05 * gradient / run.num_replicas)  # the variable adds up what the replicas subtract
    return loss


def _total(run, losses):
    return run.strategy.reduce("SUM", losses, axis=None)


def in_graph(run):
    """Pass a mask in front of the batch and weights of classes behind it."""
    weight = _weight(run)

    def replica_step(mask, batch, weights):
        x, y = batch
        return _descend(run, weight, x * mask, y, tf.reduce_mean(weights))

    @tf.function
    def step(iterator):
        args = (tf.ones([6]), next(iterator), tf.ones([4]))
        return _total(run, run.strategy.run(replica_step, args=args))

    for _loss in run.steps(step, _data(run)):
        pass


def by_name(run):
    """Pass a part of a dict by name, with a constant that has as many rows as a replica's batch."""
    weight = _weight(run)

    def replica_step(alpha, features, labels):
        return _descend(run, weight, features, labels, tf.reduce_mean(alpha))

    @tf.function
    def step(iterator):
        batch = next(iterator)
        kwargs = {"labels": batch["y"], "features": batch["x"], "alpha": tf.ones([4])}
        return _total(run, run.strategy.run(replica_step, kwargs=kwargs))

    for _loss in run.steps(step, _data(run, {"x": X, "y": Y})):
        pass


def through_functions(run):
    """Take the batch eagerly, and pass it through two functions to a replica function."""
    weight = _weight(run)

    def replica_step(rates, batch):
        return _descend(run, weight, *batch, tf.reduce_mean(rates))

    @tf.function
    def inner(rates, batch):
        return _total(run, run.strategy.run(replica_step, args=(rates, batch)))

    @tf.function
    def outer(rates, batch):
        return inner(rates, batch)

    for batch in run.batches(_data(run)):
        run.record(outer(tf.ones([4]), batch))


def eagerly(run):
    """Take the batch and run the replica function without any function."""
    weight = _weight(run)

    def replica_step(batch, rates):
        return _descend(run, weight, *batch, tf.reduce_mean(rates))

    iterator = iter(run.strategy.experimental_distribute_dataset(_data(run)))
    for _step in range(2):
        run.record(_total(run, run.strategy.run(replica_step, args=(next(iterator), tf.ones([4])))))


def in_a_loop(run):
    """Loop over the dataset within a function."""
    weight = _weight(run)
    dataset = run.strategy.experimental_distribute_dataset(_data(run))

    def replica_step(rates, batch):
        return _descend(run, weight, *batch, tf.reduce_mean(rates))

    @tf.function
    def epoch():
        total = 0.0
        for batch in dataset:
            total += _total(run, run.strategy.run(replica_step, args=(tf.ones([4]), batch)))
        return total

    run.record(epoch())


def teacher(run):
    """Compute outputs of a teacher in one call, and pass them with the batch to another one."""
    weight = _weight(run)

    def teach(batch):
        return tf.exp(batch[0]) @ tf.fill([6, 1], 0.3)

    def replica_step(targets, batch):
        return _descend(run, weight, batch[0], targets)

    @tf.function
    def step(batch):
        targets = run.strategy.run(teach, args=(batch,))
        return _total(run, run.strategy.run(replica_step, args=(targets, batch)))

    for batch in run.batches(_data(run)):
        run.record(step(batch))


def augmented(run):
    """Change the batch in one call, and train on the result in another one."""
    weight = _weight(run)

    def augment(batch):
        return 2.0 * batch[0], tf.identity(batch[1])

    def replica_step(rates, batch):
        return _descend(run, weight, *batch, tf.reduce_mean(rates))

    @tf.function
    def step(iterator):
        batch = run.strategy.run(augment, args=(next(iterator),))
        return _total(run, run.strategy.run(replica_step, args=(tf.ones([4]), batch)))

    for _loss in run.steps(step, _data(run)):
        pass


def uneven_parts(run):
    """Pass ragged and sparse parts of a batch."""
    weight = _weight(run)

    def replica_step(scale, batch):
        x = tf.sparse.to_dense(batch["x"])
        words = tf.reduce_sum(batch["words"], axis=[1, 2])[:, None]
        return _descend(run, weight, tf.reshape(x, [-1, 6]), words, tf.reduce_mean(scale))

    @tf.function
    def step(iterator):
        return _total(run, run.strategy.run(replica_step, args=(tf.ones([3]), next(iterator))))

    words = tf.ragged.constant([[[float(n)] * (1 + n % 2)] * (1 + n % 3) for n in range(16)])
    examples = {"words": words, "x": tf.sparse.from_dense(X)}
    for _loss in run.steps(step, _data(run, examples)):
        pass


def own_data(run):
    """Make the data in the replica function, and pass a constant to it."""
    weight = _weight(run)

    def replica_step(rates):
        x = tf.constant(X[:4])
        return _descend(run, weight, x, tf.constant(Y[:4]), tf.reduce_mean(rates) * 2 / run.num_replicas)

    @tf.function
    def step():
        return _total(run, run.strategy.run(replica_step, args=(tf.ones([2]),)))

    for _step in range(2):
        run.record(step())


def time_first(run):
    """Train on sequences whose first dimension is time, without labels."""
    weight = _weight(run)

    def replica_step(x):
        return _descend(run, weight, tf.reduce_mean(x, axis=0), 0.5)

    @tf.function
    def step(iterator):
        return _total(run, run.strategy.run(replica_step, args=(next(iterator),)))

    def data(context):
        dataset = tf.data.Dataset.from_tensor_slices(np.stack([X, X + 1, X - 2], axis=1))
        size = context.get_per_replica_batch_size(run.global_batch_size)
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        return dataset.batch(size).map(lambda x: tf.transpose(x, [1, 0, 2]))

    for _loss in run.steps(step, data):
        pass
