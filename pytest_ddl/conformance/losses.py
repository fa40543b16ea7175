"""Check that the losses of replicas with parts of a batch add up to the loss of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_ddl.conformance.comparing import SINGLE, MismatchError, NotJudgedError, compare, flat
from pytest_ddl.conformance.data import Array, cast, weights
from pytest_ddl.conformance.registry import Subject, register
from pytest_ddl.conformance.running import each, padded, replicas_of, sizes_of, split, unpadded

_PART = 3
"""Examples of each replica, if all have equally many."""


class Summed:
    """Sums over replicas of the value and the gradient of a loss, whose predictions have one factor for each column.

    :param loss: takes what ``__call__`` is given, with the predictions multiplied by the factors.
    """

    def __init__(self, strategy: Any, loss: Callable[..., Any], how: str, columns: int, precision: str) -> None:
        import tensorflow as tf

        with strategy.scope():
            self._factors = tf.Variable(np.linspace(0.9, 1.0, columns).astype(precision))
        self._loss = loss
        self._step = each(strategy, unpadded(self._replica), how)

    def _replica(self, labels: Any, predicted: Any, *further: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = tf.reduce_sum(self._loss(labels, predicted * self._factors, *further))
        gradient = tape.gradient(value, self._factors)
        if gradient is None:
            raise MismatchError("the loss has no gradient with respect to the predictions")
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", tf.identity(value)), context.all_reduce("SUM", gradient)

    def __call__(self, parts: Any) -> tuple[Array, Array]:
        """Return the sums over replicas, which each replica has."""
        value, gradient = self._step(padded(parts))[0]
        return np.asarray(value), np.asarray(gradient)


def _columns(subject: Subject) -> int:
    return int(np.shape(subject.arrays(2)[1])[-1])


def _compare_sums(strategy: Any, subject: Subject, loss: Callable[..., Any], sizes: Any, *, weighted: bool) -> None:
    """Compare value and gradient of the parts of replicas with those of one part that has all examples."""
    import tensorflow as tf

    arrays = subject.arrays(sum(sizes))
    # Later examples weigh more, so that the weights of replicas have other sums.
    given = weights(sum(sizes)) * np.arange(1, sum(sizes) + 1)
    arrays += cast((given,), subject.precision) if weighted else ()
    alone = Summed(tf.distribute.get_strategy(), loss, "eager", _columns(subject), subject.precision)
    wanted = alone([arrays])
    for how in ("function", "eager"):
        summed = Summed(strategy, loss, how, _columns(subject), subject.precision)
        found = summed(split(arrays, sizes))
        for what, one, other in zip(("loss", "gradient"), found, wanted, strict=True):
            compare(f"the sum of the replicas' {what}", one, other, SINGLE, where="with the whole batch")


def _even(strategy: Any) -> list[int]:
    return [_PART] * replicas_of(strategy)


def _called(subject: Subject) -> Any:
    """Return the object, if its call divides by the number of replicas itself."""
    loss = subject.make()
    if not hasattr(loss, "call"):
        raise NotJudgedError("a function is divided by fit(): only the values of its examples are checked")
    if subject.flavor == "tf_keras":
        raise NotJudgedError("tf_keras leaves the division by the number of replicas to the training loop")
    return loss


@register(
    "loss",
    "The losses of replicas with equal parts, each divided by the number of replicas, add up to the loss of the batch.",
    advice="Return one value for each example from call(), and leave the mean and its division to the base class.",
    unless=("needs_whole_batch",),
)
def loss_of_parts(strategy: Any, subject: Subject) -> None:
    _compare_sums(strategy, subject, _called(subject), _even(strategy), weighted=False)


@register(
    "loss",
    "The losses of replicas with equal parts and weights add up to the weighted loss of the batch.",
    advice="Let the base class multiply by sample_weight; do not divide by the sum of a replica's weights.",
    needs=("sample_weights",),
    unless=("needs_whole_batch",),
)
def loss_of_weighted_parts(strategy: Any, subject: Subject) -> None:
    _compare_sums(strategy, subject, _called(subject), _even(strategy), weighted=True)


def _by_example(subject: Subject) -> Callable[..., Any]:
    import tensorflow as tf

    loss = subject.make()
    call = getattr(loss, "call", loss)
    return lambda *arguments: call(*map(tf.convert_to_tensor, arguments))


@register(
    "loss",
    "call() gives one value for each example, which does not depend on the other examples of the replica.",
    advice="Reduce over the last axis only. A mean over the batch, or a division by its size, is the reduction's.",
    unless=("needs_whole_batch",),
)
def loss_of_each_example(strategy: Any, subject: Subject) -> None:
    by_example = _by_example(subject)
    sizes = sizes_of(0, replicas_of(strategy))
    arrays = subject.arrays(sum(sizes))
    (whole,) = flat(by_example(*arrays))
    if whole.shape[:1] != (sum(sizes),):
        raise MismatchError(f"{sum(sizes)} examples give the shape {whole.shape}, and not one value for each")
    parts = split(arrays, sizes)
    shown = each(strategy, by_example, "eager")(parts)
    rows = [part for (part,) in split((whole,), sizes)]
    for (found,) in shown:
        # A process has the results of its own replicas, and the parts have different sizes.
        wanted = [one for one in rows if one.shape == flat(found)[0].shape]
        if not any(np.allclose(flat(found)[0], one, SINGLE, SINGLE * np.abs(whole).max()) for one in wanted):
            compare("the loss of the examples of a replica", found, wanted[0] if wanted else whole, SINGLE)


@register(
    "loss",
    "The sum over replicas of compute_average_loss() of uneven parts is the loss of the whole batch.",
    advice="call() must return one value for each example.",
    unless=("needs_whole_batch",),
)
def loss_averaged_over_the_global_batch(strategy: Any, subject: Subject) -> None:
    import tensorflow as tf

    by_example = _by_example(subject)
    sizes = sizes_of(0, replicas_of(strategy))

    def average(*arguments: Any) -> Any:
        return tf.nn.compute_average_loss(by_example(*arguments), global_batch_size=sum(sizes))

    _compare_sums(strategy, subject, average, sizes, weighted=False)
