"""Mistakes in the loss: a wrong divisor, and a wrong reported value."""

from __future__ import annotations

from typing import Any

from tests.mutation.mutant import Mutant, mutation

LOOP = ("loop",)


@mutation("LOSS-EQ", "reported-loss-wrong", in_reference=True, loops=LOOP)
def report_one_replicas_loss(mutant: Mutant) -> None:
    """The loss of replica 0 is reported in place of the sum over replicas."""
    mutant.reduced = lambda _reduce, _operation, value: mutant.run.strategy.experimental_local_results(value)[0]


@mutation("LOSS-EQ", "reported-loss-wrong", in_reference=True, loops=LOOP)
def report_the_mean_of_shares(mutant: Mutant) -> None:
    """The replicas' shares of the loss are averaged."""
    mutant.reduced = lambda reduce, _operation, value: reduce("MEAN", value)


@mutation("LOSS-EQ", "reported-loss-wrong", in_reference=True, loops=LOOP)
def report_the_loss_times_replicas(mutant: Mutant) -> None:
    """The loss is summed over replicas twice."""
    mutant.reduced = lambda reduce, operation, value: reduce(operation, value) * mutant.run.num_replicas


@mutation("LOSS-EQ", "reported-loss-wrong", loops=LOOP)
def report_the_loss_of_the_step_before(mutant: Mutant) -> None:
    """Each step reports the loss of the step before."""
    before: list[Any] = []

    def loss(now: Any) -> Any:
        before.append(now)
        return before[max(0, len(before) - 2)]

    mutant.loss = loss


@mutation("LOSS-EQ", "reported-loss-wrong", loops=LOOP)
def report_a_rounded_loss(mutant: Mutant) -> None:
    """The reported loss is rounded to two decimals."""
    import tensorflow as tf

    mutant.loss = lambda now: tf.round(now * 100) / 100


@mutation("STEP-EQ", "gradient-scaled-by-replica-count", "mean-of-replica-means", in_reference=True, loops=LOOP)
def mean_over_the_replica(mutant: Mutant) -> None:
    """The loss is the mean over the replica's own examples, and gradients are summed."""
    import tensorflow as tf

    _averaging(mutant, lambda losses: tf.reduce_mean(losses))


@mutation("UNEVEN-EQ", "mean-of-replica-means", in_reference=True, loops=LOOP)
def mean_of_means(mutant: Mutant) -> None:
    """The loss is the mean over the replica's own examples, divided by the number of replicas."""
    import tensorflow as tf

    _averaging(mutant, lambda losses: tf.reduce_mean(losses) / mutant.run.num_replicas)


@mutation("STEP-EQ", "global-batch-wrong", "gradient-scaled-by-replica-count", in_reference=True, loops=LOOP)
def sum_over_the_batch(mutant: Mutant) -> None:
    """The loss is divided by a fixed number of examples per replica, as if that were the global batch."""
    import tensorflow as tf

    size = mutant.run.global_batch_size // mutant.run.num_replicas
    _averaging(mutant, lambda losses: tf.reduce_sum(losses) / tf.cast(size, losses.dtype))


def _averaging(mutant: Mutant, average: Any) -> None:
    """Have the program's own average over the global batch replaced."""
    import tensorflow as tf

    original = tf.nn.compute_average_loss
    tf.nn.compute_average_loss = lambda losses, *_args, **_kwargs: average(losses)
    mutant.at_end.append(lambda: setattr(tf.nn, "compute_average_loss", original))
