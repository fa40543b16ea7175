"""Training functions whose gradients go wrong on the way to the weights, each named by its sin, and right twins."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, FEATURES, WORDS = 48, 6, 10


def _data(run, size=None):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    x += np.linspace(0, 2, EXAMPLES, dtype="float32")[:, None]
    y = generator.normal(size=(EXAMPLES, 2)).astype("float32")
    words = np.sort(generator.integers(0, WORDS, size=(EXAMPLES, 3)), axis=1)
    valid = (np.arange(EXAMPLES) % 5 + 1).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y, words, valid)).batch(size or run.global_batch_size)


def _dense(layers=(), **kwargs):
    return keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(4, activation="tanh", **kwargs), *layers, keras.layers.Dense(2)]
    )


def _train(run, *, optimizer=None, model=None, loss_of=None, update=None, inputs=0, size=None):
    """The usual loop; ``loss_of(run, errors, batch, model)`` and ``update(run, optimizer, …)`` replace its parts."""
    with run.strategy.scope():
        model = _dense() if model is None else model()
        optimizer = keras.optimizers.SGD(0.1) if optimizer is None else optimizer()
        if hasattr(optimizer, "build"):
            optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            with tf.GradientTape() as tape:
                output = model(batch[inputs], training=True)
                target = tf.cast(batch[1], output.dtype)
                errors = tf.reduce_sum(tf.square(output - target), axis=-1)
                if loss_of is None:
                    loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
                else:
                    loss = loss_of(run, errors, batch, model)
            gradients = tape.gradient(loss, model.trainable_variables)
            if update is None:
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            else:
                update(run, optimizer, gradients, model.trainable_variables)
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, _data(run, size)):
        pass


def _reduced(gradients, op="sum"):
    return tf.distribute.get_replica_context().all_reduce(op, gradients)


def _assign(variables, gradients, rate=0.1):
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(rate * tf.convert_to_tensor(gradient))


def _mean(run, errors, batch, model):
    return tf.reduce_mean(errors)


def right(run):
    _train(run)


def right_adam(run):
    _train(run, optimizer=lambda: keras.optimizers.Adam(0.01))


def right_clipping_after_the_sum(run):
    def update(run, optimizer, gradients, variables):
        clipped, _ = tf.clip_by_global_norm(_reduced(gradients), 0.5)
        _assign(variables, clipped)

    _train(run, update=update)


def mean_with_adam(run):
    _train(run, optimizer=lambda: keras.optimizers.Adam(0.01), loss_of=_mean)


def mean_with_momentum(run):
    _train(run, optimizer=lambda: keras.optimizers.SGD(0.01, momentum=0.9), loss_of=_mean)


def _replica():
    return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group)


def first_example_is_left_out(run):
    def loss_of(run, errors, batch, model):
        left_out = (tf.range(tf.size(errors)) == 0) & (_replica() == 1)
        errors = tf.where(left_out, tf.zeros_like(errors), errors)
        return tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)

    _train(run, loss_of=loss_of)


def one_replica_skips_its_second_step(run):
    def update(run, optimizer, gradients, variables):
        skips = (_replica() == 1) & (tf.convert_to_tensor(optimizer.iterations.value) == 1)
        given = [tf.where(skips, tf.zeros_like(gradient), gradient) for gradient in gradients]
        optimizer.apply_gradients(zip(given, variables, strict=True))

    _train(run, optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9), update=update)


def mean_on_uneven_batches(run):
    _train(run, loss_of=_mean, size=11)


def mean_with_rmsprop(run):
    _train(run, optimizer=lambda: keras.optimizers.RMSprop(0.01), loss_of=_mean)


def mean_with_dropout(run):
    _train(run, model=lambda: _dense([keras.layers.Dropout(0.3)]), loss_of=_mean)


def reduced_twice(run):
    def update(run, optimizer, gradients, variables):
        optimizer.apply_gradients(zip(_reduced(gradients), variables, strict=True))

    _train(run, update=update)


def averaged_over_replicas_again(run):
    _train(run, update=lambda run, optimizer, gradients, variables: _assign(variables, _reduced(gradients, "mean")))


def biases_not_reduced(run):
    def update(run, optimizer, gradients, variables):
        whole = _reduced(gradients)
        _assign(variables, [g if g.shape.rank == 1 else s for g, s in zip(gradients, whole, strict=True)])

    _train(run, update=update)


def clipped_by_keras(run):
    _train(run, optimizer=lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.3))


def clipped_by_keras_adam(run):
    _train(run, optimizer=lambda: keras.optimizers.Adam(0.1, clipvalue=0.02))


def _embedding():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            layers.Embedding(WORDS, 2),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )


def clipped_by_hand(run):
    def update(run, optimizer, gradients, variables):
        clipped, _ = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_gradients(zip(clipped, variables, strict=True))

    _train(run, update=update)


def clipped_by_hand_each_variable(run):
    def update(run, optimizer, gradients, variables):
        clipped = [tf.clip_by_norm(gradient, 0.2) for gradient in gradients]
        optimizer.apply_gradients(zip(clipped, variables, strict=True))

    _train(run, update=update)


def small_penalty_on_each_replica(run):
    penalty_on_each_replica(run, 1e-6)


def penalty_on_each_replica(run, factor=0.05):
    def loss_of(run, errors, batch, model):
        data = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
        return data + tf.add_n(model.losses)

    model = lambda: _dense(kernel_regularizer=keras.regularizers.L2(factor))  # noqa: E731
    _train(run, optimizer=lambda: keras.optimizers.Adam(0.01), model=model, loss_of=loss_of)


def masked_mean_on_each_replica(run):
    def loss_of(run, errors, batch, model):
        weight = tf.cast(batch[3], errors.dtype)
        return tf.reduce_sum(errors * weight) / tf.reduce_sum(weight) / run.num_replicas

    _train(run, loss_of=loss_of)


def masked_mean_summed(run):
    def loss_of(run, errors, batch, model):
        weight = tf.cast(batch[3], errors.dtype)
        return tf.reduce_sum(errors * weight) / tf.reduce_sum(weight)

    _train(run, loss_of=loss_of)


def contrastive_on_each_replica(run):
    def loss_of(run, errors, batch, model):
        output = model(batch[0])
        similarity = tf.matmul(output, output, transpose_b=True)
        labels = tf.range(tf.shape(similarity)[0])
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, similarity)
        return tf.nn.compute_average_loss(each, global_batch_size=run.global_batch_size)

    _train(run, loss_of=loss_of)


def rows_of_an_embedding_mixed_up(run):
    def model():
        return keras.Sequential(
            [keras.Input((3,), dtype="int32"), keras.layers.Embedding(WORDS, 2), keras.layers.GlobalAveragePooling1D()]
        )

    def update(run, optimizer, gradients, variables):
        summed = []
        for gradient in gradients:
            if isinstance(gradient, tf.IndexedSlices):
                values = _reduced(gradient.values)
                gradient = tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
                summed.append(gradient)
            else:
                summed.append(_reduced(gradient))
        _assign(variables, summed)

    _train(run, model=model, update=update, inputs=2)


def fit_with_a_sum_over_activations(run):
    class Penalty(keras.layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * tf.reduce_sum(tf.square(x)))
            return x

    fit_with_clipping(run, [Penalty()], None)


def fit_with_clipping(run, layers=(), clipnorm=0.1):
    with run.strategy.scope():
        model = _dense(layers)
        model.compile(optimizer=keras.optimizers.SGD(0.1, clipnorm=clipnorm), loss="mse")
    run.watch(model=model)
    run.fit(model, _data(run).map(lambda x, y, words, valid: (x, y)), epochs=1, verbose=0)


def fit_with_clipping_of_a_sparse_gradient(run):
    """Train on examples that only Keras sees, so that no run on a replica's part can decide."""

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            generator = np.random.default_rng(index)
            return generator.integers(0, WORDS, size=(12, 3)), generator.normal(size=(12, 1))

    with run.strategy.scope():
        model = _embedding()
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, global_clipnorm=0.1)
        model.compile(optimizer=optimizer, loss="mse")
    run.watch(model=model)
    run.fit(model, Batches(), epochs=1, shuffle=False)


