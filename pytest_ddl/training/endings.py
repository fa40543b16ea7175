"""Distinguish the end of a loop's data from the end of an iterator that the program made itself."""

from __future__ import annotations

from typing import Any


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
        "of the data given to run.steps ends the loop. Repeat the other data (dataset.repeat()), or zip both datasets "
        "(tf.data.Dataset.zip) so that they end together."
    )
