"""Check that a metric that replicas update with uneven parts is the metric of all examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytest_ddl.conformance.comparing import SINGLE, compare, flat
from pytest_ddl.conformance.data import Array, Data, cast, weights
from pytest_ddl.conformance.registry import Subject, register
from pytest_ddl.conformance.running import SIZES, each, padded, replicas_of, sizes_of, split, unpadded

Expected = Callable[..., Any]
"""Takes the arguments of all examples so far and their weights, and returns the metric of these examples."""
_IDLE = 100
"""Steps in which nothing counts. A state that doubles in each step overflows float32 after 128."""


class Updates:
    """Steps of one metric with uneven parts, and the examples that it has seen.

    :param data: returns the arguments of ``update_state`` for a number of examples.
    :param precision: dtype of all real numbers; by default as the data has them.
    """

    def __init__(
        self,
        strategy: Any,
        make: Callable[[], Any],
        data: Data,
        how: str,
        *,
        weighted: bool,
        precision: str | None = None,
    ) -> None:
        with strategy.scope():
            self.metric = make()
        self._data, self._weighted, self._replicas = data, weighted, replicas_of(strategy)
        self._precision = precision
        self._step = each(strategy, unpadded(self._update), how)
        self._seen: list[tuple[Array, ...]] = []

    def _update(self, *part: Any) -> None:
        if self._weighted:
            self.metric.update_state(*part[:-1], sample_weight=part[-1])
        else:
            self.metric.update_state(*part[:-1])

    def step(self, number: int, *, weight: float | None = None, backwards: bool = False) -> None:
        """Give each replica its part of the examples of a step.

        :param weight: one weight for all, and not one for each example.
        :param backwards: give the last examples to the first replica.
        """
        sizes = sizes_of(number, self._replicas)
        arrays = self._data(sum(sizes))
        given = weights(sum(sizes)) if weight is None else np.full(sum(sizes), weight)
        data = (*arrays, given) if self._precision is None else cast((*arrays, given), self._precision)
        parts = split(data, sizes)
        self._step(padded(parts[::-1] if backwards else parts))
        if weight != 0:
            self._seen.append(data)

    def check(self, expected: Expected, rtol: float, after: str) -> None:
        """Compare the result with the metric of all examples.

        :raises AssertionError: if it differs.
        """
        *arrays, given = (np.concatenate(columns) for columns in zip(*self._seen, strict=True))
        wanted = expected(*arrays, given if self._weighted else np.ones_like(given))
        compare(f"the result {after}", self.metric.result(), wanted, rtol)

    def reset(self) -> None:
        """Forget all examples."""
        self.metric.reset_state()
        self._seen.clear()


def uneven_parts(updates: Updates, expected: Expected, rtol: float) -> None:
    """Check the result after each of some steps with parts of other sizes.

    :raises AssertionError: if it is not the one of all examples so far.
    """
    for number in range(len(SIZES)):
        updates.step(number)
        updates.check(expected, rtol, f"after step {number + 1}")


def after_reset(updates: Updates, expected: Expected, rtol: float) -> None:
    """Check that a reset forgets the examples of every replica.

    :raises AssertionError: if the result is not the one of the examples after it.
    """
    updates.step(0)
    updates.reset()
    updates.step(1)
    updates.check(expected, rtol, "after a reset and one more step")


def _updates(strategy: Any, subject: Subject, how: str = "function", *, weighted: bool = False) -> Updates:
    return Updates(strategy, subject.make, subject.arrays, how, weighted=weighted, precision=subject.precision)


def _alone(subject: Subject, *, weighted: bool = False) -> Expected:
    """Return a function that gives all examples at once to an object that was made out of the strategy."""

    def expected(*arguments: Array) -> Sequence[Array]:
        metric = subject.make()
        *arrays, given = arguments
        metric.update_state(*arrays, **({"sample_weight": given} if weighted else {}))
        return flat(metric.result())

    return expected


@register(
    "metric",
    "Updates of replicas with uneven parts give the metric of all examples, after each step.",
    advice="Keep sums and counts in variables that replicas add (in Keras 3 those of add_variable do), and divide in "
    "result().",
    unless=("needs_whole_batch",),
    coordinator=True,
)
def metric_of_uneven_parts(strategy: Any, subject: Subject) -> None:
    for how in ("function", "eager"):
        uneven_parts(_updates(strategy, subject, how), _alone(subject), SINGLE)


@register(
    "metric",
    "Updates of replicas with uneven parts and weights give the weighted metric of all examples.",
    advice="Multiply each example by its weight before the sum, and divide by the sum of the weights of all replicas.",
    needs=("sample_weights",),
    unless=("needs_whole_batch",),
    coordinator=True,
)
def metric_of_weighted_parts(strategy: Any, subject: Subject) -> None:
    _weights_are_counts(subject)
    uneven_parts(_updates(strategy, subject, weighted=True), _alone(subject, weighted=True), SINGLE)


def _weights_are_counts(subject: Subject) -> None:
    """Check that a whole weight is as good as so many examples. One device cannot be the model of what it ignores.

    :raises AssertionError: if it is not.
    """
    rows = sum(SIZES[0])
    arrays, counts = subject.arrays(rows), np.rint(4 * weights(rows)).astype(int)
    found = _alone(subject, weighted=True)(*arrays, *cast((counts.astype("float64"),), subject.precision))
    wanted = _alone(subject)(*(np.repeat(array, counts, axis=0) for array in arrays), counts)
    compare("the result with weights", found, wanted, SINGLE, where="with as many copies of the examples")


@register(
    "metric",
    "It does not matter which replica gets which examples, or in which order.",
    advice="The state of a replica must not depend on which examples it had first.",
    unless=("needs_whole_batch",),
    coordinator=True,
)
def metric_of_parts_in_another_order(strategy: Any, subject: Subject) -> None:
    updates = _updates(strategy, subject)
    for number in reversed(range(len(SIZES))):
        updates.step(number, backwards=True)
    updates.check(_alone(subject), SINGLE, "of parts in another order")


@register(
    "metric",
    "A reset forgets the examples of every replica.",
    advice="reset_state() must assign to every variable of the metric.",
    unless=("needs_whole_batch",),
    coordinator=True,
)
def metric_after_a_reset(strategy: Any, subject: Subject) -> None:
    after_reset(_updates(strategy, subject), _alone(subject), SINGLE)


@register(
    "metric",
    "Many updates in which every weight is zero leave the result as it is.",
    advice="A replica that adds the sum of all replicas to its own state doubles it in each update.",
    needs=("sample_weights",),
    coordinator=True,
)
def metric_after_updates_without_weight(strategy: Any, subject: Subject) -> None:
    updates = _updates(strategy, subject, weighted=True)
    updates.step(0)
    before = flat(updates.metric.result())
    for _ in range(_IDLE):
        updates.step(1, weight=0.0)
    compare(
        f"the result after {_IDLE} updates without weight", updates.metric.result(), before, SINGLE, where="before them"
    )
