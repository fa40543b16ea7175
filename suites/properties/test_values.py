"""Test how a strategy runs functions, and reduces, gathers and distributes values that differ between replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddl import current_strategy
from suites.properties.variables import local_replicas

VARIANTS = ["mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"]
pytestmark = pytest.mark.ddl(strategies=VARIANTS, timeout=40)
HOW = pytest.mark.parametrize("how", ["eager", "function"])
DTYPES = ("float16", "float32", "float64", "bfloat16", "int32", "int64")


def called(how: str, function: Any, *args: Any) -> Any:
    """Return the result of a function that is called eagerly or as a ``tf.function``."""
    import tensorflow as tf

    return tf.function(function, autograph=False)(*args) if how == "function" else function(*args)


def distributed(strategy: Any, value_of: Any, dtype: str = "float64") -> Any:
    """Return the value of each replica, from its id, as a distributed value."""
    import tensorflow as tf

    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(value_of(context.replica_id_in_sync_group), dtype)
    )


def examples(replica: int, lengths: tuple[int, ...], width: int = 2) -> np.ndarray[Any, Any]:
    """Return rows of one replica. Their values identify the replica and the position."""
    rows = lengths[replica % len(lengths)]
    return (np.arange(rows * width).reshape(rows, width) * 3 + 100 * replica + 1) % 251


def everyone(strategy: Any, value_of: Any) -> list[Any]:
    return [value_of(replica) for replica in range(strategy.num_replicas_in_sync)]


@pytest.mark.ddl_item("strategy.reduce.none", "strategy.reduce.dtypes")
@HOW
@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_over_replicas(dtype, how, ddl_strategy):
    def value_of(replica):
        return (np.arange(6).reshape(3, 2) - 2) * (replica + 1) * 6

    given_value = distributed(ddl_strategy, value_of, dtype)
    expected = np.stack(everyone(ddl_strategy, value_of))
    total = called(how, lambda: ddl_strategy.reduce("SUM", given_value, axis=None))
    np.testing.assert_array_equal(total.numpy().astype("float64"), expected.sum(axis=0))
    assert total.dtype == dtype
    mean = called(how, lambda: ddl_strategy.reduce("mean", given_value, axis=None))
    # The quotients are whole numbers, which every dtype holds exactly.
    np.testing.assert_array_equal(mean.numpy().astype("float64"), expected.mean(axis=0))


@pytest.mark.ddl_item("strategy.reduce.axis", "strategy.reduce.axis_uneven", "strategy.reduce.empty_replica")
@HOW
@given(
    lengths=st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 3)),
    axis=st.sampled_from([0, 1, -1, -2]),
    op=st.sampled_from(["SUM", "MEAN"]),
)
def test_reduce_along_an_axis_counts_every_example(lengths, axis, op, how, ddl_strategy):
    """Give the replicas different numbers of rows, or of columns, and none to some: the mean is over all of them."""
    dimension = axis % 2

    def value_of(replica):
        return examples(replica, lengths) if dimension == 0 else examples(replica, lengths).T

    given_value = distributed(ddl_strategy, value_of)
    whole = np.concatenate(everyone(ddl_strategy, value_of), axis=dimension)
    found = called(how, lambda: ddl_strategy.reduce(op, given_value, axis=axis))
    if op == "SUM":
        np.testing.assert_array_equal(found, whole.sum(axis=dimension))
    else:
        np.testing.assert_allclose(found, whole.mean(axis=dimension), rtol=np.finfo("float64").eps)


@pytest.mark.ddl_item("strategy.reduce.axis", shows="behavior")
@HOW
@pytest.mark.parametrize("axis", [2, -3])
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_reduce_along_an_axis_that_does_not_exist(op, axis, how, ddl_strategy):
    given_value = distributed(ddl_strategy, lambda replica: examples(replica, (2,)))
    with pytest.raises(ValueError, match=r"out of range|Invalid reduction dimension"):
        called(how, lambda: ddl_strategy.reduce(op, given_value, axis=axis))


@pytest.mark.ddl_item("strategy.reduce.none")
@HOW
def test_reduce_of_plain_values(how, ddl_strategy):
    import tensorflow as tf

    strategy = ddl_strategy
    by_replica = distributed(strategy, lambda replica: replica + 1.0)
    found = called(how, lambda: strategy.reduce("MEAN", tf.constant([2.0, 7.0]), axis=None))
    assert np.array(found).tolist() == [2.0, 7.0]
    # With several workers, each worker's value is one of those that are added.
    if len(local_replicas(strategy)) == strategy.num_replicas_in_sync:
        with pytest.raises(ValueError, match="non-DistributedValues"):
            called(how, lambda: strategy.reduce("SUM", 3.0, axis=None))
    with pytest.raises((ValueError, AttributeError)):
        strategy.reduce("PRODUCT", by_replica, axis=None)


@pytest.mark.ddl_item("strategy.reduce.none")
@HOW
@pytest.mark.parametrize("zero", [np.float64(0), 0.0], ids=["NumPy", "Python"])
def test_the_sum_of_zero_is_zero(zero, how, ddl_strategy):
    assert float(called(how, lambda: ddl_strategy.reduce("SUM", zero, axis=None))) == 0


@pytest.mark.ddl_item("strategy.gather.axes", "strategy.gather.uneven")
@HOW
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 2)),
    axis=st.integers(0, 2),
    extra=st.integers(0, 2),
)
def test_gather_concatenates_in_the_order_of_replicas(shape, axis, extra, how, ddl_strategy):
    def value_of(replica):
        lengths = list(shape)
        lengths[axis] += extra * replica
        return np.arange(np.prod(lengths)).reshape(lengths) + 100 * replica

    given_value = distributed(ddl_strategy, value_of)
    found = called(how, lambda: ddl_strategy.gather(given_value, axis=axis))
    np.testing.assert_array_equal(found, np.concatenate(everyone(ddl_strategy, value_of), axis=axis))


# A refused collective ends all later ones of the process, as the error says.
@pytest.mark.ddl(strategies=VARIANTS, isolation="fresh", timeout=30)
@pytest.mark.ddl_item("strategy.gather.errors", shows="behavior")
@pytest.mark.parametrize("case", ["other dimensions", "ranks"])
def test_gather_refuses_what_it_cannot_concatenate(case, ddl_strategy):
    import tensorflow as tf

    def value_of(replica):
        return np.ones((2, 2 + replica) if case == "other dimensions" else (2,) * (1 + replica % 2))

    given_value = distributed(ddl_strategy, value_of)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        ddl_strategy.gather(given_value, axis=0)


@pytest.mark.ddl_item("strategy.values_from_function", "strategy.values_from_function.placement")
@pytest.mark.ddl_item("strategy.local_results")
def test_each_replica_gets_its_own_value_on_its_device(ddl_strategy):
    import tensorflow as tf

    strategy, seen = ddl_strategy, []

    def value_of(context):
        seen.append((context.replica_id_in_sync_group, context.num_replicas_in_sync))
        return tf.constant([10.0, 20.0]) * context.replica_id_in_sync_group

    value = strategy.experimental_distribute_values_from_function(value_of)
    replicas = local_replicas(strategy)
    assert seen == [(replica, strategy.num_replicas_in_sync) for replica in replicas]
    parts = strategy.experimental_local_results(value)
    assert [part.numpy().tolist() for part in parts] == [[10.0 * replica, 20.0 * replica] for replica in replicas]
    assert strategy.experimental_local_results("one") == ("one",)
    placed = strategy.experimental_local_results(strategy.run(lambda own: own * 1.0, args=(value,)))
    devices = [tf.DeviceSpec.from_string(part.device).device_index for part in placed]
    expected = [tf.DeviceSpec.from_string(device).device_index for device in strategy.extended.worker_devices]
    assert devices == expected


@pytest.mark.ddl_item("strategy.reduce.nest")
@HOW
def test_reduce_of_a_nest(how, ddl_cluster):
    ddl_cluster.run(check_reduce_of_a_nest, how)


def check_reduce_of_a_nest(how: str) -> None:
    import tensorflow as tf

    strategy = current_strategy()
    values = [distributed(strategy, lambda replica, leaf=leaf: leaf * (replica + 1.0)) for leaf in (1, 10, 100)]
    nest = {"a": values[0], "b": (values[1], [values[2]])}
    found = called(how, lambda: strategy.reduce("SUM", nest, axis=None))
    tf.nest.assert_same_structure(found, {"a": 0, "b": (0, [0])})
    number = strategy.num_replicas_in_sync
    assert [float(part) for part in tf.nest.flatten(found)] == [
        leaf * number * (number + 1) / 2 for leaf in (1, 10, 100)
    ]


@pytest.mark.ddl_item("replica_ctx.ids", "strategy.extended.devices")
def test_devices_of_replicas(ddl_cluster):
    ddl_cluster.run(check_devices_of_replicas)


def check_devices_of_replicas() -> None:
    """Compare what each replica's context says with the device of an operation of the replica."""
    import tensorflow as tf

    strategy, found = current_strategy(), []

    def replica_function() -> None:
        (device,) = tf.distribute.get_replica_context().devices
        found.append((tf.constant(1.0).device, device))

    strategy.run(replica_function)
    assert len(found) == len(local_replicas(strategy))
    for real, told in found:
        real_spec, told_spec = tf.DeviceSpec.from_string(real), tf.DeviceSpec.from_string(told)
        assert (real_spec.device_type, real_spec.device_index) == (told_spec.device_type, told_spec.device_index)


