"""Run a function on every replica of any strategy, eagerly or in a ``tf.function``, with a part for each replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

HOW = ("eager", "function")
SIZES = ((5, 1, 3), (2, 7, 1), (4, 3, 6))
"""Numbers of examples, by step and replica: uneven in each step, and in sum."""


def sizes_of(step: int, replicas: int) -> tuple[int, ...]:
    """Return the numbers of examples of the replicas in a step."""
    sizes = SIZES[step % len(SIZES)]
    return tuple(sizes[replica % len(sizes)] for replica in range(replicas))


def replicas_of(strategy: Any) -> int:
    """Return the number of parts that a step has; a coordinator's workers are no replicas, but get parts too."""
    return 3 if is_coordinator(strategy) else int(strategy.num_replicas_in_sync)


def is_coordinator(strategy: Any) -> bool:
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)


def each(strategy: Any, function: Callable[..., Any], how: str) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that calls ``function(*part)`` on the replicas, given the parts of all.

    It returns the results of this process. Workers of a coordinator get the parts one after the other, because updates
    that are concurrent have no defined result.
    """
    import tensorflow as tf

    def on_replica(*part: Any) -> Any:
        # An argument of a tf.function has no device until an operation of the replica gives it one.
        return function(*tf.nest.map_structure(tf.identity, part, expand_composites=True))

    if is_coordinator(strategy):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        scheduled = tf.function(
            lambda *part: strategy.run(on_replica, args=part), reduce_retracing=True, autograph=False
        )
        return lambda parts: [coordinator.schedule(scheduled, args=tuple(part)).fetch() for part in parts]

    def run(*part: Any) -> Any:
        return strategy.run(on_replica, args=part)

    # Functions given here have no control flow for AutoGraph to convert, and are traced in half the time without it.
    call = tf.function(run, reduce_retracing=True, autograph=False) if how == "function" else run

    def step(parts: Sequence[Any]) -> list[Any]:
        results = call(*(distributed(strategy, column) for column in zip(*parts, strict=True)))
        if results is None:
            return []
        return list(zip(*map(strategy.experimental_local_results, tf.nest.flatten(results)), strict=True))

    return step


def distributed(strategy: Any, parts: Sequence[np.ndarray[Any, Any]]) -> Any:
    """Return a distributed value with a part of its own for each replica."""
    import tensorflow as tf

    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group])
    )


def split(arrays: Sequence[np.ndarray[Any, Any]], sizes: Sequence[int]) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """Return the parts of arrays that have as many rows as the sizes say, one after the other."""
    ends = np.cumsum(sizes)
    return [tuple(array[end - size : end] for array in arrays) for size, end in zip(sizes, ends, strict=True)]


def components(strategy: Any, variable: Any) -> list[np.ndarray[Any, Any]]:
    """Return the values of a variable's components in this process."""
    value = getattr(variable, "value", variable)
    value = variable if callable(value) else value  # a variable of TensorFlow, as those of tf_keras are
    value = getattr(variable, "_value", None) if not hasattr(value, "read_value") else value
    return [np.asarray(one) for one in strategy.experimental_local_results(value)]


def padded(parts: Sequence[Sequence[np.ndarray[Any, Any]]]) -> list[tuple[Any, ...]]:
    """Return the parts with the number of their rows in front, and all with equally many rows, for ``unpadded``."""
    # One height for all steps, so that a function is traced once.
    height = max(*map(max, SIZES), *(len(part[0]) for part in parts))

    def longer(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.concatenate([array, np.full((height - len(array), *array.shape[1:]), 99, array.dtype)])

    return [(np.int32(len(part[0])), *map(longer, part)) for part in parts]


def unpadded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of padded parts, which is traced once, and not again for each number of rows."""

    def call(rows: Any, *arrays: Any) -> Any:
        return function(*(array[:rows] for array in arrays))

    return call
