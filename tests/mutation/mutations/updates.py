"""Mistakes in the updates of weights, slots and counters, and in their initial values."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.mutation.mutant import Mutant, Pairs, mapped, mutation, replica_id


@mutation("MOVES", "variable-did-not-move")
def skip_a_variable(mutant: Mutant) -> None:
    """The last variable is never updated."""
    mutant.gradients = lambda pairs: pairs[:-1]


@mutation("MOVES", "variable-did-not-move")
def apply_nothing(mutant: Mutant) -> None:
    """The optimizer is not called."""
    mutant.apply = lambda _apply, _pairs, optimizer: optimizer.iterations


@mutation("OPT-STATE", "iteration-count-wrong", "duplicate-update", "gradient-scaled-by-replica-count")
def double_apply(mutant: Mutant) -> None:
    """Each gradient is applied twice."""

    def twice(apply: Any, pairs: Pairs, _optimizer: Any) -> Any:
        apply(pairs)
        return apply(pairs)

    mutant.apply = twice


@mutation("STEP-EQ", "lost-update", "iteration-count-wrong", "gradient-not-aggregated", "variable-did-not-move")
def lose_the_second_update(mutant: Mutant) -> None:
    """In the second step all gradients are zero."""
    import tensorflow as tf

    optimizers: list[Any] = []
    mutant.built = lambda _model, optimizer: optimizers.append(optimizer)

    def gradients(pairs: Pairs) -> Pairs:
        second = tf.equal(optimizers[0].iterations, 1)
        return mapped(pairs, lambda g, _v: tf.where(second, tf.zeros_like(g), g))

    mutant.gradients = gradients


@mutation("STEP-EQ", "staleness-exceeded")
def stale_gradient(mutant: Mutant) -> None:
    """Each step but the first applies the gradient of the step before."""
    import tensorflow as tf

    kept: dict[Any, Any] = {}
    optimizers: list[Any] = []

    def built(model: Any, optimizer: Any) -> None:
        optimizers.append(optimizer)
        with mutant.run.strategy.scope():
            for weight in model.trainable_variables:
                kept[weight.path] = tf.Variable(
                    tf.zeros(weight.shape, weight.dtype),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )

    def delayed(gradient: Any, variable: Any) -> Any:
        before = tf.identity(kept[variable.path].read_value())
        with tf.control_dependencies([before]):
            kept[variable.path].assign(gradient)
        return tf.where(tf.equal(optimizers[0].iterations, 0), gradient, before)

    mutant.built = built
    mutant.gradients = lambda pairs: mapped(pairs, delayed)


@mutation("OPT-STATE", "learning-rate-differs")
def learning_rate_grows_with_the_replicas(mutant: Mutant) -> None:
    """The learning rate is multiplied by the number of replicas."""

    def built(_model: Any, optimizer: Any) -> None:
        optimizer.learning_rate = optimizer.learning_rate * mutant.run.num_replicas

    mutant.built = built


@mutation("REPLICA-EQ", "learning-rate-differs", "replicas-diverged", "workers-diverged")
def learning_rate_differs_by_replica(mutant: Mutant) -> None:
    """Each replica applies the common gradient with a factor of its own."""
    import tensorflow as tf

    def aggregate(pairs: Pairs, original: Any) -> Pairs:
        factor = 1.0 + 0.5 * tf.cast(replica_id(), tf.float32)
        return mapped(original(pairs), lambda g, _v: g * tf.cast(factor, g.dtype))

    mutant.aggregate = aggregate


@mutation("MOVES", "frozen-variable-moved", programs="mlp")
def train_a_frozen_layer(mutant: Mutant) -> None:
    """A layer that is not to be trained moves a little in each step."""

    def stepped(model: Any, _optimizer: Any) -> None:
        frozen = model.non_trainable_variables[0]
        frozen.assign(frozen * 1.001)

    mutant.stepped = stepped


@mutation("OPT-STATE", "iteration-count-wrong")
def iterations_stand_still(mutant: Mutant) -> None:
    """The count of updates stays at zero."""
    mutant.stepped = lambda _model, optimizer: optimizer.iterations.assign(0)


@mutation("OPT-STATE", "iteration-count-wrong")
def iterations_count_replicas(mutant: Mutant) -> None:
    """The count of updates grows by the number of replicas."""
    mutant.stepped = lambda _model, optimizer: optimizer.iterations.assign_add(mutant.run.num_replicas - 1)


@mutation("OPT-STATE", "optimizer-state-mismatch")
def slots_are_reset(mutant: Mutant) -> None:
    """Momentum and moments are zero again after each step."""

    def stepped(_model: Any, optimizer: Any) -> None:
        for slot in _slots(optimizer):
            slot.assign(np.zeros(slot.shape))

    mutant.stepped = stepped


@mutation("OPT-STATE", "optimizer-state-mismatch")
def slots_grow(mutant: Mutant) -> None:
    """Momentum and moments are 1.3 times as large after each step."""

    def stepped(_model: Any, optimizer: Any) -> None:
        for slot in _slots(optimizer):
            slot.assign(slot * 1.3)

    mutant.stepped = stepped


@mutation("REPLICA-EQ", "initial-weights-differ", "replicas-diverged", "workers-diverged")
def weights_start_apart(mutant: Mutant) -> None:
    """Each replica draws initial weights of its own."""
    import tensorflow as tf

    def built(model: Any, _optimizer: Any) -> None:
        def start() -> None:
            for position, weight in enumerate(model.trainable_variables):
                seed = tf.stack([tf.cast(replica_id(), tf.int32), position])
                weight.value.assign(0.1 * tf.random.stateless_normal(weight.shape, seed, dtype=weight.dtype))

        tf.function(lambda: mutant.run.strategy.run(start))()

    mutant.built = built


@mutation("STEP-EQ", "initial-weights-differ")
def weights_start_elsewhere(mutant: Mutant) -> None:
    """All replicas start from the same weights, which are not those of one device."""

    def built(model: Any, _optimizer: Any) -> None:
        for weight in model.trainable_variables:
            weight.assign(weight + 0.01)

    mutant.built = built


@mutation("REPLICA-EQ", "replicas-diverged", "workers-diverged")
def replicas_drift(mutant: Mutant) -> None:
    """Replica 1 multiplies its weights by 1.000001 in each step."""
    import tensorflow as tf

    def applied(apply: Any, pairs: Pairs, _optimizer: Any) -> Any:
        result = apply(pairs)
        factor = tf.where(mutant.is_second_replica, 1.000001, 1.0)
        for _, variable in pairs:
            actual = variable.value
            actual.assign(actual.read_value() * tf.cast(factor, actual.dtype))
        return result

    mutant.apply = applied


@mutation("REPLICA-EQ", "optimizer-state-mismatch", "replicas-diverged", "workers-diverged")
def slots_drift(mutant: Mutant) -> None:
    """Replica 1 multiplies its momentum and moments by 1.5 in each step."""
    import tensorflow as tf

    def applied(apply: Any, pairs: Pairs, optimizer: Any) -> Any:
        result = apply(pairs)
        factor = tf.where(mutant.is_second_replica, 1.5, 1.0)
        for slot in _slots(optimizer):
            actual = slot.value
            actual.assign(actual.read_value() * tf.cast(factor, actual.dtype))
        return result

    mutant.apply = applied


@mutation("STATE-EQ", "state-not-aggregated", in_reference=True)
def state_is_not_aggregated(mutant: Mutant) -> None:
    """A moving mean of the inputs is kept by each replica for itself."""
    import tensorflow as tf

    kept: list[Any] = []

    def built(_model: Any, _optimizer: Any) -> None:
        with mutant.run.strategy.scope():
            kept.append(tf.Variable(0.0, trainable=False, name="moving_mean", dtype=tf.keras.backend.floatx()))
        mutant.run.watch(variables=kept)

    def batch(given: Any) -> Any:
        moving = kept[0]
        mean = tf.reduce_mean(tf.cast(given[0], moving.dtype))
        moving.assign(0.9 * moving + 0.1 * mean)
        return given

    mutant.built, mutant.batch = built, batch


def _slots(optimizer: Any) -> list[Any]:
    return [
        variable
        for variable in optimizer.variables
        if variable.path.rsplit("/", 1)[-1] not in ("iteration", "learning_rate")
    ]
