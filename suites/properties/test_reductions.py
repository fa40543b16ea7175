"""Reduce and gather at the edges: every rank and dtype, means of integers, scalars, no elements, and destinations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ddl import current_strategy
from suites.properties.test_replica_context import by_replicas, context
from suites.properties.test_values import called, distributed, everyone
from suites.properties.variables import has_one_copy, local_replicas

VARIANTS = ["mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"]
pytestmark = pytest.mark.ddl(strategies=VARIANTS, timeout=40)
HOW = pytest.mark.parametrize("how", ["eager", "function"])
SHAPES = ((), (1,), (2, 3), (2, 1, 3), (2, 1, 2, 2))


def whole_numbers(replica: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return small whole numbers, which depend on the replica and the position."""
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) * 3 + 5 * replica * replica + 1) % 17 - 8


def operation(strategy: Any, name: str, how: str, value: Any, op: str = "SUM", axis: int = 0) -> list[Any]:
    """Return what a reduction or a gather gives on each replica of this rank, or once to the caller."""
    if name == "all_reduce":
        return by_replicas(strategy, how, lambda own: context().all_reduce(op, own), value)
    if name == "all_gather":
        return by_replicas(strategy, how, lambda own: context().all_gather(own, axis=axis), value)
    if name == "gather":
        return [called(how, lambda: strategy.gather(value, axis=axis))]
    if name == "reduce":
        return [called(how, lambda: strategy.reduce(op, value, axis=None))]

    def batch() -> Any:
        with strategy.scope():
            return strategy.extended.batch_reduce_to(op, [(value, value), (value, value)])

    return [part for found in called(how, batch) for part in strategy.experimental_local_results(found)]


@pytest.mark.ddl_item("replica_ctx.all_reduce.dense", "replica_ctx.all_reduce.dtypes")
@HOW
@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_sum_of_every_rank(dtype, how, ddl_strategy):
    for shape in SHAPES:
        own = distributed(ddl_strategy, lambda replica, shape=shape: whole_numbers(replica, shape), dtype)
        expected = np.sum(everyone(ddl_strategy, lambda replica, shape=shape: whole_numbers(replica, shape)), axis=0)
        for found in operation(ddl_strategy, "all_reduce", how, own):
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, expected)


@pytest.mark.ddl_item("replica_ctx.all_reduce.dtypes")
@HOW
@pytest.mark.parametrize("name", ["all_reduce", "reduce"])
def test_sum_of_complex_numbers(name, how, ddl_cluster):
    ddl_cluster.run(check_complex_numbers, name, how)


def check_complex_numbers(name: str, how: str) -> None:
    """The sum is exact, or refused by an error of Python."""
    import tensorflow as tf

    strategy = current_strategy()

    def value_of(replica: int) -> Any:
        return whole_numbers(replica, (2, 3)) + 1j * whole_numbers(replica + 1, (2, 3))

    try:
        results = operation(strategy, name, how, distributed(strategy, value_of, "complex64"))
    except (TypeError, ValueError, tf.errors.OpError) as error:
        assert "complex" in str(error)  # noqa: PT017
        return
    for found in results:
        np.testing.assert_array_equal(found, np.sum(everyone(strategy, value_of), axis=0))


@pytest.mark.ddl_item("replica_ctx.all_reduce.dtypes", "strategy.reduce.dtypes")
@HOW
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", ["all_reduce", "reduce", "batch_reduce_to"])
def test_mean_of_integers(name, dtype, how, ddl_cluster):
    ddl_cluster.run(check_mean_of_integers, name, dtype, how)


def check_mean_of_integers(name: str, dtype: str, how: str) -> None:
    """No number of replicas here divides the sums. The mean is exact, or refused, and not cut off."""
    import tensorflow as tf

    strategy = current_strategy()

    def value_of(replica: int) -> Any:
        return [replica * replica + 1, -replica * replica - 1]

    mean = np.mean(everyone(strategy, value_of), axis=0)
    assert (mean % 1).all()
    try:
        results = operation(strategy, name, how, distributed(strategy, value_of, dtype), "MEAN")
    except (TypeError, ValueError, tf.errors.OpError):
        return
    for found in results:
        np.testing.assert_allclose(found, mean, rtol=1e-6)


@pytest.mark.ddl_item("replica_ctx.all_reduce.empty")
@pytest.mark.parametrize("name", ["all_gather", "gather", "reduce", "batch_reduce_to"])
def test_tensors_without_elements(name, ddl_cluster):
    ddl_cluster.run(check_tensors_without_elements, name)


def check_tensors_without_elements(name: str) -> None:
    strategy = current_strategy()
    for shape in ((0,), (0, 2), (2, 0)):
        own = distributed(strategy, lambda _, shape=shape: np.zeros(shape), "float32")
        gathers = name in ("all_gather", "gather")
        expected = (shape[0] * (strategy.num_replicas_in_sync if gathers else 1), *shape[1:])
        for found in operation(strategy, name, "function", own):
            assert tuple(found.shape) == expected


