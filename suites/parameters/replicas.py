"""Run many calls on every replica in one step, because a step costs more than the calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from suites.running import each, replicas_of

Call = Callable[[int], Any]
"""Takes the number of the replica, and returns a tensor."""


def on_replicas(strategy: Any, calls: Sequence[Call], how: str = "eager") -> list[dict[int, Any]]:
    """Return for each call what it gave, by the number of the replica, for the replicas of this process.

    A call that raises gives an array that raises again when it is read, so that the others are compared all the same.
    """
    import tensorflow as tf

    errors: dict[int, Exception] = {}
    replicas = replicas_of(strategy)

    def all_calls(replica: Any) -> list[Any]:
        number = int(tf.distribute.get_replica_context().replica_id_in_sync_group)
        results: list[Any] = [replica]
        for place, call in enumerate(calls):
            try:
                result = call(number)
            except Exception as error:
                errors[place] = error
                result = None
            results.append(tf.constant(0) if result is None else tf.convert_to_tensor(result))
        return results

    found: list[dict[int, Any]] = [_Results(errors.get(place)) for place in range(len(calls))]
    step = each(strategy, all_calls, how)
    for number, *results in step([(np.int32(one),) for one in range(replicas)]):
        for one, result in zip(found, results, strict=True):
            one[int(number)] = np.asarray(result)
    for place, error in errors.items():
        found[place] = _Results(error)
    return found


class _Results(dict[int, Any]):
    """Results by replica, or the exception that a replica raised, which comes when they are read."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    def items(self) -> Any:
        if self._error is not None:
            raise self._error
        return super().items()
