"""Training functions with a loss of several terms, or of a part of its batch: wrong ones and their right twins."""

from __future__ import annotations

import keras
import tensorflow as tf
from gradient_programs import _data, _dense, _reduced, _replica, _train


def _average(run, values):
    return tf.nn.compute_average_loss(values, global_batch_size=run.global_batch_size)


def _terms(run, mean):
    def loss_of(run, errors, batch, model):
        sizes = tf.reduce_sum(tf.abs(model(batch[0])), axis=-1)
        return _average(run, errors) + (tf.reduce_mean(sizes) if mean else _average(run, sizes))

    _train(run, loss_of=loss_of)


def one_term_is_a_mean(run):
    _terms(run, mean=True)


def right_terms(run):
    _terms(run, mean=False)


def penalty_of_a_critic_is_a_mean(run):
    """The last bias of the critic has no gradient at all."""
    with run.strategy.scope():
        critic = _dense()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(critic.trainable_variables)
    run.watch(model=critic, optimizer=optimizer)

    def replica_step(x, *_rest):
        x = tf.cast(x, critic.compute_dtype)
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                output = critic(x)
            steepness = tf.norm(inner.gradient(output, x), axis=1)
            distance = tf.reduce_sum(critic(0.5 * x + 0.2) - output, axis=-1)
            loss = _average(run, distance) + tf.reduce_mean(tf.square(steepness - 1.0))
        gradients = tape.gradient(loss, critic.trainable_variables, unconnected_gradients="zero")
        optimizer.apply_gradients(zip(gradients, critic.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=batch), axis=None)

    for batch in run.batches(_data(run)):
        run.record(step(batch))


