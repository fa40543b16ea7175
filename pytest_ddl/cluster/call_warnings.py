"""Issue the warnings of a call in another process in this one, so that the filters of this process apply to them."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_ddl.cluster import pickling
from pytest_ddl.cluster.protocol import RankWarning


def current_filters() -> bytes | None:
    """Return the filters that pytest has set for the running test, or ``None`` if they cannot be sent."""
    try:
        return pickling.dumps(list(warnings.filters))
    except Exception:  # a category of a filter belongs to something that cannot be pickled
        return None


@contextmanager
def caught(filters: bytes | None) -> Iterator[list[RankWarning]]:
    """Apply filters of another process. Yield a list that is filled with the recorded warnings when the context ends.

    A filter ``error`` raises the warning at once, as it does in the other process.

    :param filters: ``None`` to leave the filters of this process as they are and to record nothing.
    """
    found: list[RankWarning] = []
    if filters is None:
        yield found
        return
    with warnings.catch_warnings(record=True) as recorded:
        warnings.filters[:] = pickle.loads(filters)  # type: ignore[index]
        # Entering a context clears the decisions that Python has cached for earlier filters.
        with warnings.catch_warnings():
            pass
        try:
            yield found
        finally:
            found += [RankWarning(pickled(one.message), one.filename, one.lineno) for one in recorded]


def warn_again(found: Iterable[RankWarning]) -> None:
    """Issue warnings of other processes in this one, each once.

    :raises Warning: if a filter of this process makes it an error.
    """
    for warning in dict.fromkeys(found):
        message = unpickled(warning.message)
        warnings.warn_explicit(message, type(message), warning.filename, warning.lineno)


def pickled(message: Warning | str) -> bytes:
    """Return the pickled warning, or its pickled text if the warning cannot be pickled."""
    try:
        data = pickle.dumps(message)
    except Exception:
        data = pickle.dumps(str(message))
    return data


def unpickled(data: bytes) -> Warning:
    """Return the warning, or a ``UserWarning`` with its text if its class is not known in this process."""
    try:
        message: Any = pickle.loads(data)
    except Exception as error:
        message = f"a warning of a rank that cannot be shown here: {error}"
    return message if isinstance(message, Warning) else UserWarning(message)
