"""Programs that recover as they should, in many ways. No verdict about them may be bad."""

from __future__ import annotations

import json

import keras
import numpy as np
import tensorflow as tf

from tests.planted_recovery.loops import average_of_weights_is_lost
from tests.planted_recovery.parts import (
    BATCH,
    EPOCH,
    KNOWN,
    STEPS,
    WORKERS,
    Recovery,
    Training,
    arrays,
    batches,
    examples,
    manager_of,
    read_arrays,
    scaled,
    step_function,
    write_arrays,
)


def _restored(run, training, checkpoint):
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)
    return manager


def saves_every_second_step(run):
    """A checkpoint of model, optimizer and count."""
    training = Training(run)
    manager = _restored(run, training, training.checkpoint())
    for done in training.steps(batches(run).skip(training.count)):
        if done % 2 == 0:
            manager.save()


def shuffles_with_a_seed_and_skips(run):
    """The order of each epoch follows from its number, and the batches of an interrupted epoch are skipped."""
    training = Training(run)
    manager = _restored(run, training, training.checkpoint())
    while training.count < STEPS:
        epoch, within = divmod(training.count, EPOCH)
        data = examples(EPOCH * BATCH).shuffle(EPOCH * BATCH, seed=epoch).batch(run.global_batch_size).skip(within)
        for done in training.steps(data):
            if done % 2 == 0:
                manager.save()


def saves_its_iterator(run):
    """The iterator of the data is in the checkpoint, and the loop is the program's own."""
    training = Training(run)
    iterator = iter(examples().shuffle(20, seed=4).batch(run.global_batch_size))
    manager = _restored(run, training, training.checkpoint(iterator=iterator))

    def own(context, batch):
        part = run.global_batch_size // run.num_replicas
        at = context.replica_id_in_sync_group * part
        return tuple(item[at : at + part] for item in batch)

    for batch in iterator:
        loss = training.step_of_batch(
            run.strategy.experimental_distribute_values_from_function(lambda context, batch=batch: own(context, batch))
        )
        training.done.assign_add(1)
        run.record(loss)
        if training.count % 2 == 0:
            manager.save()


def saves_its_seed_generator(run):
    """Dropout whose seed generator is saved. ``tf.train.Checkpoint`` does not find it in a model of Keras 3."""
    training = Training(run, layers=lambda: [keras.layers.Dense(8), keras.layers.Dropout(0.5, seed=7)])
    path = run.rank_path / "state.npz"
    kept = [*training.model.variables, *training.optimizer.variables]
    if path.exists():
        training.done.assign(int(read_arrays(path, kept)["done"]))
    for done in training.steps(batches(run).skip(training.count)):
        if done % 2 == 0:
            write_arrays(path, kept, done=done)


def saves_its_generator(run):
    """The noise of each replica comes from a ``tf.random.Generator`` that is in the checkpoint."""
    with run.strategy.scope():
        generator = tf.random.Generator.from_seed(3)
    noise = keras.layers.Lambda(lambda x: x + generator.normal(tf.shape(x), stddev=0.1, dtype=x.dtype))
    training = Training(run, layers=lambda: [keras.layers.Dense(8), noise])
    manager = _restored(run, training, training.checkpoint(generator=generator))
    for done in training.steps(batches(run).skip(training.count)):
        if done % 2 == 0:
            manager.save()


def builds_its_model_in_the_first_step(run):
    """The restore is deferred: variables get their saved values when the first batch creates them."""
    with run.strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
    done = tf.Variable(0, dtype=tf.int64, trainable=False)
    run.watch(model=model)
    path, count = run.rank_path / "state.npz", 0
    if path.exists():
        with np.load(path) as found:
            count = int(found["done"])
    done.assign(count)
    step = step_function(run, model, optimizer, of_batch=True)
    built = False
    for batch in run.batches(batches(run).skip(count)):
        if not built:
            with run.strategy.scope():
                model.build((None, 4))
                optimizer.build(model.trainable_variables)
            if count:
                read_arrays(path, [*model.weights, *optimizer.variables])
            built = True
        run.record(step(batch))
        done.assign_add(1)
        write_arrays(path, [*model.weights, *optimizer.variables], done=int(done.numpy()))


def restores_within_its_loop(run):
    """The values are restored when the loop has its first batch."""
    training = Training(run)
    path = run.rank_path / "state.npz"
    kept = [*training.model.weights, *training.optimizer.variables]
    if path.exists():
        with np.load(path) as found:
            training.done.assign(int(found["done"]))
    started = False
    for batch in run.batches(batches(run).skip(training.count)):
        if not started and path.exists():
            read_arrays(path, kept)
        started = True
        run.record(training.step_of_batch(batch))
        training.done.assign_add(1)
        write_arrays(path, kept, done=training.count)


def restores_after_a_step_that_builds(run):
    """A first step on the data builds everything, and the restore then replaces what it did."""
    training = Training(run)
    path = run.rank_path / "state.npz"
    kept = [*training.model.weights, *training.optimizer.variables]
    if path.exists():
        for _done in training.steps(batches(run), steps=1):
            pass
        training.done.assign(int(read_arrays(path, kept)["done"]))
    for done in training.steps(batches(run).skip(training.count)):
        write_arrays(path, kept, done=done)


