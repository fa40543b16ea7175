"""Make an exception in this process whose class is also the class of the exceptions on the ranks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from pytest_ddl.cluster.explain import Answer, RankError
from pytest_ddl.cluster.protocol import Failure


def error_like(failures: Sequence[Failure], message: str, answers: Sequence[Answer]) -> RankError:
    """Return a :class:`RankError` that is also an instance of the class that all failures have in common.

    ``raises=`` of the marker ``xfail`` and of ``@example(...).xfail()`` then means the same as without ranks.
    """
    shared: Any = _shared_class(failures)
    try:
        return _error_class(shared)(message, answers)
    except TypeError:
        # Python cannot combine every class with another, and some classes need other arguments to make an instance.
        return RankError(message, answers)


def _shared_class(failures: Sequence[Failure]) -> type[Exception]:
    """Return the most specific class of all exceptions that this process has loaded.

    It loads nothing for this, in particular not TensorFlow. The module of a class that the test names is loaded.
    """
    first, *others = failures
    for module, name in first.classes:
        loaded = getattr(sys.modules.get(module), name, None)
        is_shared = all((module, name) in failure.classes for failure in others)
        if is_shared and isinstance(loaded, type) and issubclass(loaded, Exception):
            return loaded
    return Exception


# Hypothesis takes exceptions of different classes for different failures, so equal failures need the same class.
@functools.cache
def _error_class(shared: type[Exception]) -> type[RankError]:
    if issubclass(RankError, shared):
        return RankError

    def initialize(self: RankError, message: str, answers: Sequence[Answer] = ()) -> None:
        BaseException.__init__(self, message)
        self.answers = tuple(answers)

    own = {"__init__": initialize, "__str__": BaseException.__str__, "__module__": RankError.__module__}
    return type(RankError.__name__, (RankError, shared), own)
