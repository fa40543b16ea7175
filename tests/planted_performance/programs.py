"""Training functions with one planted performance problem each, and well-tuned ones."""

from __future__ import annotations

import time

import numpy as np
import tensorflow as tf

WIDTH = 64


def _data(run, width=WIDTH, examples=4096, classes=10):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, width)).astype(np.float32)
    y = rng.integers(0, classes, size=examples)
    return tf.data.Dataset.from_tensor_slices((x, y))


def _weights(*shapes):
    return [
        tf.Variable(tf.random.stateless_normal(shape, [1, number]) / np.sqrt(shape[0]), name=f"w{number}")
        for number, shape in enumerate(shapes)
    ]


def _forward(weights, x):
    for weight in weights[:-1]:
        x = tf.nn.relu(x @ weight)
    return x @ weights[-1]


def _step(run, weights, forward=_forward, reduce=None, compiled=True):
    """Return a step of gradient descent with one all-reduce for all gradients."""
    reduce = reduce or (lambda context, gradients: context.all_reduce(tf.distribute.ReduceOp.SUM, gradients))

    def replica(x, y):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, forward(weights, x))
            loss = tf.reduce_sum(losses) / run.global_batch_size
        gradients = tape.gradient(loss, weights)
        gradients = reduce(tf.distribute.get_replica_context(), gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(tf.cast(gradient, weight.dtype) * 0.01)
        return loss

    def step(iterator):
        return run.strategy.run(replica, args=next(iterator))

    return tf.function(step) if compiled else step


def _batches(run, **given):
    return _data(run, **given).batch(run.global_batch_size, drop_remainder=True).cache().repeat().prefetch(2)


def tuned_wide(run):
    """Deep layers, a large batch, data in memory, one all-reduce."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 192), *[(192, 192)] * 6, (192, 10))
    run.watch(variables=weights)
    # The batch is so large that the costs of a step that do not depend on it are below a tenth on an idle machine, too.
    for _loss in run.steps(_step(run, weights), _batches(run, examples=32_768)):
        pass


def tuned_wide_on_one_device(run):
    """The same network on one device."""
    tuned_wide(run)


def tuned_convolution(run):
    """Convolutions have much work for few parameters."""
    with run.strategy.scope():
        kernels = [
            tf.Variable(tf.random.stateless_normal(shape, [2, number]) * 0.1, name=f"k{number}")
            for number, shape in enumerate([(3, 3, 1, 16), (3, 3, 16, 16)])
        ]
        weights = [*kernels, *_weights((16 * 16, 10))]
    run.watch(variables=weights)

    def forward(weights, x):
        x = tf.reshape(x, [-1, 16, 16, 1])
        for kernel in weights[:2]:
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))
        x = tf.reshape(tf.nn.avg_pool2d(x, 4, 4, "SAME"), [-1, 16 * 16])
        return x @ weights[2]

    for _loss in run.steps(_step(run, weights, forward=forward), _batches(run, width=256, examples=4096)):
        pass


def tuned_fit(run):
    """Keras trains with a large batch, several steps in one call, and shows its metrics once in an epoch."""
    import keras

    with run.strategy.scope():
        layers = [keras.layers.Dense(384, "relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"], steps_per_execution=16)
    run.watch(model)
    run.fit(model, _data(run).batch(run.global_batch_size, drop_remainder=True).cache().prefetch(2))


def slow_map(run):
    """One thread reads each batch from storage with a latency of 20 ms."""

    def read(x, y):
        def wait(values):
            time.sleep(0.02)
            return values

        return tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), x.shape), y

    with run.strategy.scope():
        weights = _weights((WIDTH, 256), (256, 10))
    run.watch(variables=weights)
    data = _data(run).cache().repeat().batch(run.global_batch_size, drop_remainder=True).map(read)
    for _loss in run.steps(_step(run, weights), data):
        pass


def tiny_batch(run):
    """The command gives a batch of 2 examples."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 64), (64, 10))
    run.watch(variables=weights)
    for _loss in run.steps(_step(run, weights), _batches(run)):
        pass


def eager(run):
    """The step is not in a tf.function."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 64), (64, 64), (64, 10))
    run.watch(variables=weights)
    for _loss in run.steps(_step(run, weights, compiled=False), _batches(run)):
        pass


def many_small_reductions(run):
    """Each of 40 small gradients has an all-reduce of its own."""
    with run.strategy.scope():
        weights = _weights(*[(WIDTH, WIDTH)] * 40, (WIDTH, 10))
    run.watch(variables=weights)

    def one_by_one(context, gradients):
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, gradient) for gradient in gradients]

    for _loss in run.steps(_step(run, weights, reduce=one_by_one), _batches(run)):
        pass


def tiny_packs(run):
    """The reduction of all gradients is split into packs of 64 bytes."""
    with run.strategy.scope():
        weights = _weights(*[(WIDTH, WIDTH)] * 40, (WIDTH, 10))
    run.watch(variables=weights)
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=64)

    def in_packs(context, gradients):
        return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients, options)

    for _loss in run.steps(_step(run, weights, reduce=in_packs), _batches(run)):
        pass


def wide_gradients(run):
    """Gradients of a large layer are cast to float64 before they are reduced."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 20_000), (20_000, 10))
    run.watch(variables=weights)

    def widened(context, gradients):
        return context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.cast(one, tf.float64) for one in gradients])

    for _loss in run.steps(_step(run, weights, reduce=widened), _batches(run)):
        pass