class Point:
    """Value that TensorFlow does not know."""

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.ddl_item("strategy.run.values", "strategy.run.eager_vs_function", "replica_ctx.ids")
@HOW
@pytest.mark.parametrize("inner", ["plain", "function"])
def test_run_gives_each_replica_its_own_arguments(inner, how, ddl_strategy):
    import tensorflow as tf

    strategy = ddl_strategy
    own = distributed(strategy, lambda replica: [replica, 2.0 * replica])

    def replica_function(value, nest, *, factor, text):
        context = tf.distribute.get_replica_context()
        assert context.num_replicas_in_sync == strategy.num_replicas_in_sync
        assert context.strategy is strategy
        return {
            "product": value * factor,
            "nest": (nest["a"][0] + 1.0, None),
            "id": tf.convert_to_tensor(context.replica_id_in_sync_group),
            "text": text,
            "whole": 7,
        }

    function = tf.function(replica_function, autograph=False) if inner == "function" else replica_function
    keywords = {"factor": 3.0, "text": "same"} if inner == "plain" else {"factor": 3.0, "text": tf.constant("same")}
    found = called(how, lambda: strategy.run(function, args=(own, {"a": [own]}), kwargs=keywords))
    assert found["nest"][1] is None
    for name, expected in {
        "product": lambda replica: [3.0 * replica, 6.0 * replica],
        "id": lambda replica: replica,
        "whole": lambda _: 7,
    }.items():
        parts = [np.array(part).tolist() for part in strategy.experimental_local_results(found[name])]
        wanted = [expected(replica) for replica in local_replicas(strategy)]
        # A Python value that is one object on all replicas is not wrapped.
        assert parts == (wanted if len(parts) == len(wanted) else wanted[:1]), name
    parts = [np.array(part).tolist() for part in strategy.experimental_local_results(found["nest"][0])]
    assert parts == [[replica + 1.0, 2.0 * replica + 1] for replica in local_replicas(strategy)]
    assert strategy.run(lambda: None) is None


