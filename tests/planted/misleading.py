"""Bugs whose symptoms look like those of another cause."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.planted import loops
from tests.planted.planted import planted


def _gradients(run, model, batch, scale=1.0):
    with tf.GradientTape() as tape:
        loss = model.loss(run, *batch)
        scaled = loss * scale
    return loss, tape.gradient(scaled, list(model.trainable_variables))


def _root_mean_square(run, replica_gradients, aggregation=tf.VariableAggregation.NONE):
    """RMSprop by hand: the change of a weight does not show the scale of its gradient."""
    with run.strategy.scope():
        model = loops.Linear()
        variables = list(model.trainable_variables)
        velocities = [
            tf.Variable(tf.zeros_like(v), trainable=False, aggregation=aggregation, name=f"velocity_{i}")
            for i, v in enumerate(variables)
        ]
    run.watch(variables=[*variables, *velocities])

    def replica_step(batch):
        loss, gradients = replica_gradients(model, batch)
        for variable, velocity, gradient in zip(variables, velocities, gradients, strict=True):
            velocity.assign(0.9 * velocity + 0.1 * tf.square(gradient))
            variable.assign_sub(0.01 * gradient / (tf.sqrt(velocity) + 1e-6))
        return loss

    loops.train(run, replica_step)


def velocity_by_hand_hides_the_scale(run, sin):
    """The velocity is 4 times too large, which is a gradient of twice the size."""

    def replica_gradients(model, batch):
        loss, gradients = _gradients(run, model, batch, run.num_replicas if sin else 1.0)
        return loss, loops.all_reduce(gradients)

    _root_mean_square(run, replica_gradients)


def velocity_by_hand_takes_the_own_gradient(run, sin):
    def replica_gradients(model, batch):
        loss, gradients = _gradients(run, model, batch)
        return loss, gradients if sin else loops.all_reduce(gradients)

    _root_mean_square(run, replica_gradients, tf.VariableAggregation.MEAN)


def uneven_parts_hide_the_scale_behind_rmsprop(run, sin):
    model, optimizer = loops.keras_program(run, lambda: keras.optimizers.RMSprop(0.01))

    def replica_step(batch):
        with tf.GradientTape() as tape:
            losses = loops.squared_errors(model, *batch)
            loss = tf.reduce_mean(losses) if sin else loops.average(run, losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loops.average(run, losses)

    loops.train(run, replica_step, loops.dataset(run, 45))


def rate_falls_with_a_counter_of_all_replicas(run, sin):
    """The counter is not watched, so that only the weights show it."""
    model = loops.linear_program(run)
    aggregation = tf.VariableAggregation.SUM if sin else tf.VariableAggregation.ONLY_FIRST_REPLICA
    with run.strategy.scope():
        step = tf.Variable(0.0, trainable=False, dtype=tf.float32, aggregation=aggregation)

    def replica_step(batch):
        loss, gradients = _gradients(run, model, batch)
        rate = 0.1 / (1.0 + tf.cast(step.read_value(), loss.dtype))
        loops.descend(model.trainable_variables, loops.all_reduce(gradients), rate)
        step.assign_add(tf.ones_like(step))
        return loss

    loops.train(run, replica_step)


def examples_of_the_global_batch_are_counted_by_every_replica(run, sin):
    model = loops.linear_program(run)
    aggregation = tf.VariableAggregation.SUM if sin else tf.VariableAggregation.ONLY_FIRST_REPLICA
    with run.strategy.scope():
        seen = tf.Variable(0, trainable=False, dtype=tf.int64, aggregation=aggregation, name="examples_seen")
    run.watch(variables=[seen])

    def replica_step(batch):
        loss, gradients = _gradients(run, model, batch)
        loops.descend(model.trainable_variables, loops.all_reduce(gradients))
        seen.assign_add(tf.constant(run.global_batch_size, tf.int64))
        return loss

    loops.train(run, replica_step)


def norm_of_the_first_replica_limits_the_sum(run, sin):
    model = loops.linear_program(run)

    def replica_step(batch):
        loss, own = _gradients(run, model, batch)
        gradients = loops.all_reduce(own)
        size = tf.linalg.global_norm(own if sin else gradients)
        if sin:
            size = loops.all_reduce(size * tf.cast(loops.replica_id() == 0, size.dtype))
        scale = 0.5 / tf.maximum(size, 0.5)
        loops.descend(model.trainable_variables, [scale * gradient for gradient in gradients])
        return loss

    loops.train(run, replica_step)


def activity_penalty_is_added_by_every_replica(run, sin):
    penalty = keras.regularizers.L2(0.1)
    model, optimizer = loops.keras_program(run, model=lambda: loops.perceptron(activity_regularizer=penalty))

    def replica_step(batch):
        with tf.GradientTape() as tape:
            mean = loops.average(run, loops.squared_errors(model, *batch))
            loss = mean + sum(model.losses) / (1.0 if sin else run.num_replicas)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return mean

    loops.train(run, replica_step)


def _in_micro_batches(run, accumulate, number=2):
    """Every step splits its batch, and adds up the gradients of the parts."""
    model = loops.linear_program(run)
    variables = list(model.trainable_variables)

    def replica_step(batch):
        size = tf.shape(batch[0])[0] // number
        sums, mean = [tf.zeros_like(variable) for variable in variables], 0.0
        for part in range(number):
            rows = [value[part * size : (part + 1) * size] for value in batch]
            loss, gradients = _gradients(run, model, rows)
            sums, mean = accumulate(part, sums, gradients), mean + loss
        loops.descend(variables, loops.all_reduce(sums))
        return mean

    loops.train(run, replica_step)


def micro_batch_replaces_those_before(run, sin):
    def accumulate(_part, sums, gradients):
        if sin and run.num_replicas > 1:
            return gradients
        return [total + gradient for total, gradient in zip(sums, gradients, strict=True)]

    _in_micro_batches(run, accumulate)


def first_micro_batch_is_left_out(run, sin):
    def accumulate(part, sums, gradients):
        if sin and run.num_replicas > 1 and part == 0:
            return sums
        return [total + gradient for total, gradient in zip(sums, gradients, strict=True)]

    _in_micro_batches(run, accumulate)


def _with_the_optimizer(run, model, optimizer, data):
    def replica_step(batch):
        with tf.GradientTape() as tape:
            loss = loops.average(run, loops.squared_errors(model, batch["x"], batch["y"]))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return run.steps(loops.summed(run, replica_step), data)


def numbered_examples_are_flipped_by_the_worker(run, sin):
    model, optimizer = loops.keras_program(run)

    def data(context):
        sign = -1.0 if sin and context.input_pipeline_id % 2 else 1.0
        examples = loops.numbered_dataset(run).shard(context.num_input_pipelines, context.input_pipeline_id)
        examples = examples.map(lambda example: {**example, "x": example["x"] * sign})
        return examples.batch(context.get_per_replica_batch_size(run.global_batch_size))

    for _ in _with_the_optimizer(run, model, optimizer, data):
        pass


def optimizer_begins_anew_when_weights_are_reloaded(run, sin):
    """Within one run: its counter and its moments are 0 again, as those of an optimizer that was not saved."""
    model, optimizer = loops.keras_program(run, lambda: keras.optimizers.Adam(0.01))
    data = loops.numbered_dataset(run).batch(run.global_batch_size)
    for _ in _with_the_optimizer(run, model, optimizer, data):
        if run.completed_steps == 2 and sin and run.num_replicas > 1:
            for variable in optimizer.variables:
                if variable is not optimizer.learning_rate:
                    variable.assign(np.zeros(variable.shape))


def data_ends_early_because_batches_are_too_large(run, sin):
    """The program notices only that it has trained for too few steps."""
    model, optimizer = loops.keras_program(run)
    size = run.global_batch_size * (run.num_replicas if sin else 1)
    data = loops.numbered_dataset(run, rows=24).batch(size)
    if sum(1 for _ in _with_the_optimizer(run, model, optimizer, data)) < 3:
        raise RuntimeError("trained for too few steps")


def embedding_loss_is_multiplied_by_the_workers(run, sin):
    """Under parameter servers each step has one replica, and the factor is the number of workers."""
    with run.strategy.scope():
        embedding = keras.layers.Embedding(11, 4)
        model = keras.Sequential([keras.Input((3,), dtype="int32"), embedding, keras.layers.Flatten()])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    words = np.random.default_rng(0).integers(0, 11, (24, 3)).astype("int32")
    factor = 2.0 if sin and not run.is_reference else 1.0

    def replica_step(batch):
        with tf.GradientTape() as tape:
            mean = loops.average(run, tf.reduce_sum(tf.square(model(batch) - 1.0), axis=1))
            loss = mean * factor
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return mean

    loops.train(run, replica_step, tf.data.Dataset.from_tensor_slices(words).batch(run.global_batch_size))


def equal_parts_are_never_reduced(run, sin):
    """All examples are equal, and so are the replicas' gradients: half of the whole, as if it were divided twice."""
    model = loops.linear_program(run)

    def replica_step(batch):
        loss, gradients = _gradients(run, model, batch)
        loops.descend(model.trainable_variables, gradients if sin else loops.all_reduce(gradients))
        return loss

    examples = np.ones((24, loops.FEATURES), "float32"), np.full((24, 1), 2.0, "float32")
    loops.train(run, replica_step, tf.data.Dataset.from_tensor_slices(examples).batch(run.global_batch_size))