def large_gradients(run):
    """The gradients of a large layer are reduced in float32. The batch is large, so that a larger one helps little."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 20_000), (20_000, 10))
    run.watch(variables=weights)
    for _loss in run.steps(_step(run, weights), _batches(run)):
        pass


def gathers_everything(run):
    """Each step gathers the gradients and the weights of all replicas, to look at their norms."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 4000), (4000, 10))
    run.watch(variables=weights)

    def gathered(context, gradients):
        flat = tf.concat([tf.reshape(one, [1, -1]) for one in [*gradients, *weights, *gradients]], axis=1)
        norm = tf.reduce_max(tf.norm(context.all_gather(flat, axis=0), axis=1))
        reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        # The norm is used, so that it stays in the graph.
        return [one + 0.0 * norm for one in reduced]

    for _loss in run.steps(_step(run, weights, reduce=gathered), _batches(run)):
        pass


def dense_embedding(run):
    """A table of 40 000 rows is looked up through a copy, so that its gradient is dense."""
    rows = 40_000
    with run.strategy.scope():
        table = tf.Variable(tf.random.stateless_normal((rows, 32), [1, 2]), name="table")
        weights = [table, *_weights((32, 64), (64, 10))]
    run.watch(variables=weights)

    def forward(weights, ids):
        # The product with 1 makes a dense gradient of the whole table.
        return _forward(weights[1:], tf.reduce_mean(tf.gather(weights[0] * 1.0, ids), axis=1))

    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, rows, size=(4096, 8)), rng.integers(0, 10, size=4096)
    data = tf.data.Dataset.from_tensor_slices((ids, labels)).cache().repeat()
    data = data.batch(run.global_batch_size, drop_remainder=True).prefetch(2)
    for _loss in run.steps(_step(run, weights, forward=forward), data):
        pass


def retraces(run):
    """The step takes a Python number that changes with each step."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 256), (256, 10))
    run.watch(variables=weights)
    inner = _step(run, weights, compiled=False)
    count = 0

    @tf.function
    def step(iterator, number):
        return inner(iterator) * (1.0 if number else 0.0)

    def numbered(iterator):
        nonlocal count
        count += 1
        return step(iterator, count)

    for _loss in run.steps(numbered, _batches(run)):
        pass


def host_call(run):
    """Each step calls a Python function to keep a histogram."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 256), (256, 10))
    run.watch(variables=weights)
    kept = []

    def keep(values):
        kept[:] = [np.histogram(np.repeat(values, 1000), bins=200)]
        return np.float32(0)

    def forward(weights, x):
        logits = _forward(weights, x)
        return logits + tf.numpy_function(keep, [logits], tf.float32)

    for _loss in run.steps(_step(run, weights, forward=forward), _batches(run)):
        pass