def clips_its_weights_after_each_step(run):
    """The loop changes the weights after each step, before it saves them."""
    training = Training(run)
    manager = _restored(run, training, training.checkpoint())
    for done in training.steps(batches(run).skip(training.count)):
        for weight in training.model.trainable_variables:
            weight.assign(tf.clip_by_value(tf.convert_to_tensor(weight), -0.4, 0.4))
        if done % 2 == 0:
            manager.save()


def has_a_schedule(run):
    """The rate follows the optimizer's count."""
    training = Training(run, lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 5)))
    manager = _restored(run, training, training.checkpoint())
    for done in training.steps(batches(run).skip(training.count)):
        if done % 2 == 0:
            manager.save()


def has_an_uneven_last_batch(run):
    """The last batch of each epoch is smaller."""
    training = Training(run)
    manager = _restored(run, training, training.checkpoint())
    data = batches(run, EPOCH * BATCH - 4).repeat(2)
    for _done in training.steps(data.skip(training.count)):
        manager.save()


def saves_twice_in_a_step(run):
    """Weights for the evaluation, and a checkpoint, in one step."""
    training = Training(run)
    manager = _restored(run, training, training.checkpoint())
    for done in training.steps(batches(run).skip(training.count)):
        training.model.save_weights(run.rank_path / f"best-{done}.weights.h5")
        manager.save()


def keeps_an_average(run):
    """The moving average of the weights is in the checkpoint."""
    average_of_weights_is_lost(run, lost=False)


def keeps_the_loss_scale(run):
    """The optimizer that scales the loss is in the checkpoint."""
    training = Training(run, scaled)
    manager = _restored(run, training, training.checkpoint())
    for done in training.steps(batches(run).skip(training.count)):
        if done % 2 == 0:
            manager.save()


def keeps_its_metric(run):
    """The running mean over the whole training is in the checkpoint."""
    training = Training(run)
    mean = keras.metrics.Mean()
    run.watch(metrics=mean)
    path = run.rank_path / "state.npz"
    kept = [*training.model.weights, *training.optimizer.variables, *mean.variables]
    if path.exists():
        training.done.assign(int(read_arrays(path, kept)["done"]))
    for loss in run.steps(training.step, batches(run).skip(training.count)):
        training.done.assign_add(1)
        mean.update_state(loss)
        run.value("mean loss", float(mean.result()))
        if training.count % 2 == 0:
            write_arrays(path, kept, done=training.count)


def ends_at_once_if_all_is_done(run):
    """A start after the last step restores the result and returns without a loop."""
    training = Training(run)
    manager = _restored(run, training, training.checkpoint())
    if training.count == STEPS:
        return
    for _done in training.steps(batches(run).skip(training.count)):
        manager.save()


def trains_two_models(run):
    """Two models whose layers have the same names."""
    with run.strategy.scope():
        models = [keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="out")], name="net") for _ in "ab"]
        optimizers = [keras.optimizers.SGD(0.1, momentum=0.9) for _ in "ab"]
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.build(model.trainable_variables)
    run.watch(model=models, optimizer=optimizers)
    done = tf.Variable(0, dtype=tf.int64, trainable=False)
    parts = {f"model{at}": model for at, model in enumerate(models)}
    parts |= {f"optimizer{at}": optimizer for at, optimizer in enumerate(optimizers)}
    checkpoint = tf.train.Checkpoint(done=done, **parts)
    manager, latest = manager_of(run, checkpoint)
    if latest:
        checkpoint.restore(latest)

    def replica_step(batch):
        x, y = batch
        total = 0.0
        for model, optimizer in zip(models, optimizers, strict=True):
            with tf.GradientTape() as tape:
                error = tf.square(model(x) - tf.cast(y, model.compute_dtype))[:, 0]
                loss = tf.nn.compute_average_loss(error, global_batch_size=run.global_batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            total += loss
        return total

    @tf.function
    def train_step(iterator):
        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(train_step, batches(run).skip(int(done.numpy()))):
        done.assign_add(1)
        if int(done.numpy()) % 2 == 0:
            manager.save()


def warms_up_from_zero(run):
    """The first step has the rate 0 and changes no weight, so that the start and the first step look alike."""
    training = Training(run, lambda: keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(0.0, 3, 0.1)))
    manager = _restored(run, training, training.checkpoint())
    for done in training.steps(batches(run).skip(training.count)):
        if done % 4 == 0:
            manager.save()


def repeats_its_data_until_the_limit(run):
    """The loop ends by the limit of steps of the check."""
    training = Training(run)
    manager = _restored(run, training, training.checkpoint())
    for done in training.steps(batches(run).repeat().skip(training.count)):
        if done % 2 == 0:
            manager.save()


def _fitted(run, data, epochs=2, metrics=None, validation=None, **given):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=metrics, **given)
        model.optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=model.optimizer)
    backup = keras.callbacks.BackupAndRestore(str(run.rank_path / "backup"), delete_checkpoint=False)
    run.fit(model, data, epochs=epochs, callbacks=[backup], validation_data=validation)
    return model


