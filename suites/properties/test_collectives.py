"""Collectives equal NumPy, for payloads that tell which replica they come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddl import current_strategy, generators

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
"""Not empty: that ends the process, see ``test_all_reduce_of_an_empty_tensor``."""
FLOATS = ("float32", "float64", "float16", "bfloat16")


def payload(replica: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Small whole numbers, which every dtype adds exactly, different for every replica and position."""
    size = int(np.prod(shape, dtype=int))
    return ((np.arange(size) * 3 + replica * 5) % 17 - 8).reshape(shape)


def distributed(strategy: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """The payload of each replica, as a distributed value."""
    import tensorflow as tf

    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(payload(context.replica_id_in_sync_group, shape), dtype)
    )


def on_replicas(strategy: Any, function: Any, value: Any) -> list[np.ndarray[Any, Any]]:
    """What each replica of this rank gets when it calls ``function`` in a tf.function."""
    import tensorflow as tf

    def replica_function(given: Any) -> Any:
        # An argument of a tf.function has no device before an operation of the replica gives it one, and
        # TensorFlow 2.21 then fails to reduce it ("destinations can not be empty").
        return function(tf.nest.map_structure(tf.identity, given, expand_composites=True))

    results = tf.function(lambda given: strategy.run(replica_function, args=(given,)))(value)
    return [result.numpy().astype("float64") for result in strategy.experimental_local_results(results)]


def all_payloads(strategy: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.stack([payload(replica, shape) for replica in range(strategy.num_replicas_in_sync)])


@given(shape=SHAPES, dtype=generators.dtypes())
def test_all_reduce_sum_equals_numpy(shape, dtype, synchronous_strategy):
    import tensorflow as tf

    def reduce(value):
        return tf.distribute.get_replica_context().all_reduce("SUM", value)

    expected = all_payloads(synchronous_strategy, shape).sum(axis=0)
    for result in on_replicas(synchronous_strategy, reduce, distributed(synchronous_strategy, shape, dtype)):
        np.testing.assert_array_equal(result, expected)


@given(shape=SHAPES, dtype=generators.dtypes(FLOATS))
def test_all_reduce_mean_equals_numpy(shape, dtype, synchronous_strategy):
    import tensorflow as tf

    def reduce(value):
        return tf.distribute.get_replica_context().all_reduce("MEAN", value)

    expected = all_payloads(synchronous_strategy, shape).mean(axis=0)
    for result in on_replicas(synchronous_strategy, reduce, distributed(synchronous_strategy, shape, dtype)):
        # One division of a whole number: at most half a unit in the last place of the dtype.
        eps = {"float64": 2e-16, "float32": 1.2e-7, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
        np.testing.assert_allclose(result, expected, rtol=eps)


# TensorFlow 2.21 has no kernel that gathers bfloat16.
@given(shape=SHAPES.filter(len), dtype=generators.dtypes(sorted({*generators.DTYPES} - {"bfloat16"})))
def test_all_gather_keeps_the_order_of_replicas(shape, dtype, synchronous_strategy):
    import tensorflow as tf

    def gather(value):
        return tf.distribute.get_replica_context().all_gather(value, axis=0)

    expected = np.concatenate(list(all_payloads(synchronous_strategy, shape)))
    for result in on_replicas(synchronous_strategy, gather, distributed(synchronous_strategy, shape, dtype)):
        np.testing.assert_array_equal(result, expected)


@given(rows=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_sparse_all_reduce_adds_rows_that_meet(rows, synchronous_strategy):
    """Replicas contribute to overlapping rows, and to different ones: what an embedding's gradient does."""
    import tensorflow as tf

    strategy, height = synchronous_strategy, 8
    replicas = range(strategy.num_replicas_in_sync)

    def slices(replica):
        chosen = [(row + replica) % height for row in rows]
        values = payload(replica, (len(rows), 2))
        return chosen, values

    def contribute(context):
        chosen, values = slices(context.replica_id_in_sync_group)
        return tf.IndexedSlices(tf.constant(values, "float64"), tf.constant(chosen, "int64"), tf.constant([height, 2]))

    def reduce(value):
        return tf.convert_to_tensor(tf.distribute.get_replica_context().all_reduce("SUM", value))

    expected = np.zeros((height, 2))
    for replica in replicas:
        chosen, values = slices(replica)
        np.add.at(expected, chosen, values)
    given_value = strategy.experimental_distribute_values_from_function(contribute)
    for result in on_replicas(strategy, reduce, given_value):
        np.testing.assert_array_equal(result, expected)


def reduce_an_empty_tensor() -> None:
    import tensorflow as tf

    def reduce(value):
        return tf.distribute.get_replica_context().all_reduce("SUM", value)

    strategy = current_strategy()
    results = on_replicas(strategy, reduce, distributed(strategy, (0,), "float32"))
    assert [tf.convert_to_tensor(result).shape for result in results] == [(0,)] * len(results)


def test_all_reduce_of_an_empty_tensor(ddl_cluster):
    if ddl_cluster.spec.name in ("parameter_server", "model_parallel"):
        pytest.skip("its replicas meet in no collective that a replica function could call")
    ddl_cluster.run(reduce_an_empty_tensor)