@pytest.mark.ddl_item("strategy.run.eager_vs_function")
@pytest.mark.parametrize("function", ["outer", "inner", "both"])
def test_functions_that_run_eagerly(function, ddl_strategy):
    """A program that is debugged this way adds the same numbers, and its functions see values and no symbols."""
    import tensorflow as tf

    strategy, seen = ddl_strategy, []
    with strategy.scope():
        total = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)
    own = distributed(strategy, lambda replica: 3.0**replica, "float32")

    def replica_function(value):
        seen.append(float(value))
        total.assign_add(value)
        return tf.distribute.get_replica_context().all_reduce("SUM", value * 2.0)

    inner = tf.function(replica_function) if function != "outer" else replica_function

    def step(value):
        return strategy.run(inner, args=(value,))

    tf.config.run_functions_eagerly(True)
    try:
        found = (tf.function(step) if function != "inner" else step)(own)
    finally:
        tf.config.run_functions_eagerly(False)
    whole = sum(everyone(strategy, lambda replica: 3.0**replica))
    assert sorted(seen) == [3.0**replica for replica in local_replicas(strategy)]
    assert {float(part) for part in strategy.experimental_local_results(found)} == {2 * whole}
    assert {float(part.read_value()) for part in strategy.experimental_local_results(total)} == {1 + whole}


@pytest.mark.ddl_item("strategy.run.values")
@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "central_storage"])
def test_objects_of_the_replicas_come_back_in_order(ddl_strategy):
    import tensorflow as tf

    points = ddl_strategy.run(lambda: Point(int(tf.distribute.get_replica_context().replica_id_in_sync_group)))
    found = [point.number for point in ddl_strategy.experimental_local_results(points)]
    assert found == local_replicas(ddl_strategy)
    shared = Point(5)
    assert ddl_strategy.run(lambda: shared) is shared


@pytest.mark.ddl_item("strategy.run.exceptions")
@HOW
@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "central_storage"])
def test_an_exception_of_one_replica_reaches_the_caller(how, ddl_strategy):
    """Raise on the last replica, while the others wait for it in a reduction. The strategy stays usable."""
    import tensorflow as tf

    strategy, last = ddl_strategy, ddl_strategy.num_replicas_in_sync - 1

    def replica_function(wrong):
        context = tf.distribute.get_replica_context()
        if wrong and int(context._replica_id) == last:
            raise LookupError("only here")
        return context.all_reduce("SUM", tf.constant(3.0 ** int(context._replica_id)))

    with pytest.raises(LookupError, match="only here"):
        called(how, lambda: strategy.run(replica_function, args=(True,)))
    found = called(how, lambda: strategy.run(replica_function, args=(False,)))
    assert [float(part) for part in strategy.experimental_local_results(found)] == [
        sum(everyone(strategy, lambda replica: 3.0**replica))
    ] * (last + 1)


@pytest.mark.ddl_item("strategy.run.exceptions", shows="behavior")
@pytest.mark.ddl(strategies=["mirrored[replicas=3]"])
def test_a_merge_call_that_not_all_replicas_make_is_refused(ddl_strategy):
    import tensorflow as tf

    def replica_function():
        context = tf.distribute.get_replica_context()
        if int(context._replica_id) == 0:
            context.merge_call(lambda strategy: None)

    with pytest.raises(RuntimeError):
        ddl_strategy.run(replica_function)
    assert ddl_strategy.run(lambda: None) is None
