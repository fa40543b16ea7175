"""Test gathers, sparse reductions, nests, conditions and merge calls of replicas, eagerly and in a ``tf.function``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddl import current_strategy
from suites.properties.test_values import called, distributed, everyone
from suites.properties.variables import local_replicas

VARIANTS = ["mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"]
pytestmark = pytest.mark.ddl(strategies=VARIANTS, timeout=40)
HOW = pytest.mark.parametrize("how", ["eager", "function"])


def by_replicas(strategy: Any, how: str, function: Any, *args: Any) -> list[Any]:
    """Call a function on the replicas with distributed arguments, and return its result on each local one."""
    import tensorflow as tf

    def replica_function(*own: Any) -> Any:
        # A value without a device cannot be reduced; see test_reduction_of_an_argument.
        return function(*tf.nest.map_structure(tf.identity, own, expand_composites=True))

    found = called(how, lambda: strategy.run(replica_function, args=args))
    columns = [strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(found)]
    return [tf.nest.pack_sequence_as(found, leaves) for leaves in zip(*columns, strict=True)]


def context() -> Any:
    import tensorflow as tf

    return tf.distribute.get_replica_context()


@pytest.mark.ddl_item("replica_ctx.all_gather.axes", "replica_ctx.all_gather.order", "replica_ctx.all_gather.uneven")
@HOW
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 2)),
    axis=st.integers(0, 2),
    extra=st.integers(0, 2),
)
def test_all_gather_along_every_axis(shape, axis, extra, how, ddl_strategy):
    def value_of(replica):
        lengths = list(shape)
        lengths[axis] += extra * replica
        return np.arange(np.prod(lengths)).reshape(lengths) + 100 * replica

    expected = np.concatenate(everyone(ddl_strategy, value_of), axis=axis)
    own = distributed(ddl_strategy, value_of)
    for found in by_replicas(ddl_strategy, how, lambda value: context().all_gather(value, axis=axis), own):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.ddl_item("replica_ctx.all_gather.nest")
@HOW
def test_all_gather_of_a_nest(how, ddl_strategy):
    pairs = [distributed(ddl_strategy, lambda replica, leaf=leaf: [leaf, 10.0 * replica]) for leaf in (1, 2)]

    def gather(first, second):
        return context().all_gather({"first": first, "rest": [second]}, axis=0)

    for found in by_replicas(ddl_strategy, how, gather, *pairs):
        for leaf, part in ((1, found["first"]), (2, found["rest"][0])):
            expected = np.concatenate(everyone(ddl_strategy, lambda replica, leaf=leaf: [leaf, 10.0 * replica]))
            np.testing.assert_array_equal(part, expected)


@pytest.mark.ddl_item("replica_ctx.all_gather.gradient")
@HOW
def test_gradient_through_all_gather(how, ddl_strategy):
    """Weight the gathered values differently on each replica: the gradient is that of the sum of all losses."""
    import tensorflow as tf

    number = ddl_strategy.num_replicas_in_sync
    weights = np.arange(1.0, number * number * 2 + 1).reshape(number, number, 2)
    own = distributed(ddl_strategy, lambda replica: [[replica + 1.0, 2.0 * replica - 3.0]])

    def gradient(value):
        weight = tf.gather(tf.constant(weights), context().replica_id_in_sync_group)
        with tf.GradientTape() as tape:
            tape.watch(value)
            # The gradient of a power is rounded on a GPU, and that of a square is not.
            loss = tf.reduce_sum(tf.square(context().all_gather(value, axis=0)) * weight)
        return tape.gradient(loss, value)

    for replica, found in zip(local_replicas(ddl_strategy), by_replicas(ddl_strategy, how, gradient, own), strict=True):
        value = np.array([[replica + 1.0, 2.0 * replica - 3.0]])
        np.testing.assert_array_equal(found, 2 * value * weights[:, replica].sum(axis=0))


@pytest.mark.ddl_item("replica_ctx.all_gather.errors")
@HOW
def test_all_gather_refuses_slices_and_other_axes(how, ddl_strategy):
    """After the errors, the next one has the parts of all replicas in order."""
    import tensorflow as tf

    def slices():
        return context().all_gather(tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([3, 2])), axis=0)

    with pytest.raises(NotImplementedError):
        called(how, lambda: ddl_strategy.run(slices))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        called(how, lambda: ddl_strategy.run(lambda: context().all_gather(tf.ones((2, 2)), axis=None)))
    own = distributed(ddl_strategy, lambda replica: [[replica + 1.0, 3.0**replica]])
    expected = np.concatenate(everyone(ddl_strategy, lambda replica: [[replica + 1.0, 3.0**replica]]))
    for found in by_replicas(ddl_strategy, how, lambda value: context().all_gather(value, axis=0), own):
        np.testing.assert_array_equal(found, expected)


HEIGHT = 6


def rows_of(replica: int, lengths: tuple[int, ...]) -> tuple[Any, Any]:
    """Return indices, with a repetition, and values of one replica's slices."""
    number = lengths[replica % len(lengths)]
    indices = (np.arange(number) * 2 + replica) % 3
    return indices, (np.arange(number * 2).reshape(number, 2) + 1) * (replica + 1) * 6.0


