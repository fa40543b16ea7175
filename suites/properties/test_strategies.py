"""Test what strategies promise of themselves: devices, resolver, copies, placement, errors and use of several."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from pytest_ddl import current_strategy
from suites.properties.test_cross_device import hierarchical, one_device
from suites.properties.test_values import called, distributed, everyone
from suites.properties.variables import has_one_copy, local_replicas

HOW = pytest.mark.parametrize("how", ["eager", "function"])
ALL = ["one_device", "mirrored[replicas=3]", "multi_worker_mirrored", "parameter_server", "central_storage"]
SERVERS = "parameter_server[ps=2]"


def total(strategy: Any, factor: float = 1.0) -> list[float]:
    """Return the sum of numbers of the replicas, as each local replica has it."""
    import tensorflow as tf

    own = distributed(strategy, lambda replica: factor * 3**replica)
    step = tf.function(
        lambda value: strategy.run(
            lambda part: tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(part)), args=(value,)
        ),
        autograph=False,
    )
    return [float(part) for part in strategy.experimental_local_results(step(own))]


def expected_total(strategy: Any, factor: float = 1.0) -> list[float]:
    whole = factor * sum(3**replica for replica in range(strategy.num_replicas_in_sync))
    return [whole] * len(local_replicas(strategy))


@pytest.mark.ddl(strategies=ALL)
@pytest.mark.ddl_item("strategy.cluster_resolver", shows="behavior")
def test_the_resolver_of_a_strategy(ddl_strategy):
    """A strategy of one process has none, or one without a cluster; the others have that of their cluster."""
    import tensorflow as tf

    resolver = ddl_strategy.cluster_resolver
    if isinstance(ddl_strategy, tf.distribute.MultiWorkerMirroredStrategy):
        spec = resolver.cluster_spec().as_dict()
        assert len(spec["worker"]) == ddl_strategy.num_replicas_in_sync
        assert (resolver.task_type, resolver.task_id) == ("worker", local_replicas(ddl_strategy)[0])
    elif isinstance(ddl_strategy, tf.distribute.experimental.ParameterServerStrategy):
        assert resolver is not None
        assert {name: len(tasks) for name, tasks in resolver.cluster_spec().as_dict().items()} == {"worker": 2, "ps": 1}
    else:
        assert resolver is None or not resolver.cluster_spec().jobs


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"])
@pytest.mark.ddl_item("strategy.extended.colocate")
def test_variables_beside_others(ddl_strategy):
    """A variable beside another one is one of the strategy too: it gets the sum of what the replicas give."""
    import tensorflow as tf

    strategy = ddl_strategy
    outside = tf.Variable(1.0)
    with strategy.scope():
        first = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.SUM)
        with strategy.extended.colocate_vars_with(first):
            second = tf.Variable([3.0, 4.0], aggregation=tf.VariableAggregation.SUM)
    devices = [[part.device for part in strategy.experimental_local_results(variable)] for variable in (first, second)]
    assert devices[0] == devices[1]
    assert strategy.extended.variable_created_in_scope(first)
    assert not strategy.extended.variable_created_in_scope(outside)
    for part in strategy.experimental_local_results(first):
        assert strategy.extended.value_container(part) is first
    own = distributed(strategy, lambda replica: [replica + 1.0, 3.0**replica], "float32")
    strategy.run(lambda value: second.assign_add(value), args=(own,))
    expected = np.sum([[3.0, 4.0], *everyone(strategy, lambda replica: [replica + 1.0, 3.0**replica])], axis=0)
    for part in strategy.experimental_local_results(second):
        np.testing.assert_array_equal(part.read_value(), expected)
    if not has_one_copy(strategy):
        with strategy.scope(), pytest.raises(ValueError, match=r"scope|strategy"):
            strategy.extended.colocate_vars_with(outside).__enter__()


@pytest.mark.ddl(strategies=["mirrored[replicas=3]"], isolation="fresh")
@pytest.mark.ddl_item("strategy.mixing")
def test_strategies_of_other_sizes_one_after_another(ddl_strategy):
    """Each reduces over its own replicas, in any order, also when functions of the others were traced before."""
    import tensorflow as tf

    strategies = [tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(size)]) for size in (2, 1, 3)]
    for factor, number in ((1.0, 0), (2.0, 2), (3.0, 0), (5.0, 1), (7.0, 2), (11.0, 0)):
        strategy = strategies[number]
        assert total(strategy, factor) == expected_total(strategy, factor)
        assert total(ddl_strategy, factor) == expected_total(ddl_strategy, factor)


@pytest.mark.ddl(strategies=["mirrored[replicas=3]"], isolation="fresh")
@pytest.mark.ddl_item("strategy.mixing", shows="behavior")
def test_a_variable_of_another_strategy(ddl_strategy):
    """An assignment by the replicas is refused with its name, or gives every component the same value."""
    import tensorflow as tf

    other = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with other.scope():
        foreign = tf.Variable([1.0], aggregation=tf.VariableAggregation.SUM)
    own = distributed(ddl_strategy, lambda replica: [replica + 1.0], "float32")
    try:
        ddl_strategy.run(lambda value: foreign.assign_add(value), args=(own,))
    except (ValueError, RuntimeError, TypeError) as error:
        assert str(error)  # noqa: PT017
    assert len({float(part.read_value()[0]) for part in other.experimental_local_results(foreign)}) == 1
    with ddl_strategy.scope(), pytest.raises(RuntimeError, match=r"[Ss]trategy"):
        other.scope().__enter__()
    assert total(other) == expected_total(other)


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "multi_worker_mirrored", "one_device"], isolation="fresh")
@pytest.mark.ddl_item("strategy.deepcopy")
def test_copies_of_a_strategy(ddl_strategy):
    """A deep copy has the replicas of the original, and reduces over them. A flat copy and a pickle are refused."""
    other = copy.deepcopy(ddl_strategy)
    assert other.num_replicas_in_sync == ddl_strategy.num_replicas_in_sync
    assert other is ddl_strategy or other.extended is not ddl_strategy.extended
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.copy(ddl_strategy)
    with pytest.raises((TypeError, AttributeError, RuntimeError, pickle.PicklingError)):
        pickle.dumps(ddl_strategy)
    assert total(other) == expected_total(ddl_strategy)
    assert total(ddl_strategy, 2.0) == expected_total(ddl_strategy, 2.0)


@pytest.mark.ddl(strategies=["mirrored[replicas=3]"], isolation="fresh")
@pytest.mark.ddl_item("strategy.mirrored.devices")
def test_devices_of_a_mirrored_strategy(ddl_strategy):
    """Replicas are in the order of the devices. A device twice, one that does not exist, or none, is refused."""
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:2", "/cpu:0"])
    assert [device.rpartition(":")[2] for device in strategy.extended.worker_devices] == ["2", "0"]
    values = distributed(strategy, lambda replica: replica * 5.0)
    found = strategy.experimental_local_results(strategy.run(lambda value: value + 1.0, args=(values,)))
    assert [(float(value), value.device.rpartition(":")[2]) for value in found] == [(1.0, "2"), (6.0, "0")]
    assert total(strategy) == expected_total(strategy)
    for wrong in (["CPU:0", "CPU:0"], ["CPU:0", "/device:CPU:0"]):
        with pytest.raises((ValueError, AssertionError, RuntimeError), match=r"[Dd]uplicate|[Dd]evice|unique"):
            tf.distribute.MirroredStrategy(wrong)


@pytest.mark.ddl(strategies=["mirrored[replicas=3]"])
@pytest.mark.ddl_item("strategy.mirrored.devices", shows="behavior")
def test_a_device_that_does_not_exist(ddl_strategy):
    """The strategy, or at the latest its first variable, raises an error that names the device."""
    import tensorflow as tf

    try:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:77"])
        with strategy.scope():
            variable = tf.Variable(1.0)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        assert "77" in str(error)  # noqa: PT017
        return
    assert [part.device for part in strategy.experimental_local_results(variable)] == "an error"


def made_with(make: Any, kind: str) -> Any:
    """Return the test of a strategy with these operations; the marker's arguments belong to a whole test."""

    @pytest.mark.ddl(strategies=["mirrored[replicas=3]"], arguments={"mirrored": make})
    @pytest.mark.ddl_item("strategy.mirrored.cross_device_ops")
    @HOW
    def test(how, ddl_strategy):
        import tensorflow as tf

        assert type(ddl_strategy.extended._cross_device_ops).__name__ == kind
        with ddl_strategy.scope():
            variable = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.SUM)
        own = distributed(ddl_strategy, lambda replica: [replica + 1.0, 10.0 * replica], "float32")

        def step() -> Any:
            ddl_strategy.run(lambda value: variable.assign_add(tf.identity(value)), args=(own,))
            return ddl_strategy.reduce("MEAN", own, axis=None)

        mean = called(how, step)
        parts = np.array(everyone(ddl_strategy, lambda replica: [replica + 1.0, 10.0 * replica]))
        np.testing.assert_allclose(mean, parts.mean(axis=0), rtol=2 * np.finfo("float32").eps)
        for part in ddl_strategy.experimental_local_results(variable):
            np.testing.assert_array_equal(part.read_value(), np.array([1.0, 2.0]) + parts.sum(axis=0))

    return test