def evaluation_pads_its_last_batch(run, sin):
    """Recorded after the loop, so that it is a step of its own."""
    model, optimizer = loops.keras_program(run)
    data = loops.numbered_dataset(run).batch(run.global_batch_size)
    for _ in _with_the_optimizer(run, model, optimizer, data):
        pass
    rows = np.arange(21)
    if sin and run.num_replicas > 1:
        rows = np.append(rows, [20] * 3)
    x, y = (values[rows] for values in loops.regression())
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size)

    @tf.function
    def evaluate(batch):
        def errors(batch):
            found = loops.squared_errors(model, *(tf.cast(part, model.compute_dtype) for part in batch))
            return tf.reduce_sum(found), tf.cast(tf.size(found), found.dtype)

        results = run.strategy.run(errors, args=(batch,))
        return [run.strategy.reduce("SUM", result, axis=None) for result in results]

    sums = [evaluate(batch) for batch in run.strategy.experimental_distribute_dataset(batches)]
    total, count = (sum(map(float, column)) for column in zip(*sums, strict=True))
    run.record(validation_loss=total / count)


SCALED = "gradient-scaled-by-replica-count"
WORKERS = ("multi_worker_mirrored",)
PLANTED = (
    planted("", velocity_by_hand_hides_the_scale, SCALED),
    planted("", norm_of_the_first_replica_limits_the_sum, "gradient-clipped-before-aggregation"),
    planted("", velocity_by_hand_takes_the_own_gradient, "gradient-not-aggregated", strategies=("mirrored",)),
    planted("", uneven_parts_hide_the_scale_behind_rmsprop, SCALED, batch=9),
    planted("", rate_falls_with_a_counter_of_all_replicas, "learning-rate-differs"),
    planted("", examples_of_the_global_batch_are_counted_by_every_replica, "state-scaled-by-replica-count"),
    planted("", activity_penalty_is_added_by_every_replica, "regularization-scaled-by-replica-count"),
    planted("", micro_batch_replaces_those_before, "gradient-accumulation-wrong"),
    planted("", first_micro_batch_is_left_out, "gradient-accumulation-wrong"),
    planted("", numbered_examples_are_flipped_by_the_worker, "examples-altered", strategies=WORKERS),
    planted("", optimizer_begins_anew_when_weights_are_reloaded, "resume-lost-state", steps=4),
    planted("", data_ends_early_because_batches_are_too_large, "global-batch-wrong"),
    planted("", equal_parts_are_never_reduced, "gradient-not-aggregated", expect_of_twin=("examples-equal",)),
    planted("", evaluation_pads_its_last_batch, "examples-duplicated", "metric-wrong", strategies=("mirrored",)),
    planted("", embedding_loss_is_multiplied_by_the_workers, SCALED, strategies=("parameter_server",)),
)
