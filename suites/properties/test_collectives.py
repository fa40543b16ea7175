"""Compare collectives with NumPy, with payloads that are different for each replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_ddl import current_rank, current_strategy, generators

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
"""Shapes without empty ones, which end the process; see ``test_all_reduce_of_an_empty_tensor``."""
EPS = {"float32": 1.2e-7, "float64": 2.3e-16, "float16": 1e-3, "bfloat16": 8e-3}
"""dtype -> distance from 1 to the next larger number."""
FLOATS = tuple(EPS)
NOT_ON_GPUS = ("bfloat16", "int32")
"""Types that GPUs do not reduce; see ``test_all_reduce_of_a_type_that_gpus_lack``."""


def payload(replica: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return small whole numbers that every dtype adds exactly, and that depend on the replica and the position."""
    size = int(np.prod(shape, dtype=int))
    return ((np.arange(size) * 3 + replica * 5) % 17 - 8).reshape(shape)


def assume_reducible(dtype: str) -> None:
    """Leave out an example whose type the device does not reduce.

    A collective that fails leaves all later ones of its processes aborted, and they would be reported in its place.
    """
    rank = current_rank()
    assume(rank is None or rank.device != "gpu" or dtype not in NOT_ON_GPUS)


def distributed(strategy: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return the payload of each replica as a distributed value."""
    import tensorflow as tf

    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(payload(context.replica_id_in_sync_group, shape), dtype)
    )


def on_replicas(strategy: Any, function: Any, value: Any) -> list[np.ndarray[Any, Any]]:
    """Return the result of ``function`` on each replica of this rank, called in a ``tf.function``."""
    import tensorflow as tf

    def replica_function(given: Any) -> Any:
        # An argument of a tf.function has no device until an operation of the replica gives it one. Without a device,
        # TensorFlow 2.21 fails to reduce it ("destinations can not be empty").
        return function(tf.nest.map_structure(tf.identity, given, expand_composites=True))

    results = tf.function(lambda given: strategy.run(replica_function, args=(given,)))(value)
    return [result.numpy().astype("float64") for result in strategy.experimental_local_results(results)]


def all_payloads(strategy: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.stack([payload(replica, shape) for replica in range(strategy.num_replicas_in_sync)])


@pytest.mark.ddl_item("replica_ctx.all_reduce.dense", "replica_ctx.all_reduce.dtypes")
@given(shape=SHAPES, dtype=generators.dtypes())
def test_all_reduce_sum_equals_numpy(shape, dtype, synchronous_strategy):
    import tensorflow as tf

    assume_reducible(dtype)

    def reduce(value):
        return tf.distribute.get_replica_context().all_reduce("SUM", value)

    expected = all_payloads(synchronous_strategy, shape).sum(axis=0)
    for result in on_replicas(synchronous_strategy, reduce, distributed(synchronous_strategy, shape, dtype)):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.ddl_item("replica_ctx.all_reduce.dense")
@given(shape=SHAPES, dtype=generators.dtypes(FLOATS))
def test_all_reduce_mean_equals_numpy(shape, dtype, synchronous_strategy):
    import tensorflow as tf

    assume_reducible(dtype)

    def reduce(value):
        return tf.distribute.get_replica_context().all_reduce("MEAN", value)

    expected = all_payloads(synchronous_strategy, shape).mean(axis=0)
    for result in on_replicas(synchronous_strategy, reduce, distributed(synchronous_strategy, shape, dtype)):
        # The mean is one division of a whole number: the error is at most half a unit in the last place of the dtype.
        np.testing.assert_allclose(result, expected, rtol=EPS[dtype])


@pytest.mark.ddl_item("replica_ctx.all_reduce.dtypes")
@pytest.mark.parametrize("dtype", NOT_ON_GPUS)
def test_all_reduce_of_a_type_that_gpus_lack(dtype, synchronous_strategy):
    import tensorflow as tf

    def reduce(value):
        return tf.distribute.get_replica_context().all_reduce("SUM", value)

    expected = all_payloads(synchronous_strategy, (2, 3)).sum(axis=0)
    for result in on_replicas(synchronous_strategy, reduce, distributed(synchronous_strategy, (2, 3), dtype)):
        np.testing.assert_array_equal(np.asarray(result, np.float64), expected)


# TensorFlow 2.21 has no kernel that gathers bfloat16.
@pytest.mark.ddl_item("replica_ctx.all_gather.order", "replica_ctx.all_gather.axes")
@given(shape=SHAPES.filter(len), dtype=generators.dtypes(sorted({*generators.DTYPES} - {"bfloat16"})))
def test_all_gather_keeps_the_order_of_replicas(shape, dtype, synchronous_strategy):
    import tensorflow as tf

    def gather(value):
        return tf.distribute.get_replica_context().all_gather(value, axis=0)

    expected = np.concatenate(list(all_payloads(synchronous_strategy, shape)))
    for result in on_replicas(synchronous_strategy, gather, distributed(synchronous_strategy, shape, dtype)):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.ddl_item("replica_ctx.all_gather.order")
def test_all_gather_of_a_batch(synchronous_strategy):
    """Gather what the dataset gives, which no operation of the step has computed."""
    import tensorflow as tf

    strategy, size = synchronous_strategy, 2 * synchronous_strategy.num_replicas_in_sync
    dataset = tf.data.Dataset.range(size).batch(size)

    @tf.function
    def step(iterator):
        def gather(batch):
            context = tf.distribute.get_replica_context()
            return context.replica_id_in_sync_group, batch, context.all_gather(batch, axis=0)

        return strategy.run(gather, args=(next(iterator),))

    found = step(iter(strategy.experimental_distribute_dataset(dataset)))
    for replica, own, gathered in zip(*map(strategy.experimental_local_results, found), strict=True):
        assert sorted(gathered.numpy()) == list(range(size))
        first = 2 * int(replica)
        np.testing.assert_array_equal(gathered[first : first + 2], own)


@pytest.mark.ddl_item("replica_ctx.all_reduce.sparse")
@given(rows=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_sparse_all_reduce_adds_rows_that_meet(rows, synchronous_strategy):
    """Let replicas contribute to the same rows and to different ones, as the gradient of an embedding does."""
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


PACKS = st.sampled_from([0, 1, 8, 64, 4096])
"""Bytes per pack: with 0 TensorFlow decides, with 1 every tensor has its own pack."""


@pytest.mark.ddl_item("replica_ctx.all_reduce.options", "cross_device.options.pack")
@given(
    shapes=st.lists(SHAPES, min_size=1, max_size=4),
    dtype=generators.dtypes(),
    pack=PACKS,
    op=st.sampled_from(["SUM", "MEAN"]),
)
def test_packs_do_not_mix_what_they_hold(shapes, dtype, pack, op, synchronous_strategy):
    """Reduce several tensors in one call, which packs them, and compare each with NumPy."""
    import tensorflow as tf

    assume(op == "SUM" or dtype in FLOATS)
    assume_reducible(dtype)
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=pack)
    strategy = synchronous_strategy
    given_values = [distributed(strategy, shape, dtype) for shape in shapes]

    def reduce(values):
        values = [tf.identity(value) for value in values]
        return tf.distribute.get_replica_context().all_reduce(op, values, options=options)

    results = tf.function(lambda values: strategy.run(reduce, args=(values,)))(given_values)
    for shape, result in zip(shapes, results, strict=True):
        payloads = all_payloads(strategy, shape)
        expected = payloads.sum(axis=0) if op == "SUM" else payloads.mean(axis=0)
        for part in strategy.experimental_local_results(result):
            eps = EPS.get(dtype, 0.0) if op == "MEAN" else 0.0
            np.testing.assert_allclose(part.numpy().astype("float64"), expected, rtol=eps)


@pytest.mark.ddl_item("replica_ctx.all_reduce.dense")
@given(order=st.permutations(range(4)), shape=SHAPES, dtype=generators.dtypes())
def test_who_contributes_what_is_invisible(order, shape, dtype, synchronous_strategy):
    """Check that the sum does not depend on which replica holds which payload; whole numbers add exactly."""
    import tensorflow as tf

    assume_reducible(dtype)
    strategy = synchronous_strategy
    ranking = sorted(range(strategy.num_replicas_in_sync), key=lambda replica: order.index(replica % 4))

    def contribute(context):
        return tf.constant(payload(ranking[context.replica_id_in_sync_group], shape), dtype)

    def reduce(value):
        return tf.distribute.get_replica_context().all_reduce("SUM", value)

    expected = all_payloads(strategy, shape).sum(axis=0)
    for result in on_replicas(strategy, reduce, strategy.experimental_distribute_values_from_function(contribute)):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.ddl_item("replica_ctx.all_reduce.gradient")
@given(shape=SHAPES.filter(len), op=st.sampled_from(["SUM", "MEAN"]))
def test_the_gradient_through_a_reduction_equals_finite_differences(shape, op, synchronous_strategy):
    """Differentiate the total loss of all replicas, a weighted sum of reduced cubes, with respect to their inputs."""
    import tensorflow as tf

    strategy = synchronous_strategy
    number = strategy.num_replicas_in_sync
    inputs = all_payloads(strategy, shape) / 8.0
    weights = np.stack([payload(replica + 3, shape) for replica in range(number)]) / 4.0

    def total_loss(values):
        reduced = (values**3).sum(axis=0) / (number if op == "MEAN" else 1)
        return (weights * reduced).sum()

    def gradient(value):
        weight = tf.gather(tf.constant(weights), tf.distribute.get_replica_context().replica_id_in_sync_group)
        with tf.GradientTape() as tape:
            tape.watch(value)
            reduced = tf.distribute.get_replica_context().all_reduce(op, value**3)
            loss = tf.reduce_sum(weight * reduced)
        return tape.gradient(loss, value)

    given_value = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(inputs[context.replica_id_in_sync_group])
    )
    results = on_replicas(strategy, gradient, given_value)
    first = first_replica(strategy)
    step = 1e-5
    for position, result in enumerate(results):
        for index in np.ndindex(*shape):
            moved = np.zeros_like(inputs)
            moved[(first + position, *index)] = step
            expected = (total_loss(inputs + moved) - total_loss(inputs - moved)) / (2 * step)
            # The error of a central difference of a cubic is proportional to its third derivative and the squared step.
            error = 6 * np.abs(weights).sum() * step**2 + 1e-16 * abs(total_loss(inputs)) / step
            assert abs(result[index] - expected) <= 10 * error + 1e-9


def first_replica(strategy: Any) -> int:
    """Return the global id of the first replica of this rank."""
    import tensorflow as tf

    ids = strategy.run(lambda: tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group))
    return int(strategy.experimental_local_results(ids)[0])


def reduce_an_empty_tensor() -> None:
    import tensorflow as tf

    def reduce(value):
        return tf.distribute.get_replica_context().all_reduce("SUM", value)

    strategy = current_strategy()
    results = on_replicas(strategy, reduce, distributed(strategy, (0,), "float32"))
    assert [tf.convert_to_tensor(result).shape for result in results] == [(0,)] * len(results)


@pytest.mark.ddl_item("replica_ctx.all_reduce.empty")
def test_all_reduce_of_an_empty_tensor(ddl_cluster):
    if ddl_cluster.spec.name in ("parameter_server", "model_parallel"):
        pytest.skip("its replicas meet in no collective that a replica function could call")
    ddl_cluster.run(reduce_an_empty_tensor)
