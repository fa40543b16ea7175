"""Mistakes between a replica's gradient and the sum over replicas."""

from __future__ import annotations

from typing import Any

from tests.mutation.mutant import Mutant, Pairs, mapped, mutation, replica_id


@mutation("REPLICA-EQ", "gradient-not-aggregated")
def drop_the_all_reduce(mutant: Mutant) -> None:
    """Every replica applies its own gradient."""
    mutant.aggregate = lambda pairs, _aggregate: pairs


@mutation("STEP-EQ", "gradient-scaled-by-replica-count", in_reference=True)
def reduce_twice(mutant: Mutant) -> None:
    """The gradients are summed over replicas, and then summed again."""
    mutant.aggregate = lambda pairs, aggregate: aggregate(aggregate(pairs))


@mutation("STEP-EQ", "gradient-scaled-by-inverse-replica-count", in_reference=True)
def mean_instead_of_sum(mutant: Mutant) -> None:
    """The gradients are averaged over replicas although the loss is divided by the global batch."""
    mutant.aggregate = lambda pairs, _aggregate: _reduced("MEAN", pairs)


@mutation("STEP-EQ", "gradient-scaled-by-replica-count", in_reference=True)
def scale_by_replicas(mutant: Mutant) -> None:
    """Each replica multiplies its gradient by the number of replicas."""
    mutant.gradients = lambda pairs: mapped(pairs, lambda g, _v: g * mutant.run.num_replicas)


@mutation("STEP-EQ", "gradient-scaled-by-inverse-replica-count", in_reference=True)
def scale_by_inverse(mutant: Mutant) -> None:
    """Each replica divides its gradient by the number of replicas once more."""
    mutant.gradients = lambda pairs: mapped(pairs, lambda g, _v: g / mutant.run.num_replicas)


@mutation("STEP-EQ", "gradient-not-aggregated", in_reference=True)
def first_replica_alone(mutant: Mutant) -> None:
    """All replicas apply the gradient of replica 0."""
    mutant.aggregate = lambda pairs, aggregate: aggregate(mapped(pairs, _only(0)))


@mutation("STEP-EQ", "gradient-not-aggregated", in_reference=False)
def second_replica_alone(mutant: Mutant) -> None:
    """All replicas apply the gradient of replica 1."""
    mutant.aggregate = lambda pairs, aggregate: aggregate(mapped(pairs, _only(1)))


@mutation("STEP-EQ", "gradient-not-aggregated")
def first_replica_counts_twice(mutant: Mutant) -> None:
    """The sum over replicas has replica 0's gradient in place of replica 1's."""

    def aggregate(pairs: Pairs, original: Any) -> Pairs:
        return original(mapped(pairs, lambda g, _v: 2 * _only(0)(g, _v)))

    mutant.aggregate = aggregate


@mutation("REPLICA-EQ", "gradient-not-aggregated")
def one_variable_is_not_reduced(mutant: Mutant) -> None:
    """The all-reduce leaves the last variable out."""
    mutant.aggregate = lambda pairs, aggregate: [*aggregate(pairs[:-1]), pairs[-1]]


@mutation("REPLICA-EQ", "gradient-not-aggregated")
def first_variable_is_not_reduced(mutant: Mutant) -> None:
    """The all-reduce leaves the first variable out."""
    mutant.aggregate = lambda pairs, aggregate: [pairs[0], *aggregate(pairs[1:])]


@mutation("STEP-EQ", "gradient-scaled-by-replica-count", in_reference=True)
def one_variable_is_reduced_twice(mutant: Mutant) -> None:
    """The last variable's gradient is summed over replicas twice."""
    mutant.aggregate = lambda pairs, aggregate: [*aggregate(pairs[:-1]), *aggregate(aggregate(pairs[-1:]))]


@mutation("CLIP", "gradient-clipped-before-aggregation", in_reference=True)
def clip_before_aggregation(mutant: Mutant) -> None:
    """Each replica clips its part of the gradient by hand, then they are summed."""
    import tensorflow as tf

    def clipped(pairs: Pairs) -> Pairs:
        gradients = [tf.convert_to_tensor(gradient) for gradient, _ in pairs]
        scaled, _norm = tf.clip_by_global_norm(gradients, 0.05)
        return list(zip(scaled, [variable for _, variable in pairs], strict=True))

    mutant.gradients = clipped


