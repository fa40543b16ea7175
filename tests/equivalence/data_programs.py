"""Training functions about data, interruption and files: right ones, and wrong ones named by their sin."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, FEATURES = 48, 4


def _examples():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, generator.normal(size=(EXAMPLES, 1)).astype("float32")))


def _make(run):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def _step(run, model, optimizer, total=None):
    @tf.function
    def train_step(iterator):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.square(model(x) - y)[:, 0]
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            if total is not None:
                total.assign_add(tf.cast(tf.reduce_sum(y), total.dtype))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    return train_step


def _train(run, dataset):
    model, optimizer = _make(run)
    run.watch(model=model, optimizer=optimizer)
    for _loss in run.steps(_step(run, model, optimizer), dataset):
        pass
    return model


def _per_worker(run, of_worker):
    def dataset(context):
        return of_worker(context).batch(context.get_per_replica_batch_size(run.global_batch_size))

    return dataset


def _shard(context):
    return _examples().shard(context.num_input_pipelines, context.input_pipeline_id)


def shuffles_with_a_seed(run):
    _train(run, _examples().shuffle(EXAMPLES, seed=1).batch(run.global_batch_size))


def shards_and_then_shuffles(run):
    _train(run, _per_worker(run, lambda context: _shard(context).shuffle(EXAMPLES).repeat()))


def augments_at_random(run):
    def moved(x, y):
        return x + tf.random.normal(tf.shape(x), stddev=0.1), y

    _train(run, _examples().map(moved).batch(run.global_batch_size))


def shuffles_without_a_seed(run):
    _train(run, _examples().shuffle(EXAMPLES).batch(run.global_batch_size))


def shuffles_and_repeats_without_a_seed(run):
    _train(run, _examples().shuffle(EXAMPLES).repeat().batch(run.global_batch_size))


def ignores_the_shard(run):
    _train(run, _per_worker(run, lambda _context: _examples()))


def distributes_one_shard(run, shards=1):
    """The loop ends before the data does. Without the other shards, half of the examples is never trained on."""
    model, optimizer = _make(run)
    run.watch(model=model, optimizer=optimizer)
    number = run.strategy.num_replicas_in_sync
    parts = [_examples().shard(number, index) for index in range(min(shards, number))]
    turns = tf.data.Dataset.range(len(parts)).repeat()
    dataset = tf.data.Dataset.choose_from_datasets(parts, turns)
    step = _step(run, model, optimizer)
    iterator = iter(run.strategy.experimental_distribute_dataset(dataset.batch(run.global_batch_size)))
    run.record(loss=step(iterator))


def distributes_all_shards(run):
    distributes_one_shard(run, shards=2)


def begins_where_the_first_steps_of_another_end(run):
    """In three steps, two workers consume the first 36 examples once. Then the first worker repeats the others'."""
    _train(run, _per_worker(run, lambda context: _examples().skip(18 * context.input_pipeline_id)))


def draws_with_one_seed_on_every_worker(run):
    def drawn(_context):
        return _examples().shuffle(EXAMPLES, seed=7)

    _train(run, _per_worker(run, drawn))


def _interrupted(run, *, optimizer_too=True, on_chief_alone=False, skip=lambda done: done):
    model, optimizer = _make(run)
    saved = {"model": model, "optimizer": optimizer} if optimizer_too else {"model": model}
    checkpoint = tf.train.Checkpoint(**saved)
    path = str((run.tmp_path if run.rank == 0 else run.rank_path) / "checkpoint")
    if run.attempt == 2 and (run.rank == 0 or not on_chief_alone):
        checkpoint.read(path)
    run.watch(model=model, optimizer=optimizer)
    dataset = _examples().batch(run.global_batch_size).skip(skip(run.completed_steps))
    for _loss in run.steps(_step(run, model, optimizer), dataset):
        if run.completed_steps == 2 and run.attempt == 1 and not run.is_reference:
            checkpoint.write(path)
            run.restart()


def goes_on(run):
    _interrupted(run)


def forgets_the_optimizer(run):
    _interrupted(run, optimizer_too=False)


def restores_on_the_chief_alone(run):
    _interrupted(run, on_chief_alone=True)


def begins_the_data_again(run):
    _interrupted(run, skip=lambda _done: 0)


def saves_where_the_chief_saves(run):
    model = _train(run, _examples().batch(run.global_batch_size))
    tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(run.tmp_path / "saved"), 1).save()


def saves_where_nobody_else_does(run):
    model = _train(run, _examples().batch(run.global_batch_size))
    folder = run.tmp_path if run.rank == 0 else run.rank_path
    model.save_weights(str(folder / "model.weights.h5"))
    model.save(str(folder / "model.keras"))
    np.savez(folder / "model.npz", *model.get_weights())