def reads_weights(run):
    """After each step, all weights are read and sorted on the host."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 4000), (4000, 10))
    run.watch(variables=weights)
    norms = []
    for _loss in run.steps(_step(run, weights), _batches(run)):
        norms[:] = [np.sort(np.abs(weight.numpy()), axis=None) for weight in weights]


def evaluates_each_step(run):
    """After each step, the loss on 4096 examples is computed and shown."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 256), (256, 10))
    run.watch(variables=weights)
    x, y = next(iter(_data(run).batch(4096)))

    @tf.function
    def evaluated():
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, _forward(weights, x)))

    for loss in run.steps(_step(run, weights), _batches(run)):
        print(float(loss), float(evaluated()))


def unbalanced(run):
    """The second worker takes seven eighths of each batch."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 128), (128, 128), (128, 10))
    run.watch(variables=weights)

    def forward(weights, x):
        # One matrix is used several times, so that there is more to compute than to reduce.
        return _forward([weights[0], *[weights[1]] * 8, weights[2]], x)

    def make(context):
        share = run.global_batch_size // 8
        size = share if context.input_pipeline_id == 0 else run.global_batch_size - share
        return _data(run).cache().repeat().batch(size, drop_remainder=True).prefetch(2)

    for _loss in run.steps(_step(run, weights, forward=forward), make):
        pass


def slow_worker(run):
    """The second worker needs three times as long for the same work, like a slower machine."""
    with run.strategy.scope():
        weights = _weights((WIDTH, 1000), (1000, 10))
    run.watch(variables=weights)

    def forward(weights, x):
        logits = _forward(weights, x)
        for _ in range(8 if run.rank == 1 else 0):
            logits = logits + 1e-9 * _forward(weights, x + tf.reduce_mean(logits))
        return logits

    for _loss in run.steps(_step(run, weights, forward=forward), _batches(run)):
        pass


def reads_blocks(run):
    """A reader fetches 16 batches from slow storage at once, and tf.data may not add its own prefetching."""

    def read():
        rng = np.random.default_rng(0)
        shape = (16, run.global_batch_size)
        for _ in range(1000):
            time.sleep(0.08)
            yield from zip(rng.normal(size=(*shape, WIDTH)).astype(np.float32), rng.integers(0, 10, shape), strict=True)

    with run.strategy.scope():
        weights = _weights((WIDTH, 384), *[(384, 384)] * 6, (384, 10))
    run.watch(variables=weights)
    batch = (tf.TensorSpec((None, WIDTH), tf.float32), tf.TensorSpec((None,), tf.int64))
    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_generator(read, output_signature=batch).with_options(options)
    for _loss in run.steps(_step(run, weights), data):
        pass


def heavy_input(run):
    """The pipeline sorts each batch many times in one operation, which no parallel call can split."""

    def work(x, y):
        for _ in range(60):
            x = tf.sort(x + 1e-6, axis=0)
        return x, y

    def one_thread(dataset):
        options = tf.data.Options()
        options.threading.private_threadpool_size = 1
        return dataset.with_options(options)

    with run.strategy.scope():
        weights = _weights((WIDTH, 64), (64, 10))
    run.watch(variables=weights)
    data = _data(run).cache().repeat().batch(run.global_batch_size, drop_remainder=True).map(work)
    for _loss in run.steps(_step(run, weights), one_thread(data)):
        pass


def python_callback(run):
    """Keras's fit calls a callback that does work after each batch."""
    import keras

    class Histogram(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for weight in self.model.get_weights():
                np.histogram(np.repeat(weight, 20), bins=100)

    with run.strategy.scope():
        model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    run.watch(model)
    data = _data(run).cache().batch(run.global_batch_size, drop_remainder=True).prefetch(2)
    run.fit(model, data, callbacks=[Histogram()])