@pytest.mark.ddl_item("replica_ctx.all_gather.errors", "strategy.gather.errors")
@HOW
@pytest.mark.parametrize("name", ["all_gather", "gather"])
def test_a_scalar_is_gathered_or_refused(name, how, ddl_cluster):
    ddl_cluster.run(check_a_scalar, name, how)


def check_a_scalar(name: str, how: str) -> None:
    """Afterwards the strategy gathers as before."""
    import tensorflow as tf

    strategy = current_strategy()
    values = everyone(strategy, lambda replica: 3.0**replica)
    try:
        results = operation(strategy, name, how, distributed(strategy, lambda replica: 3.0**replica))
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        assert str(error)  # noqa: PT017
    else:
        for found in results:
            assert found.numpy().tolist() == values
    for found in operation(strategy, name, how, distributed(strategy, lambda replica: [3.0**replica])):
        assert found.numpy().tolist() == values


@pytest.mark.ddl_item("strategy.extended.reduce_to")
@HOW
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_reductions_to_devices(op, how, ddl_strategy):
    """A sum or a mean goes to the host, to one device, to those of the replicas, and to those of a variable."""
    import tensorflow as tf

    strategy = ddl_strategy
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
    devices = list(strategy.extended.worker_devices)
    host = devices[0].rpartition("/device:")[0] + "/device:CPU:0"
    homes = [part.device for part in strategy.experimental_local_results(variable)]

    def value_of(replica: int) -> Any:
        return [6.0 * replica * replica + 6, 30.0 * replica]

    # What a function returns lies on the devices of the replicas.
    own = strategy.run(lambda value: value * 1.0, args=(distributed(strategy, value_of, "float32"),))
    values = np.array(everyone(strategy, value_of))
    expected = values.sum(axis=0) if op == "SUM" else values.mean(axis=0)
    cases = {"host": (host, [host]), "one": (devices[-1], [devices[-1]]), "replicas": (own, devices)}
    cases["variable"] = (variable, homes)

    def reduce() -> Any:
        with strategy.scope():
            alone = {name: strategy.extended.reduce_to(op, own, where) for name, (where, _) in cases.items()}
            pairs = [(own, where) for where, _ in cases.values()]
            together = dict(zip(cases, strategy.extended.batch_reduce_to(op, pairs), strict=True))
            return alone, together

    for found in called(how, reduce):
        for name, (_, places) in cases.items():
            parts = strategy.experimental_local_results(found[name])
            for part in parts:
                np.testing.assert_array_equal(part, expected, err_msg=name)
            # A tf.function returns what is equal on all replicas once.
            if how == "eager":
                assert [part.device for part in parts] == places, name
    assert len(homes) == (1 if has_one_copy(strategy) else len(local_replicas(strategy)))


@pytest.mark.ddl_item("replica_ctx.all_gather.axes", "strategy.gather.axes")
@HOW
@pytest.mark.parametrize("name", ["all_gather", "gather"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_axes_that_count_from_the_back(axis, name, how, ddl_strategy):
    """The documentation has axes from 0 only. A strategy takes others too, or refuses them, and gathers afterwards."""
    import tensorflow as tf

    def value_of(replica: int) -> Any:
        return whole_numbers(replica, (2, 3))

    own = distributed(ddl_strategy, value_of)
    for given in (axis, axis + 2):
        try:
            results = operation(ddl_strategy, name, how, own, axis=given)
        except (ValueError, tf.errors.InvalidArgumentError):
            assert given < 0
            continue
        for found in results:
            np.testing.assert_array_equal(found, np.concatenate(everyone(ddl_strategy, value_of), axis=given))


@pytest.mark.ddl_item("strategy.gather.errors")
@HOW
def test_a_gather_of_slices(how, ddl_strategy):
    """The documentation allows no slices: a strategy refuses them, or gathers their dense forms."""
    import tensorflow as tf

    def slices() -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        values = tf.reshape(tf.constant(3.0) ** tf.cast(replica, "float32"), [1, 1])
        return tf.IndexedSlices(values, tf.constant([1]), tf.constant([3, 1]))

    given = ddl_strategy.run(slices)
    try:
        found = called(how, lambda: ddl_strategy.gather(given, axis=0))
    except NotImplementedError:
        return
    expected = everyone(ddl_strategy, lambda replica: [[0.0], [3.0**replica], [0.0]])
    np.testing.assert_array_equal(tf.convert_to_tensor(found), np.concatenate(expected))


# A refused collective ends all later ones of the process, as the error says.
@pytest.mark.ddl(strategies=VARIANTS, isolation="fresh", timeout=30)
@pytest.mark.ddl_item("replica_ctx.all_gather.errors", shows="behavior")
@pytest.mark.parametrize("case", ["other dimensions", "ranks"])
def test_replicas_with_parts_that_do_not_fit_are_refused(case, ddl_strategy):
    import tensorflow as tf

    def value_of(replica: int) -> Any:
        return np.ones((2, 2 + replica) if case == "other dimensions" else (2,) * (1 + replica % 2))

    own = distributed(ddl_strategy, value_of)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        by_replicas(ddl_strategy, "eager", lambda value: context().all_gather(value, axis=0), own)