def goes_back_to_a_checkpoint_without_the_optimizer(run):
    model, optimizer = _make(run)
    run.watch(model=model, optimizer=optimizer)
    path = str(run.rank_path / "checkpoint")
    for _loss in run.steps(_step(run, model, optimizer), _examples().batch(run.global_batch_size)):
        if run.completed_steps == 1:
            tf.train.Checkpoint(model=model).write(path)
        if run.completed_steps == 2:
            tf.train.Checkpoint(model=model, optimizer=optimizer).read(path)


# -- tensors of the program beside its data, and state that is saved as a sum ---------------------


def _evaluates(run, operation):
    """Give every replica the same examples of the program itself, after each step."""
    model, optimizer = _make(run)
    run.watch(model=model, optimizer=optimizer)
    examples = tuple(tf.constant(part) for part in next(_examples().batch(30).as_numpy_iterator()))

    @tf.function
    def evaluate(*given):
        errors = run.strategy.run(lambda x, y: tf.reduce_mean(tf.square(model(x) - y)), args=given)
        return run.strategy.reduce(operation, errors, axis=None)

    for _loss in run.steps(_step(run, model, optimizer), _examples().batch(run.global_batch_size)):
        run.value("error", float(evaluate(*examples)))


def evaluates_on_every_replica(run):
    _evaluates(run, "MEAN")


def adds_up_equal_evaluations(run):
    _evaluates(run, "SUM")


def _restores_a_sum(run, **left_out):
    """A sum over the replicas is given back to them in equal parts, and not as they were."""
    model, optimizer = _make(run)
    of_each = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
    with run.strategy.scope():
        total = tf.Variable(0.0, trainable=False, **of_each)
    run.watch(model=model, optimizer=optimizer, variables=[total])
    path = str((run.tmp_path if run.rank == 0 else run.rank_path) / "checkpoint")
    whole = {"model": model, "optimizer": optimizer, "total": total}
    for _loss in run.steps(_step(run, model, optimizer, total), _examples().batch(run.global_batch_size)):
        if run.completed_steps == 1:
            tf.train.Checkpoint(**{**whole, **left_out}).write(path)
        if run.completed_steps == 2:
            tf.train.Checkpoint(**whole).read(path)


def restores_a_sum(run):
    _restores_a_sum(run)


def restores_a_sum_that_was_not_saved(run):
    _restores_a_sum(run, total=tf.train.Checkpoint())


def _by_hand(run, parts):
    """Batches that are divided in the graph of the step, before the replica function gets them."""
    model, optimizer = _make(run)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(x, y):
        return _descends(run, model, optimizer, x, y)

    @tf.function
    def step(x, y):
        number = run.strategy.num_replicas_in_sync
        per_replica = run.strategy.experimental_distribute_values_from_function
        xs, ys = parts(x, y, number)
        args = (
            per_replica(lambda c: xs[c.replica_id_in_sync_group]),
            per_replica(lambda c: ys[c.replica_id_in_sync_group]),
        )
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=args), axis=None)

    for x, y in _examples().batch(run.global_batch_size):
        run.record(step(x, y))


def _descends(run, model, optimizer, x, y):
    with tf.GradientTape() as tape:
        losses = tf.square(model(x) - y)[:, 0]
        loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


def divides_batches_by_hand(run):
    _by_hand(run, lambda x, y, number: (tf.split(x, number), tf.split(y, number)))


def deals_examples_out_by_hand(run):
    _by_hand(
        run, lambda x, y, number: ([x[at::number] for at in range(number)], [y[at::number] for at in range(number)])
    )


def gives_the_first_part_to_all(run):
    _by_hand(run, lambda x, y, number: (tf.split(x, number)[:1] * number, tf.split(y, number)[:1] * number))


def divides_labels_otherwise(run):
    _by_hand(run, lambda x, y, number: ([x[at::number] for at in range(number)], tf.split(y, number)))


def _by_the_replica(run, place):
    """Whole batches for all replicas, of which each trains on a slice."""
    model, optimizer = _make(run)
    run.watch(model=model, optimizer=optimizer)

    def replica_step(x, y):
        size = run.global_batch_size // run.num_replicas
        first = size * place(tf.distribute.get_replica_context().replica_id_in_sync_group)
        return _descends(run, model, optimizer, x[first : first + size], y[first : first + size])

    @tf.function
    def step(x, y):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(x, y)), axis=None)

    for x, y in _examples().batch(run.global_batch_size):
        run.record(step(x, y))


def takes_slices_in_the_replica_function(run):
    _by_the_replica(run, lambda replica: replica)


def takes_one_slice_on_all_replicas(run):
    _by_the_replica(run, lambda replica: replica * 0)