def _multiple_of_four(errors):
    return errors[: tf.size(errors) // 4 * 4]


def batch_is_cut_to_a_multiple_of_four(run):
    _train(run, loss_of=lambda run, errors, _b, _m: _average(run, _multiple_of_four(errors)))


def batch_is_cut_and_averaged(run):
    _train(run, loss_of=lambda run, errors, _b, _m: tf.reduce_mean(_multiple_of_four(errors)) / run.num_replicas)


def _returns(run, summed):
    """Weights of the examples with mean 0: the gradient of the last bias is right in any case."""

    def loss_of(run, errors, batch, model):
        returns = tf.reduce_sum(tf.cast(batch[1], errors.dtype), axis=-1)
        count = summed(tf.cast(tf.size(returns), errors.dtype))
        centered = returns - summed(tf.reduce_sum(returns)) / count
        deviation = tf.sqrt(summed(tf.reduce_sum(tf.square(centered))) / count)
        return _average(run, tf.reduce_sum(model(batch[0]), axis=-1) * centered / deviation)

    _train(run, loss_of=loss_of)


def returns_are_standardized(run):
    _returns(run, lambda value: value)


def right_returns(run):
    _returns(run, _reduced)


def hardest_examples_of_the_replica(run):
    """One device leaves out examples too, but others."""

    def loss_of(run, errors, batch, model):
        hardest, _ = tf.math.top_k(errors, tf.size(errors) // 2)
        return tf.reduce_sum(hardest) / run.global_batch_size

    _train(run, loss_of=loss_of)


def weights_of_the_replicas_classes(run):
    def loss_of(run, errors, batch, model):
        first = batch[1][:, 0] > 0.0
        share = tf.reduce_mean(tf.cast(first, errors.dtype))
        return _average(run, errors / tf.where(first, share, 1.0 - share))

    _train(run, loss_of=loss_of)


def _masked(run, valid, summed):
    """Sum over the valid examples by their number."""
    mask = tf.cast(valid % 2 == 1, tf.float64)
    return mask / summed(tf.reduce_sum(mask))


def _normalized(run, shares):
    def model():
        return _dense([keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(3, activation="tanh")])

    _train(run, model=model, loss_of=lambda run, errors, batch, _m: tf.reduce_sum(errors * shares(run, batch[3])))


def masked_behind_synchronized_normalization(run):
    _normalized(run, lambda run, valid: _masked(run, valid, lambda count: count * run.num_replicas))


def right_masked_behind_synchronized_normalization(run):
    _normalized(run, lambda run, valid: _masked(run, valid, _reduced))


def _two_heads(run, summed):
    def model():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(4, activation="tanh")(inputs)
        return keras.Model(inputs, keras.layers.Concatenate()([keras.layers.Dense(1)(hidden) for _ in range(2)]))

    def loss_of(run, errors, batch, model):
        output = tf.square(model(batch[0]) - batch[1])
        return _average(run, output[:, 0]) + tf.reduce_sum(output[:, 1] * _masked(run, batch[3], summed(run)))

    _train(run, model=model, loss_of=loss_of)


def masked_term_beside_another(run):
    _two_heads(run, lambda run: lambda count: count * run.num_replicas)


def right_masked_term_beside_another(run):
    _two_heads(run, lambda _run: _reduced)


def _of_pairs(run, first):
    """Both sides of a pair; the other side is gathered from all replicas."""

    def loss_of(run, errors, batch, model):
        ours = tf.math.l2_normalize(model(batch[0]), axis=1)
        theirs = tf.math.l2_normalize(model(tf.reverse(batch[0], [1])), axis=1)
        every = tf.distribute.get_replica_context().all_gather(theirs, axis=0)
        rows = tf.shape(ours)[0]
        logits = tf.matmul(ours, every, transpose_b=True)
        return _average(run, tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(rows) + first(rows), logits))

    _train(run, loss_of=loss_of)


def positives_lack_the_offset_of_the_replica(run):
    _of_pairs(run, lambda rows: 0)


def right_contrastive(run):
    _of_pairs(run, lambda rows: rows * _replica())


def _by_example(run, change):
    """``change(replica, targets)`` acts before the loss."""

    def loss_of(run, errors, batch, model):
        targets = change(_replica(), tf.cast(batch[1], errors.dtype))
        return _average(run, tf.reduce_sum(tf.square(model(batch[0]) - targets), axis=-1))

    _train(run, loss_of=loss_of)


def labels_are_reversed_on_one_replica(run):
    _by_example(run, lambda replica, targets: tf.where(replica == 1, targets[::-1], targets))


def labels_are_rolled_under_the_strategy(run):
    _by_example(run, lambda _r, targets: tf.roll(targets, 1, 0) if run.num_replicas > 1 else targets)


def targets_are_negated_on_one_replica(run):
    _by_example(run, lambda replica, targets: tf.where(replica == 1, -targets, targets))


def targets_are_negated_on_one_replica_that_gathers(run):
    """Gather targets correctly; the gathering is not the reason of the defect."""

    def change(replica, targets):
        every = tf.distribute.get_replica_context().all_gather(targets, axis=0)
        return tf.where(replica == 1, -targets, targets) + 0.0 * tf.reduce_sum(every)

    _by_example(run, change)


def _ratios(run, of_gradients):
    """Each weight's gradient is multiplied by the ratio of the norms of the weight and of its gradient."""

    def update(run, optimizer, gradients, variables):
        own = of_gradients(gradients)
        ratios = [tf.norm(tf.convert_to_tensor(v)) / (tf.norm(g) + 0.01) for v, g in zip(variables, own, strict=True)]
        scaled = [ratio * gradient for ratio, gradient in zip(ratios, gradients, strict=True)]
        optimizer.apply_gradients(zip(scaled, variables, strict=True))

    _train(run, update=update)


def ratios_of_the_replicas_gradients(run):
    _ratios(run, lambda gradients: gradients)


def right_ratios(run):
    _ratios(run, _reduced)


def worst_example_of_the_replica(run):
    _train(run, loss_of=lambda run, errors, _b, _m: tf.reduce_max(errors) / run.num_replicas)


def _contrastive(output, sharpness=10.0):
    similarity = tf.matmul(output, output, transpose_b=True)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(similarity)[0]), sharpness * similarity)


def contrastive_and_divided_twice(run):
    """Divided by the size of the global batch, and by the number of replicas."""

    def loss_of(run, errors, batch, model):
        return _average(run, _contrastive(model(batch[0]))) / run.num_replicas

    _train(run, loss_of=loss_of)


