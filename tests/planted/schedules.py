"""Learning rates and counts of updates."""

from __future__ import annotations

import keras
import tensorflow as tf
import tf_keras

from tests.planted import loops
from tests.planted.planted import planted


def _step_of(run, model, optimizer):
    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return replica_step


def learning_rate_is_multiplied_by_the_replicas(run, sin):
    """The linear scaling rule, although the global batch stays what it was."""
    rate = 0.05 * (run.strategy.num_replicas_in_sync if sin else 1)
    model, optimizer = loops.keras_program(run, lambda: keras.optimizers.SGD(rate))
    loops.train(run, _step_of(run, model, optimizer))


def learning_rate_is_lowered_on_the_chief_alone(run, sin):
    """A callback on the chief lowers the rate after two steps; the other workers go on as before."""
    model, optimizer = loops.keras_program(run)
    step = loops.summed(run, _step_of(run, model, optimizer))
    for number, _loss in enumerate(run.steps(step, loops.dataset(run)), start=1):
        if number == 2 and (run.rank == 0 or not sin):
            optimizer.learning_rate = 0.02


def schedule_in_python_is_read_at_tracing(run, sin):
    """The step is compiled only under a strategy; the graph then keeps the rate of the first step."""
    model, optimizer = loops.keras_program(run)
    replica_step = _step_of(run, model, optimizer)
    taken = [0]

    def one_step(batch):
        if sin:
            optimizer.learning_rate.assign(0.2 / (1 + taken[0]))
        losses = run.strategy.run(replica_step, args=(batch,))
        return run.strategy.reduce("SUM", losses, axis=None)

    if run.num_replicas > 1 or not sin:
        one_step = tf.function(one_step)
    for batch in run.batches(loops.dataset(run)):
        if not sin:
            optimizer.learning_rate.assign(0.2 / (1 + taken[0]))
        loss = one_step(batch)
        taken[0] += 1
        run.record(loss=loss)


class Warmup(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Rises over examples, of which it thinks a step has so many."""

    def __init__(self, per_step):
        self.per_step = per_step

    def __call__(self, step):
        return 0.02 + 0.01 * tf.cast(step, tf.float32) * self.per_step / 8

    def get_config(self):
        return {"per_step": self.per_step}


def warm_up_counts_the_examples_of_one_replica(run, sin):
    with run.strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(loops.FEATURES,))])
        per_step = run.global_batch_size // (run.num_replicas if sin else 1)
        optimizer = tf_keras.optimizers.SGD(Warmup(per_step))
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    loops.train(run, _step_of(run, model, optimizer))


def iterations_count_replicas(run, sin):
    """After every step the count is set to what the replicas took together; a schedule reads it."""
    schedule = lambda: keras.optimizers.SGD(keras.optimizers.schedules.InverseTimeDecay(0.2, 1, 0.5))  # noqa: E731
    model, optimizer = loops.keras_program(run, schedule)
    step = loops.summed(run, _step_of(run, model, optimizer))
    data = iter(run.strategy.experimental_distribute_dataset(loops.dataset(run)))
    for number in range(1, 4):
        loss = step(data)
        if sin:
            optimizer.iterations.assign(number * run.num_replicas)
        run.record(loss=loss)


def optimizer_steps_once_per_replica(run, sin):
    """A loop over replicas around strategy.run, which runs on all of them already."""
    model, optimizer = loops.keras_program(run)
    replica_step = _step_of(run, model, optimizer)

    @tf.function
    def train_step(batch):
        losses = run.strategy.run(replica_step, args=(batch,))
        for _ in range(run.num_replicas - 1 if sin else 0):
            run.strategy.run(replica_step, args=(batch,))
        return run.strategy.reduce("SUM", losses, axis=None)

    for batch in run.batches(loops.dataset(run)):
        run.record(loss=train_step(batch))


RATE, COUNT = "learning-rate-differs", "iteration-count-wrong"
PLANTED = (
    planted("C19", learning_rate_is_multiplied_by_the_replicas, RATE),
    planted("C19", learning_rate_is_lowered_on_the_chief_alone, RATE, strategies=("multi_worker_mirrored",), steps=4),
    planted("C28", schedule_in_python_is_read_at_tracing, RATE),
    planted("C28", warm_up_counts_the_examples_of_one_replica, RATE),
    planted("", iterations_count_replicas, COUNT),
    planted("C25", optimizer_steps_once_per_replica, COUNT),
)