test_mirrored_with_hierarchical_copies = made_with(hierarchical, "HierarchicalCopyAllReduce")
test_mirrored_with_one_device = made_with(one_device, "ReductionToOneDevice")
test_mirrored_with_collectives = made_with(dict, "CollectiveAllReduce")


@pytest.mark.ddl(strategies=["central_storage"])
@pytest.mark.ddl_item("strategy.central.values")
@HOW
def test_central_storage_has_one_copy(how, ddl_strategy):
    """Replicas read the one copy, and each update is that of the reduced values."""
    import tensorflow as tf

    strategy = ddl_strategy
    for aggregation in ("SUM", "MEAN", "ONLY_FIRST_REPLICA"):
        with strategy.scope():
            variable = tf.Variable([6.0, 12.0], aggregation=tf.VariableAggregation[aggregation])
        own = distributed(strategy, lambda replica: [6.0 * replica + 6, 12.0 * replica], "float32")
        parts = np.array(everyone(strategy, lambda replica: [6.0 * replica + 6, 12.0 * replica]))
        change = {"SUM": parts.sum(axis=0), "MEAN": parts.mean(axis=0), "ONLY_FIRST_REPLICA": parts[0]}[aggregation]

        def step(variable: Any = variable, own: Any = own) -> Any:
            def replica_function(value: Any) -> Any:
                variable.assign_sub(tf.identity(value))
                return tf.identity(variable.read_value())

            return strategy.run(replica_function, args=(own,))

        for read in strategy.experimental_local_results(called(how, step)):
            np.testing.assert_array_equal(read, np.array([6.0, 12.0]) - change)
        assert len(strategy.experimental_local_results(variable)) == 1


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("strategy.onedevice")
@HOW
def test_one_device_does_what_no_strategy_does(how, ddl_strategy):
    import tensorflow as tf

    def results(strategy: Any) -> list[Any]:
        with strategy.scope():
            variable = tf.Variable([1.0, 5.0], aggregation=tf.VariableAggregation.SUM)
        value = tf.constant([2.0, 7.0])

        def step() -> Any:
            def replica_function(own: Any) -> Any:
                variable.assign_add(own)
                return tf.distribute.get_replica_context().all_reduce("SUM", own * 2.0)

            found = strategy.run(replica_function, args=(value,))
            reduced = [strategy.reduce(op, found, axis=axis) for op in ("SUM", "MEAN") for axis in (None, 0)]
            return [found, *reduced, strategy.gather(found, axis=0), variable.read_value()]

        return [np.array(one).tolist() for one in called(how, step)]

    expected = [[4.0, 14.0], [4.0, 14.0], 18.0, [4.0, 14.0], 9.0, [4.0, 14.0], [3.0, 12.0]]
    assert results(ddl_strategy) == expected
    assert results(tf.distribute.get_strategy()) == expected


