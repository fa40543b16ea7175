"""Recipes of the documentation that save and restore in a custom loop."""

from __future__ import annotations

from functools import partial
from typing import Any

from suites.faults.training import EPOCH, STEPS, Training, counter, data, step_function, write_filepath


def checkpoint_manager(run: Any) -> None:
    """Save every second step: the chief to the folder that all workers read, each other worker to one of its own."""
    import tensorflow as tf

    training, done = Training(run), counter()
    checkpoint = tf.train.Checkpoint(model=training.model, optimizer=training.optimizer, done=done)
    saved = run.tmp_path / "ckpt"
    manager = tf.train.CheckpointManager(checkpoint, write_filepath(run, saved), max_to_keep=2)
    latest = tf.train.latest_checkpoint(str(saved))
    if latest:
        checkpoint.restore(latest)
    for _loss in run.steps(training.step, data(run).skip(int(done.numpy()))):
        done.assign_add(1)
        if int(done.numpy()) % 2 == 0:
            manager.save()


def workers_tutorial(run: Any, counts_first: bool = False) -> None:
    """Save and resume as the program ``main.py`` of the tutorial does, statement by statement.

    :param counts_first: count the epoch before the save, and not after it.
    """
    import tensorflow as tf

    training, epoch, step_in_epoch = Training(run, "rmsprop"), counter(), counter()
    checkpoint = tf.train.Checkpoint(model=training.model, epoch=epoch, step_in_epoch=step_in_epoch)
    checkpoint_dir = run.tmp_path / "ckpt"
    write_checkpoint_dir = write_filepath(run, checkpoint_dir)
    manager = tf.train.CheckpointManager(checkpoint, directory=write_checkpoint_dir, max_to_keep=1)
    latest_checkpoint = tf.train.latest_checkpoint(str(checkpoint_dir))
    if latest_checkpoint:
        checkpoint.restore(latest_checkpoint)
    while epoch.numpy() < STEPS // EPOCH:
        iterator = iter(run.strategy.experimental_distribute_dataset(data(run, EPOCH)))
        total_loss, num_batches = 0.0, 0
        while step_in_epoch.numpy() < EPOCH:
            loss = training.step(iterator)
            total_loss += loss
            num_batches += 1
            step_in_epoch.assign_add(1)
            run.record(loss)
        float(total_loss / num_batches)  # the tutorial prints this mean
        if counts_first:
            epoch.assign_add(1)
            step_in_epoch.assign(0)
        manager.save()
        if run.rank != 0:
            tf.io.gfile.rmtree(write_checkpoint_dir)
        if not counts_first:
            epoch.assign_add(1)
            step_in_epoch.assign(0)


def workers_tutorial_in_order(run: Any) -> None:
    """Do as the tutorial, but count the epoch before the save."""
    workers_tutorial(run, counts_first=True)


def coordinator_restart(run: Any) -> None:
    """Infer the first epoch from the optimizer's count of steps, and save after each epoch."""
    import tensorflow as tf

    training = Training(run)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=training.model, optimizer=training.optimizer),
        write_filepath(run, run.tmp_path / "ckpt"),
        max_to_keep=3,
    )
    if manager.latest_checkpoint:
        manager.checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()
    starting_epoch = int(training.optimizer.iterations.numpy()) // EPOCH
    for _epoch in range(starting_epoch, STEPS // EPOCH):
        for _loss in run.steps(training.step, data(run, EPOCH)):
            pass
        manager.save()


def saved_iterator(run: Any) -> None:
    """Save the iterator of a dataset too. The program divides each batch itself, so that it is a plain iterator."""
    import tensorflow as tf

    training = Training(run)
    step = step_function(run, training.model, training.optimizer, of_batch=True)
    iterator = iter(data(run).shuffle(3, seed=4))
    checkpoint = tf.train.Checkpoint(model=training.model, optimizer=training.optimizer, iterator=iterator)
    # The iterator of each worker has state of its own, so that each worker restores what it has saved.
    manager = tf.train.CheckpointManager(checkpoint, str(run.rank_path / "ckpt"), max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint)
    size = run.global_batch_size // run.num_replicas

    def own(context: Any, batch: Any) -> Any:
        first = context.replica_id_in_sync_group * size
        return tuple(part[first : first + size] for part in batch)

    for batch in iterator:
        parts = run.strategy.experimental_distribute_values_from_function(partial(own, batch=batch))
        run.record(step(parts))
        manager.save()


def distributed_iterator(run: Any) -> None:
    """Save the iterator of a distributed dataset, as a program without a strategy saves its own."""
    import tensorflow as tf

    training = Training(run)
    iterator = iter(run.strategy.experimental_distribute_dataset(data(run)))
    checkpoint = tf.train.Checkpoint(model=training.model, optimizer=training.optimizer, iterator=iterator)
    manager = tf.train.CheckpointManager(checkpoint, str(run.rank_path / "ckpt"), max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint)
    while int(training.optimizer.iterations.numpy()) < STEPS:
        run.record(training.step(iterator))
        manager.save()


def preemption_handler(run: Any) -> None:
    """Save once, before the first step after a notice, and exit. Skip the batches that were trained on."""
    import tensorflow as tf

    training = Training(run)
    checkpoint = tf.train.Checkpoint(model=training.model, optimizer=training.optimizer)
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(
        run.strategy.cluster_resolver, checkpoint, str(run.tmp_path / "ckpt")
    )
    distributed = run.strategy.experimental_distribute_dataset(data(run).skip(handler.total_run_calls))
    iterator = iter(distributed)
    while handler.total_run_calls < STEPS:
        run.record(handler.run(training.step, iterator))


def preemption_handler_example(run: Any) -> None:
    """Continue within the epoch as the example in the docstring of ``PreemptionCheckpointHandler.run`` does."""
    import tensorflow as tf

    training = Training(run)
    checkpoint = tf.train.Checkpoint(model=training.model, optimizer=training.optimizer)
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(
        run.strategy.cluster_resolver, checkpoint, str(run.tmp_path / "ckpt")
    )
    dataset = run.strategy.experimental_distribute_dataset(data(run, EPOCH))
    for _epoch in range(handler.total_run_calls // EPOCH, STEPS // EPOCH):
        iterator = iter(dataset)
        for _step in range(handler.total_run_calls % EPOCH, EPOCH):
            run.record(handler.run(training.step, iterator))
