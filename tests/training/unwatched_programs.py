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
    """Train with all trained weights watched; other variables only count, are only read, or are never trained."""
    _train(run, lambda m: m.trainable_variables, lambda m, o, c: run.watch(model=m, optimizer=o))


def watches_one_layer(run):
    _train(run, lambda m: m.trainable_variables, lambda m, o, c: run.watch(model=m.layers[1], optimizer=o))


def watches_a_counter(run):
    _train(run, lambda m: m.trainable_variables, lambda m, o, c: run.watch(variables=[c]))


def watches_what_it_trains(run):
    """The optimizer was built for both layers, and one of them is trained."""
    _train(run, lambda m: m.trainable_variables, lambda m, o, c: run.watch(variables=m.trainable_variables))


def _descend(run, update, steps):
    """Train a variable that is not watched, beside one that is, and record some steps."""
    with run.strategy.scope():
        hidden = tf.Variable(tf.ones((4, 1)), name="hidden", aggregation=tf.VariableAggregation.MEAN)
        shown = tf.Variable(0.0, name="shown", aggregation=tf.VariableAggregation.MEAN)
    run.watch(variables=shown)
    dataset = programs.batched(40, run.global_batch_size)

    @tf.function
    def step(iterator, moves):
        def replica_step(batch):
            x, y = batch
            hidden.assign_sub(update(hidden, x, y) * moves)
            shown.assign_add(1.0)

        run.strategy.run(replica_step, args=(next(iterator),))

    iterator = iter(run.strategy.experimental_distribute_dataset(dataset))
    for number in range(steps):
        step(iterator, tf.constant(0.1 if number == 0 else 0.0))
        run.record()


def _loss(weight, x, y):
    return tf.reduce_mean(tf.square(x @ weight - y))


def _tape(weight, x, y):
    with tf.GradientTape() as tape:
        loss = _loss(weight, x, y)
    return tape.gradient(loss, weight)


def _persistent(weight, x, y):
    with tf.GradientTape(persistent=True) as tape:
        loss = _loss(weight, x, y)
    return tape.gradient(loss, weight) + tape.gradient(loss, weight)


def _jacobian(weight, x, y):
    with tf.GradientTape() as tape:
        errors = tf.square(x @ weight - y)[:, 0]
    return tf.reduce_mean(tape.jacobian(errors, weight), axis=0)


def _graph(weight, x, y):
    return tf.gradients(_loss(weight, x, y), [weight])[0]


def _forward(weight, x, y):
    direction = tf.ones_like(weight)
    with tf.autodiff.ForwardAccumulator(weight, direction) as accumulator:
        loss = _loss(weight, x, y)
    return accumulator.jvp(loss) * direction


def moves_once_by_tape(run):
    _descend(run, _tape, 3)


def moves_once_by_persistent_tape(run):
    _descend(run, _persistent, 3)


def moves_once_by_jacobian(run):
    _descend(run, _jacobian, 3)


def moves_once_by_graph(run):
    _descend(run, _graph, 3)


def moves_once_by_forward_mode(run):
    _descend(run, _forward, 3)


def _afterwards(run, rate):
    """After the last recorded step, apply gradients of a second model that is not watched."""
    watches_all(run)
    model, _optimizer = programs.make(run)
    with run.strategy.scope():
        optimizer = tf.keras.optimizers.SGD(rate)
        optimizer.build(model.trainable_variables)
    step = programs.step_of(run, model, optimizer)
    iterator = iter(run.strategy.experimental_distribute_dataset(programs.batched(40, run.global_batch_size)))
    for _number in range(2):
        step(iterator)


def trains_afterwards(run):
    _afterwards(run, 0.1)


def looks_at_gradients_afterwards(run):
    """The rate is 0, so that nothing moves."""
    _afterwards(run, 0.0)


def evaluates_afterwards(run):
    """Evaluate a second model without a gradient, estimate its statistics anew, and restore it."""
    watches_all(run)
    with run.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.BatchNormalization()])
        total = tf.keras.metrics.Mean()
    saved = model.get_weights()

    @tf.function
    def estimate(batch):
        run.strategy.run(lambda x, _y: total.update_state(model(x, training=True)), args=batch)

    for batch in run.strategy.experimental_distribute_dataset(programs.batched(40, run.global_batch_size)):
        estimate(batch)
    model.set_weights(saved)
