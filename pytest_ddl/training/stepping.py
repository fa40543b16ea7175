"""Run steps and yield batches under the synchronous strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pytest_ddl.training.data import distribute, number_of_steps
from pytest_ddl.training.endings import has_ended, own_iterator_ended
from pytest_ddl.training.listener import StepListener, traces_of


def synchronous(
    listener: StepListener, strategy: Any, train_step: Any, dataset: Any, more: Callable[[], bool]
) -> Iterator[Any]:
    """Run and record steps until ``more()`` is false or the data ends, and yield the loss of each."""
    import tensorflow as tf

    if not more():
        return
    iterator = iter(distribute(strategy, dataset))
    left = number_of_steps(dataset)
    while more() and left != 0:
        left = left - 1 if left is not None else None
        try:
            loss = train_step(iterator)
        except (StopIteration, tf.errors.OutOfRangeError) as error:
            # At the end of the data, a traced step raises OutOfRangeError and an eager step StopIteration.
            if not has_ended(iterator):
                raise own_iterator_ended(listener.completed + 1) from error
            listener.end_of_data()
            return
        number = listener.end_step(loss, traces=traces_of(train_step))
        yield loss if number is None else number
    if left != 0:
        listener.end_of_steps(iterator)


def batches(listener: StepListener, strategy: Any, dataset: Any, more: Callable[[], bool]) -> Iterator[Any]:
    """Yield distributed batches for a program that records its steps itself."""
    import tensorflow as tf

    if not more():
        return
    iterator = iter(distribute(strategy, dataset))
    while more():
        try:
            batch = next(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            return
        yield batch
    listener.end_of_steps(iterator)
