"""Training programs that watch a part of what they train, or all of it."""

from __future__ import annotations

import tensorflow as tf
import training_programs as programs


def _train(run, variables_of, watch):
    model, optimizer = programs.make(run)
    with run.strategy.scope():
        counter = tf.Variable(0, dtype=tf.int64, name="counter")
        probe = tf.Variable(tf.ones((4, 1)), name="probe")
    watch(model, optimizer, counter)
    variables = variables_of(model)

    @tf.function
    def step(iterator):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                errors = tf.square(model(x) + x @ tf.cast(probe, x.dtype) - y)[:, 0]
                loss = tf.nn.compute_average_loss(errors, global_batch_size=run.global_batch_size)
            # The gradient of the probe is looked at, and nothing trains it.
            *gradients, _sensitivity = tape.gradient(loss, [*variables, probe])
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            counter.assign_add(1)
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    for _loss in run.steps(step, programs.batched(40, run.global_batch_size)):
        pass


def watches_all(run):
    """What is not watched is counted, looked at, or never trained."""
    _train(run, lambda m: m.trainable_variables, lambda m, o, c: run.watch(model=m, optimizer=o))


def watches_one_layer(run):
    _train(run, lambda m: m.trainable_variables, lambda m, o, c: run.watch(model=m.layers[1], optimizer=o))


def watches_a_counter(run):
    _train(run, lambda m: m.trainable_variables, lambda m, o, c: run.watch(variables=[c]))


def watches_what_it_trains(run):
    """The optimizer was built for both layers, and one of them is trained."""
    _train(run, lambda m: m.trainable_variables, lambda m, o, c: run.watch(variables=m.trainable_variables))