def fits_with_a_backup(run):
    """``BackupAndRestore`` at the end of each epoch, with metrics, a validation and an evaluation."""
    data = batches(run, EPOCH * BATCH)
    model = _fitted(run, data, metrics=["mae"], validation=data)
    run.evaluate(model, data)


def fits_and_counts_its_epochs(run):
    """A callback saves all variables after each epoch, and ``initial_epoch`` is the one that was saved."""
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        model.optimizer.build(model.trainable_variables)
    run.watch(model=model)
    path = run.rank_path / "state.npz"
    kept = [*model.weights, *model.optimizer.variables]
    first = int(read_arrays(path, kept)["epoch"]) if path.exists() else 0
    save = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: write_arrays(path, kept, epoch=epoch + 1))
    x, y = arrays(EPOCH * BATCH)
    options = {"batch_size": run.global_batch_size, "shuffle": False, "initial_epoch": first, "callbacks": [save]}
    run.fit(model, x, y, epochs=2, **options)


def writes_a_count_with_its_weights(run):
    """One file that replaces the old one."""
    training = Training(run)
    path = run.rank_path / "state.npz"
    kept = [*training.model.weights, *training.optimizer.variables]
    if path.exists():
        training.done.assign(int(json.loads(json.dumps(int(read_arrays(path, kept)["done"])))))
    for done in training.steps(batches(run).skip(training.count)):
        write_arrays(path, kept, done=done)


EARLY = "kill worker:0 in step 2, batch 0"
LATE = "kill worker:0 before step 6"
END = "kill worker:0 after training"
TWICE = "kill worker:0 before step 4; kill worker:0 before step 5 of attempt 2"
CORRECT = [
    *(Recovery(saves_every_second_step, fault) for fault in (EARLY, LATE, END, TWICE)),
    *(Recovery(saves_every_second_step, fault, strategy=WORKERS) for fault in (LATE, END)),
    *(
        Recovery(saves_every_second_step, fault, strategy="parameter_server")
        for fault in ("kill chief:0 before step 6", "kill chief:0 after training")
    ),
    *(Recovery(saves_every_second_step, fault, strategy="central_storage") for fault in (LATE, END)),
    Recovery(
        saves_every_second_step,
        LATE,
        ("equal",),
        strategy=f"{WORKERS}[workers=2]",
        given={"restart_on": f"{WORKERS}[workers=3]"},
    ),
    *(Recovery(shuffles_with_a_seed_and_skips, fault) for fault in (EARLY, LATE, TWICE)),
    *(Recovery(saves_its_iterator, fault) for fault in ("kill worker:0 after step 5", END)),
    *(Recovery(saves_its_seed_generator, fault, given=KNOWN) for fault in (LATE, TWICE)),
    # The same, with Keras' seeds recognized as a known behavior.
    *(Recovery(saves_its_seed_generator, fault) for fault in (EARLY, END)),
    Recovery(saves_its_generator, LATE),
    Recovery(
        saves_its_seed_generator,
        LATE,
        ("undecided",),  # the masks depend on the number of replicas
        strategy="mirrored[replicas=2]",
        given={**KNOWN, "restart_on": "mirrored[replicas=3]"},
    ),
    *(Recovery(builds_its_model_in_the_first_step, fault) for fault in (LATE, "kill worker:0 before step 3")),
    # Nothing is left to do, so that nothing is built or restored.
    Recovery(builds_its_model_in_the_first_step, END, ("undecided",)),
    Recovery(restores_within_its_loop, LATE),
    *(Recovery(restores_after_a_step_that_builds, fault) for fault in (LATE, END)),
    *(Recovery(clips_its_weights_after_each_step, fault) for fault in (LATE, END)),
    *(Recovery(has_a_schedule, fault) for fault in (LATE, "kill worker:0 before save 2")),
    *(Recovery(warms_up_from_zero, fault) for fault in (LATE, "kill worker:0 before step 3")),
    *(Recovery(has_an_uneven_last_batch, fault) for fault in (LATE, "kill worker:0 after step 3")),
    *(Recovery(saves_twice_in_a_step, fault, given={"always_loadable": True}) for fault in (LATE, END)),
    Recovery(keeps_an_average, LATE),
    Recovery(keeps_the_loss_scale, LATE),
    Recovery(keeps_its_metric, LATE),
    *(Recovery(ends_at_once_if_all_is_done, fault) for fault in (LATE, END)),
    *(Recovery(trains_two_models, fault) for fault in (LATE, EARLY)),
    *(Recovery(repeats_its_data_until_the_limit, fault, given={"steps": STEPS}) for fault in (LATE, END)),
    *(Recovery(fits_with_a_backup, fault) for fault in (LATE, END, "kill worker:0 before evaluation 1")),
    *(Recovery(fits_and_counts_its_epochs, fault) for fault in (LATE, END)),
    *(Recovery(writes_a_count_with_its_weights, fault) for fault in (LATE, "kill worker:0 before training", TWICE)),
]