@mutation("CLIP", "gradient-clipped-before-aggregation", in_reference=True)
def optimizer_clips_before_aggregation(mutant: Mutant) -> None:
    """The optimizer is given a limit, which Keras applies on each replica."""
    mutant.built = lambda _model, optimizer: setattr(optimizer, "clipnorm", 0.02)


@mutation("CLIP", "gradient-clipped-before-aggregation", in_reference=True)
def clip_values_before_aggregation(mutant: Mutant) -> None:
    """Each replica clips the elements of its part of the gradient, then they are summed."""
    import tensorflow as tf

    mutant.gradients = lambda pairs: mapped(pairs, lambda g, _v: tf.clip_by_value(g, -0.01, 0.01))


@mutation("CLIP", "clipping-lost", in_reference=True)
def clipping_is_lost(mutant: Mutant) -> None:
    """The optimizer's limit is without effect on several replicas."""

    def built(_model: Any, optimizer: Any) -> None:
        optimizer.global_clipnorm = 0.02
        if not mutant.run.is_reference:
            object.__setattr__(optimizer, "_clip_gradients", lambda gradients: gradients)

    mutant.built = built


@mutation("STEP-EQ", "regularization-scaled-by-replica-count", in_reference=True)
def regulariser_on_every_replica(mutant: Mutant) -> None:
    """Each replica adds the whole regularisation to its part of the gradient."""
    import tensorflow as tf

    mutant.gradients = lambda pairs: mapped(pairs, lambda g, v: g + 0.1 * tf.cast(tf.convert_to_tensor(v), g.dtype))


@mutation("STEP-EQ", "gradient-not-aggregated")
def one_replica_drops_its_gradient(mutant: Mutant) -> None:
    """In the second step replica 1 hands over zeros, as if it had ignored a NaN."""
    import tensorflow as tf

    count = _calls(mutant)

    def gradients(pairs: Pairs) -> Pairs:
        lost = tf.logical_and(mutant.is_second_replica, tf.equal(count(), 1))
        return mapped(pairs, lambda g, _v: tf.where(lost, tf.zeros_like(g), g))

    mutant.gradients = gradients


@mutation("NONFINITE", "non-finite-not-synchronised", in_reference=True)
def each_replica_ignores_its_own_nan(mutant: Mutant) -> None:
    """A replica whose gradient is not finite hands over zeros, and the others go on."""
    import tensorflow as tf

    mutant.gradients = lambda pairs: mapped(pairs, lambda g, _v: tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)))


@mutation("STEP-EQ", "sparse-gradient-mismatch", programs="embedding")
def sparse_gradient_loses_a_row(mutant: Mutant) -> None:
    """The last row of a sparse gradient is left out on every replica."""
    import tensorflow as tf

    def cut(gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        return tf.IndexedSlices(gradient.values[:-1], gradient.indices[:-1], gradient.dense_shape)

    mutant.gradients = lambda pairs: [(cut(gradient), variable) for gradient, variable in pairs]


def _only(replica: int) -> Any:
    """Zeros on all replicas but one; on one device, which is replica 0, the gradient of the whole batch."""
    import tensorflow as tf

    return lambda gradient, _variable: tf.where(tf.equal(replica_id(), replica), gradient, tf.zeros_like(gradient))


def _reduced(operation: str, pairs: Pairs) -> Pairs:
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    gradients = context.all_reduce(operation, [tf.convert_to_tensor(gradient) for gradient, _ in pairs])
    return list(zip(gradients, [variable for _, variable in pairs], strict=True))


def _calls(mutant: Mutant) -> Any:
    """A count of the updates made so far, as the optimizer has it."""
    optimizers: list[Any] = []
    mutant.built = lambda _model, optimizer: optimizers.append(optimizer)
    return lambda: optimizers[0].iterations
