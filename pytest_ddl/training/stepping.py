"""Run steps and yield batches under the synchronous strategies, and find out which iterator ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pytest_ddl.training.data import distribute, number_of_steps
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
        listener.begin_step()
        try:
            loss = train_step(iterator)
        except (StopIteration, tf.errors.OutOfRangeError) as error:
            # At the end of the data, a traced step raises OutOfRangeError and an eager step StopIteration.
            if not has_ended(iterator):
                raise own_iterator_ended(listener.completed + 1) from error
            listener.end_of_data()
            return
        listener.step_done()
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
        listener.begin_step()
        yield batch
    listener.end_of_steps(iterator)


def has_ended(iterator: Any) -> bool:
    """Try to take one more batch, and return True if there is none.

    A step that raises ``StopIteration`` or ``OutOfRangeError`` does not show which iterator ended. The batch that is
    taken here is lost. This changes nothing, because the run ends or fails here in either case.
    """
    import tensorflow as tf

    try:
        next(iterator)
    except (StopIteration, tf.errors.OutOfRangeError):
        return True
    return False


def own_iterator_ended(step: int | None = None) -> RuntimeError:
    """Return the exception for a step in which an iterator ended that is not the loop's own."""
    where = "a step" if step is None else f"step {step}"
    return RuntimeError(
        f"an iterator of the program's own ended in {where}, but the data of the loop has not ended. Only the end "
        "of the data given to the loop ends it. Repeat the other data (dataset.repeat()), or zip both datasets "
        "(tf.data.Dataset.zip) so that they end together."
    )
