"""The end of a loop: tell the end of the run's data from the end of an iterator that the program made itself."""

from __future__ import annotations

from typing import Any


def has_ended(iterator: Any) -> bool:
    """Take one more batch, and say whether there was none.

    A step that raises ``StopIteration`` or ``OutOfRangeError`` does not say which iterator ended. The batch that is
    taken is lost, which changes nothing: the run either ends here or fails here.
    """
    import tensorflow as tf

    try:
        next(iterator)
    except (StopIteration, tf.errors.OutOfRangeError):
        return True
    return False


def own_iterator_ended(step: int | None = None) -> RuntimeError:
    """Make the exception of a program whose step ran out of other data than that of the loop."""
    where = "a step" if step is None else f"step {step}"
    return RuntimeError(
        f"an iterator of the program's own ended in {where}, and the data of the loop goes on. Only the end of the "
        "data given to run.steps ends the loop. Repeat the other data (dataset.repeat()), or zip both datasets "
        "(tf.data.Dataset.zip) so that they end together."
    )
