"""Run collectives on the ranks of a launch, one after the other, and measure their time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pytest_ddl.bench.launching.stopwatch import synchronize

ITEM = 4
"""Bytes of one float32."""


def in_a_row(strategy: Any, kind: str, elements: int) -> Callable[[int], float]:
    """Return a function that runs so many collectives one after the other in a graph, and returns their seconds.

    :param elements: float32 values of each replica.
    """
    import tensorflow as tf

    def collective(value: Any) -> Any:
        result = exchanged(kind, value)
        # A loop variable must keep its shape.
        return result if kind == "all_reduce" else tf.ensure_shape(result[: tf.shape(value)[0]], value.shape)

    def loop(value: Any, count: Any) -> Any:
        # For a single local replica, strategy.run returns a plain tensor and no PerReplica. A loop variable needs the
        # same structure before the first pass.
        value = strategy.run(tf.identity, args=(value,))
        for _ in tf.range(count):
            value = strategy.run(collective, args=(value,))
        return value

    many = tf.function(loop)
    # Zeros, because their sum stays zero for any number of collectives.
    value = strategy.experimental_distribute_values_from_function(lambda _: tf.zeros([elements]))

    def timed(count: int) -> float:
        times = tf.constant(count)
        started = time.perf_counter()
        done = many(value, times)
        synchronize(tf.reduce_sum(strategy.experimental_local_results(done)[0][:1]))
        return time.perf_counter() - started

    return timed


def exchanged(kind: str, value: Any) -> Any:
    """Return the result of one collective, in replica context."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    # MultiWorkerMirroredStrategy places the sum on the device of the value, and a loop variable has no device.
    value = tf.identity(value)
    if kind == "all_reduce":
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
    return context.all_gather(value, axis=0)