@pytest.mark.ddl(strategies=["mirrored", "mirrored[replicas=3]"])
@pytest.mark.ddl_item("replica_ctx.update")
@HOW
def test_update_in_a_merge_call(how, ddl_strategy):
    """Each component gets the value of its own replica, and a value of all goes to each."""
    import tensorflow as tf

    strategy = ddl_strategy
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
    own = distributed(strategy, lambda replica: [replica + 1.0, 7.0 * replica], "float32")

    def merged(strategy: Any, value: Any) -> None:
        total = strategy.extended.reduce_to("SUM", value, variable)
        strategy.extended.update(variable, lambda part, whole: part.assign_add(whole), args=(total,))
        strategy.extended.update(variable, lambda part, whole: part.assign_sub(whole * 2.0), args=(value,))

    def step() -> None:
        strategy.run(lambda value: tf.distribute.get_replica_context().merge_call(merged, args=(value,)), args=(own,))

    called(how, step)
    values = np.array(everyone(strategy, lambda replica: [replica + 1.0, 7.0 * replica]))
    for replica, part in enumerate(strategy.experimental_local_results(variable)):
        np.testing.assert_array_equal(
            part.read_value(), np.array([1.0, 2.0]) + values.sum(axis=0) - 2 * values[replica]
        )


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "multi_worker_mirrored"])
@pytest.mark.ddl_item("strategy.run.eager_vs_function")
@HOW
def test_a_function_with_a_signature(how, ddl_cluster):
    ddl_cluster.run(check_a_function_with_a_signature, how)


