"""Find the call of a replica function to which an operation belongs, while a coordinator runs several at a time.

The number of a call is a value in the graph, because one traced function runs in all calls.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_CONTROL_FLOW = "ControlFlowFuncGraph"
"""Base class of the graphs of branches and loops, which TensorFlow traces anew each time."""


class _Current(threading.local):
    """Call that this thread traces or runs now."""

    number: Any = None
    applying: int = 0
    """Depth of calls of an optimizer's own code."""
    scheduling: int = 0
    """Depth of calls that schedule a closure, in which TensorFlow traces it."""

    def __init__(self) -> None:
        self.reads: Counter[int] = Counter()


_current = _Current()


@contextmanager
def numbered(number: Any) -> Iterator[None]:
    """Mark what this thread traces, or runs eagerly, as part of the call with this number; ``None`` for no number."""
    before = _current.number, _current.applying, _current.reads
    _current.number, _current.applying, _current.reads = number, 0, Counter()
    try:
        yield
    finally:
        _current.number, _current.applying, _current.reads = before


def number() -> Any:
    """Return the number of the call, or ``None`` if none is known in this graph.

    It is known in the graph of the call, and in those of its branches and loops. Another function that the replica
    function calls may be traced once, and then run in calls of other graphs.
    """
    import tensorflow as tf

    current = _current.number
    if current is None or tf.executing_eagerly():
        return current
    own, graph = getattr(current, "graph", None), tf.compat.v1.get_default_graph()
    while graph is not own and is_of_control_flow(graph):
        graph = graph.outer_graph
    return current if graph is own else None


def is_unknown() -> bool:
    """Return whether a call runs or is traced whose number is not known in this graph."""
    return _current.number is not None and number() is None


@contextmanager
def scheduling() -> Iterator[None]:
    """Mark that this thread schedules a closure."""
    _current.scheduling += 1
    try:
        yield
    finally:
        _current.scheduling -= 1


def in_closure() -> bool:
    """Return whether a closure that a coordinator runs is traced, or a replica function."""
    return _current.scheduling > 0 or _current.number is not None


def in_branch() -> bool:
    """Return whether a branch or a loop of the call is traced, which may run never or several times."""
    import tensorflow as tf

    return not tf.executing_eagerly() and is_of_control_flow(tf.compat.v1.get_default_graph())


def is_of_control_flow(graph: Any) -> bool:
    """Return whether a graph is that of a branch or a loop."""
    return any(owner.__name__ == _CONTROL_FLOW for owner in type(graph).__mro__)


def enter_optimizer() -> None:
    """Begin an optimizer's own code, whose reads do not belong to the program."""
    _current.applying += 1


def leave_optimizer() -> None:
    """End what :func:`enter_optimizer` began."""
    _current.applying -= 1


def in_optimizer() -> bool:
    """Return whether an optimizer's own code runs or is traced in this thread."""
    return _current.applying > 0


def position_of_read(key: int) -> int:
    """Return how many reads of a variable in this call came before this one."""
    _current.reads[key] += 1
    return _current.reads[key] - 1