def contrastive_in_full(run):
    def loss_of(run, errors, batch, model):
        return tf.reduce_mean(_contrastive(model(batch[0]), sharpness=1.0))

    _train(run, loss_of=loss_of)


def contrastive_term_divided_by_the_replicas(run):
    """The division is right, and hides from one device what the replicas compute."""

    def loss_of(run, errors, batch, model):
        return _average(run, errors) + tf.reduce_mean(_contrastive(model(batch[0]))) / run.num_replicas

    _train(run, loss_of=loss_of)


def one_mean_is_divided_twice(run):
    """No term couples examples."""

    def loss_of(run, errors, batch, model):
        sizes = tf.reduce_sum(tf.abs(model(batch[0])), axis=-1)
        count = tf.distribute.get_replica_context().num_replicas_in_sync
        return _average(run, errors) + tf.reduce_mean(sizes) / count**2

    _train(run, loss_of=loss_of)


def replicas_have_weights_of_their_own(run):
    def loss_of(run, errors, batch, model):
        weights = tf.constant([1.0, 3.0], errors.dtype)
        return _average(run, errors) * weights[tf.distribute.get_replica_context().replica_id_in_sync_group]

    _train(run, loss_of=loss_of)


def _actor(run, average):
    """An actor whose first update comes in the second step, with a network that follows it."""
    with run.strategy.scope():
        actor, follower, critic = _dense(), _dense(), _dense()
        optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)]
        for network, optimizer in zip((actor, critic), optimizers, strict=True):
            optimizer.build(network.trainable_variables)
    for network, optimizer in ((actor, optimizers[0]), (critic, optimizers[1]), (follower, None)):
        run.watch(model=network, optimizer=optimizer)

    def move(network, optimizer, loss_of):
        with tf.GradientTape() as tape:
            loss = loss_of()
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        return loss

    def move_critic(x, y, *_rest):
        def loss_of():
            target = tf.cast(y, critic.compute_dtype) + follower(x)
            return _average(run, tf.reduce_sum(tf.square(critic(x) - target), axis=-1))

        return move(critic, optimizers[1], loss_of)

    def move_actor(x, *_rest):
        def loss_of():
            return average(tf.reduce_sum(tf.square(actor(x) - tf.stop_gradient(critic(x))), axis=-1))

        move(actor, optimizers[0], loss_of)
        for slow, fast in zip(follower.variables, actor.variables, strict=True):
            slow.assign(0.9 * slow + 0.1 * fast)

    @tf.function
    def critic_step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(move_critic, args=batch), axis=None)

    @tf.function
    def actor_step(batch):
        run.strategy.run(move_actor, args=batch)

    for number, batch in enumerate(run.batches(_data(run))):
        loss = critic_step(batch)
        if number % 2:
            actor_step(batch)
        run.record(loss)


def mean_of_a_delayed_actor(run):
    _actor(run, tf.reduce_mean)


def right_delayed_actor(run):
    _actor(run, lambda losses: _average(run, losses))


def _weighs(run, own):
    """The examples of the first replica have the weight 0 in the first step."""
    with run.strategy.scope():
        model = _dense()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    numbers = tf.data.Dataset.range(48).batch(run.global_batch_size)

    def replica_step(number, batch):
        weights = tf.cast(number >= 6, model.compute_dtype)
        count = tf.reduce_sum(weights)
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(model(batch[0]) - tf.cast(batch[1], weights.dtype)), axis=-1)
            total = tf.reduce_sum(weights * errors)
            if own:
                loss = tf.math.divide_no_nan(total, count) / run.num_replicas
            else:
                loss = total / tf.distribute.get_replica_context().all_reduce("sum", count)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batch):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=batch), axis=None)

    for batch in run.batches(tf.data.Dataset.zip(numbers, _data(run))):
        run.record(step(batch))


def weights_of_a_replica_are_zero(run):
    _weighs(run, own=True)


def right_weights_of_zero(run):
    _weighs(run, own=False)