def check_a_function_with_a_signature(how: str) -> None:
    """Run a tf.function that declares its arguments: each replica calls it with its own part."""
    import tensorflow as tf

    strategy = current_strategy()
    own = distributed(strategy, lambda replica: [replica + 1.0], "float32")
    double = tf.function(lambda value: value * 2.0, input_signature=[tf.TensorSpec([None])])
    found = called(how, lambda: strategy.run(double, args=(own,)))
    parts = [part.numpy().tolist() for part in strategy.experimental_local_results(found)]
    assert parts == [[2.0 * replica + 2] for replica in local_replicas(strategy)]


@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "multi_worker_mirrored"])
@pytest.mark.ddl_item("variables.packed")
@HOW
@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA", "NONE"])
def test_packed_variables(aggregation, how, ddl_strategy):
    """A function that captures one handle for all components still reads and assigns that of each replica."""
    import tensorflow as tf

    strategy = ddl_strategy
    if len(local_replicas(strategy)) == 1 and aggregation == "ONLY_FIRST_REPLICA":
        pytest.skip("each worker takes its own first replica; test_variables has the entry")
    strategy.extended._use_var_packing, before = True, getattr(strategy.extended, "_use_var_packing", False)
    try:
        with strategy.scope():
            variable = tf.Variable([6.0, 0.0], trainable=False, aggregation=tf.VariableAggregation[aggregation])
    finally:
        strategy.extended._use_var_packing = before
    own = distributed(strategy, lambda replica: [6.0 * replica + 6, 12.0 * replica], "float32")

    def step() -> Any:
        def replica_function(value: Any) -> Any:
            variable.assign_add(tf.identity(value))
            variable.assign_add(tf.identity(value) * 2.0)
            return tf.identity(variable.read_value())

        return strategy.run(replica_function, args=(own,))

    found = called(how, step)
    parts = np.array(everyone(strategy, lambda replica: [6.0 * replica + 6, 12.0 * replica]))
    whole = {"SUM": parts.sum(axis=0), "MEAN": parts.mean(axis=0), "ONLY_FIRST_REPLICA": parts[0], "NONE": None}
    for replica, read, part in zip(
        local_replicas(strategy),
        strategy.experimental_local_results(found),
        strategy.experimental_local_results(variable),
        strict=True,
    ):
        change = parts[replica] if aggregation == "NONE" else whole[aggregation]
        np.testing.assert_array_equal(read, np.array([6.0, 0.0]) + 3 * change)
        np.testing.assert_array_equal(part.read_value(), np.array([6.0, 0.0]) + 3 * change)