def right_fit(run):
    with run.strategy.scope():
        model = _dense(kernel_regularizer=keras.regularizers.L2(0.05))
        model.compile(optimizer=keras.optimizers.AdamW(0.01), loss="mse")
    run.watch(model=model)
    run.fit(model, _data(run).map(lambda x, y, words, valid: (x, y)), epochs=1, verbose=0)


def right_penalty_divided_by_the_replicas(run):
    def loss_of(run, errors, batch, model):
        data = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
        return data + tf.nn.scale_regularization_loss(tf.add_n(model.losses))

    _train(run, model=lambda: _dense(kernel_regularizer=keras.regularizers.L2(0.05)), loss_of=loss_of)


def right_loss_scale(run):
    with run.strategy.scope():
        model = _dense()
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            with tf.GradientTape() as tape:
                errors = tf.reduce_sum(tf.square(model(batch[0]) - tf.cast(batch[1], model.compute_dtype)), axis=-1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, _data(run)):
        pass


def right_micro_batches_in_a_step(run):
    def update(run, optimizer, gradients, variables):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    with run.strategy.scope():
        model = _dense()
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)

    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            sums, loss = [tf.zeros_like(v) for v in model.trainable_variables], 0.0
            for part in range(3):
                rows = slice(part * 2, part * 2 + 2) if run.num_replicas > 1 else slice(part * 4, part * 4 + 4)
                with tf.GradientTape() as tape:
                    output = model(batch[0][rows])
                    errors = tf.reduce_sum(tf.square(output - tf.cast(batch[1][rows], output.dtype)), axis=-1)
                    part_loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
                gradients = tape.gradient(part_loss, model.trainable_variables)
                sums = [old + new for old, new in zip(sums, gradients, strict=True)]
                loss += part_loss
            update(run, optimizer, sums, model.trainable_variables)
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, _data(run)):
        pass


def right_in_single_precision(run):
    def loss_of(run, errors, batch, model):
        return tf.nn.compute_average_loss(tf.cast(errors, tf.float32), global_batch_size=run.global_batch_size)

    model = lambda: keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(2, dtype="float32")])  # noqa: E731
    _train(run, model=model, loss_of=loss_of, optimizer=lambda: keras.optimizers.SGD(0.05, momentum=0.9))


def mean_in_single_precision(run):
    model = lambda: keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(2, dtype="float32")])  # noqa: E731
    _train(run, model=model, loss_of=_mean, optimizer=lambda: keras.optimizers.Adam(0.05))


def masked_in_single_precision(run):
    def loss_of(run, errors, batch, model):
        weight = tf.cast(batch[3], errors.dtype)
        return tf.reduce_sum(errors * weight) / tf.reduce_sum(weight) / run.num_replicas

    model = lambda: keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(2, dtype="float32")])  # noqa: E731
    _train(run, model=model, loss_of=loss_of, optimizer=lambda: keras.optimizers.Adam(0.05))