def dense(strategy: Any, lengths: tuple[int, ...]) -> Any:
    """Return the dense form of each replica's slices."""
    found = np.zeros((strategy.num_replicas_in_sync, HEIGHT, 2))
    for replica in range(len(found)):
        indices, values = rows_of(replica, lengths)
        np.add.at(found[replica], indices, values)
    return found


def slices_of_replicas(strategy: Any, lengths: tuple[int, ...]) -> Any:
    import tensorflow as tf

    def contribute(value_context: Any) -> Any:
        indices, values = rows_of(value_context.replica_id_in_sync_group, lengths)
        return tf.IndexedSlices(
            tf.constant(values, "float64", (len(values), 2)), tf.constant(indices, "int64"), tf.constant([HEIGHT, 2])
        )

    return strategy.experimental_distribute_values_from_function(contribute)


SPARSE = [
    "replica_ctx.all_reduce.sparse",
    "replica_ctx.all_reduce.sparse_mean",
    "replica_ctx.all_reduce.sparse_lengths",
    "replica_ctx.all_reduce.sparse_eager",
]


@pytest.mark.ddl_item(*SPARSE)
@HOW
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_sparse_reduction(op, how, ddl_cluster):
    for lengths in ((2, 2, 2), (1, 4, 2), (3, 0, 1)):
        ddl_cluster.run(check_sparse_reduction, op, lengths, how)


def check_sparse_reduction(op: str, lengths: tuple[int, ...], how: str) -> None:
    import tensorflow as tf

    strategy = current_strategy()
    parts = dense(strategy, lengths)
    expected = parts.sum(axis=0) if op == "SUM" else parts.mean(axis=0)

    def reduce(value: Any) -> Any:
        reduced = context().all_reduce(op, value)
        assert isinstance(reduced, tf.IndexedSlices)
        return tf.convert_to_tensor(reduced)

    for found in by_replicas(strategy, how, reduce, slices_of_replicas(strategy, lengths)):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.ddl_item("replica_ctx.all_reduce.nest")
@HOW
def test_reduction_of_a_nest_of_dense_and_sparse(how, ddl_strategy):
    import tensorflow as tf

    lengths = (2, 3, 1)
    own = distributed(ddl_strategy, lambda replica: [replica + 1.0, 5.0 * replica])

    def reduce(value, slices):
        found = context().all_reduce("SUM", {"dense": value, "both": (slices, value * 2)})
        return {"dense": found["dense"], "sparse": tf.convert_to_tensor(found["both"][0]), "twice": found["both"][1]}

    whole = np.sum(everyone(ddl_strategy, lambda replica: [replica + 1.0, 5.0 * replica]), axis=0)
    for found in by_replicas(ddl_strategy, how, reduce, own, slices_of_replicas(ddl_strategy, lengths)):
        np.testing.assert_array_equal(found["dense"], whole)
        np.testing.assert_array_equal(found["twice"], 2 * whole)
        np.testing.assert_array_equal(found["sparse"], dense(ddl_strategy, lengths).sum(axis=0))


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "multi_worker_mirrored"], timeout=30)
@pytest.mark.ddl_item("replica_ctx.all_reduce.syncread")
@HOW
def test_reduction_of_an_on_read_variable(how, ddl_cluster):
    ddl_cluster.run(check_reduction_of_an_on_read_variable, how)


def check_reduction_of_an_on_read_variable(how: str) -> None:
    """Reduce the components once, although a read in cross-replica context would reduce them too."""
    import tensorflow as tf

    strategy = current_strategy()
    with strategy.scope():
        one = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def reduce() -> Any:
        one.assign(tf.cast(context().replica_id_in_sync_group + 2, "float32"))
        return context().all_reduce("SUM", one)

    expected = sum(everyone(strategy, lambda replica: replica + 2))
    for found in by_replicas(strategy, how, reduce):
        assert float(found) == expected


@pytest.mark.ddl_item("replica_ctx.all_reduce.in_cond")
@pytest.mark.parametrize("chosen", [True, False])
def test_reduction_in_a_condition(chosen, ddl_cluster):
    ddl_cluster.run(check_reduction_in_a_condition, chosen)


def check_reduction_in_a_condition(chosen: bool) -> None:
    """Reduce in a branch, which needs ``merge_call``: the documented error, whichever branch would be taken."""
    import tensorflow as tf

    strategy = current_strategy()
    own = distributed(strategy, lambda replica: replica + 1.0)

    def reduce(value: Any) -> Any:
        return tf.cond(tf.constant(chosen), lambda: context().all_reduce("SUM", value), lambda: -value)

    with pytest.raises(RuntimeError, match="merge_call"):
        by_replicas(strategy, "function", reduce, own)


@pytest.mark.ddl_item("replica_ctx.all_reduce.unplaced")
def test_reduction_of_an_argument(ddl_cluster):
    ddl_cluster.run(check_reduction_of_an_argument)


def check_reduction_of_an_argument() -> None:
    """Reduce an argument of a ``tf.function`` that no operation of the replica has touched."""
    import tensorflow as tf

    strategy = current_strategy()
    own = distributed(strategy, lambda replica: replica + 1.0)
    step = tf.function(lambda value: strategy.run(lambda part: context().all_reduce("SUM", part), args=(value,)))
    for found in strategy.experimental_local_results(step(own)):
        assert float(found) == sum(everyone(strategy, lambda replica: replica + 1))


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "central_storage"])
@pytest.mark.ddl_item("replica_ctx.merge_call.values", "replica_ctx.merge_call.order")
@HOW
def test_merge_calls_keep_values_and_order(how, ddl_strategy):
    import tensorflow as tf

    own = distributed(ddl_strategy, lambda replica: replica + 1.0)
    calls: list[str] = []

    def merged(strategy, value, text):
        parts = strategy.experimental_local_results(value)
        calls.append(text)
        return tf.add_n(list(parts)), value

    def replica_function(value):
        first, back = context().merge_call(merged, args=(value, "first"))
        second, _ = context().merge_call(merged, args=(value * 10.0,), kwargs={"text": "second"})
        # What merge_call returns once for all replicas is made an own value of each.
        return tf.identity(first), tf.identity(back), tf.identity(second)

    whole = sum(everyone(ddl_strategy, lambda replica: replica + 1))
    parts = by_replicas(ddl_strategy, how, replica_function, own)
    assert calls == ["first", "second"]
    assert [tuple(map(float, part)) for part in parts] == [
        (whole, replica + 1, 10 * whole) for replica in local_replicas(ddl_strategy)
    ]


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "central_storage"])
@pytest.mark.ddl_item("replica_ctx.merge_call.forbidden")
@pytest.mark.parametrize("place", ["function", "condition"])
def test_merge_call_in_a_graph_of_its_own_is_refused(place, ddl_strategy):
    """The strategy stays usable: the next merge_call gets the value of each replica."""
    import tensorflow as tf

    def add(strategy, value):
        return tf.add_n(list(strategy.experimental_local_results(value)))

    def merge():
        own = tf.constant(3.0) ** tf.cast(context().replica_id_in_sync_group, "float32")
        return context().merge_call(add, args=(own,))

    def replica_function():
        inner = tf.function(merge) if place == "function" else None
        return inner() if inner else tf.cond(tf.constant(True), merge, lambda: tf.constant(0.0))

    with pytest.raises(RuntimeError, match="merge_call"):
        called("function", lambda: ddl_strategy.run(replica_function))
    found = ddl_strategy.run(merge)
    whole = sum(everyone(ddl_strategy, lambda replica: 3.0**replica))
    assert {float(part) for part in ddl_strategy.experimental_local_results(found)} == {whole}
