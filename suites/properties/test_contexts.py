"""Test the contexts of a strategy, its scope, and updates and reductions in cross-replica context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ddl import current_strategy
from suites.properties.test_values import called, distributed, everyone
from suites.properties.variables import has_one_copy, local_replicas

VARIANTS = ["mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"]
pytestmark = pytest.mark.ddl(strategies=VARIANTS, timeout=40)
HOW = pytest.mark.parametrize("how", ["eager", "function"])


@pytest.mark.ddl_item("strategy.context.getters", "strategy.scope.enter", shows="behavior")
@HOW
def test_truth_table_of_contexts(how, ddl_strategy):
    """Ask out of the scope, in it, on replicas, in a merge_call, in an update and in a dataset's function."""
    import tensorflow as tf

    strategy, seen = ddl_strategy, {}
    with strategy.scope():
        one = tf.Variable(1.0)

    def look(place: str) -> None:
        own = tf.distribute.get_replica_context()
        answer = (
            tf.distribute.has_strategy(),
            tf.distribute.get_strategy() is strategy,
            own is not None,
            tf.distribute.in_cross_replica_context(),
        )
        seen.setdefault(place, set()).add(answer)

    def merged(_: Any) -> None:
        look("merge_call")

    def replica_function() -> None:
        look("replica")
        tf.distribute.get_replica_context().merge_call(merged)

    def updated(part: Any) -> Any:
        look("update")
        return part.assign_add(1.0)

    def of_dataset(example: Any) -> Any:
        look("dataset")
        return example

    def everywhere() -> None:
        look("outside")
        with strategy.scope():
            look("scope")
            strategy.extended.update(one, updated)
            tf.data.Dataset.range(2).map(of_dataset)
        strategy.run(replica_function)
        look("after")

    called(how, everywhere)
    assert seen == {
        "outside": {(False, False, True, False)},
        "scope": {(True, True, False, True)},
        "replica": {(True, True, True, False)},
        "merge_call": {(True, True, False, True)},
        "update": {(True, True, False, True)},
        "dataset": {(True, True, False, True)},
        "after": {(False, False, True, False)},
    }


@pytest.mark.ddl_item("strategy.set_strategy", "strategy.scope.enter", "strategy.oom_default", shows="behavior")
@pytest.mark.ddl(strategies=["mirrored", "central_storage"])
def test_entering_strategies(ddl_strategy):
    import tensorflow as tf

    other = tf.distribute.MirroredStrategy(["CPU:0"])
    with ddl_strategy.scope(), pytest.raises(RuntimeError, match=r"[Ss]trategy"):
        other.scope().__enter__()
    tf.distribute.experimental_set_strategy(ddl_strategy)
    try:
        assert tf.distribute.get_strategy() is ddl_strategy
        tf.distribute.experimental_set_strategy(other)
        assert tf.distribute.get_strategy() is other
        tf.distribute.experimental_set_strategy(None)
        with ddl_strategy.scope(), pytest.raises(RuntimeError):
            tf.distribute.experimental_set_strategy(other)
    finally:
        tf.distribute.experimental_set_strategy(None)
    default = tf.distribute.get_strategy()
    assert not tf.distribute.has_strategy()
    value = tf.constant([3.0, 4.0])
    assert default.run(lambda own: own * 2.0, args=(value,)).numpy().tolist() == [6.0, 8.0]
    assert default.reduce("SUM", value, axis=None).numpy().tolist() == [3.0, 4.0]
    assert float(default.reduce("MEAN", value, axis=0)) == 3.5
    assert default.gather(value, axis=0).numpy().tolist() == [3.0, 4.0]


@pytest.mark.ddl_item("strategy.num_replicas")
def test_replicas_are_counted_over_all_ranks(ddl_strategy):
    ids = ddl_strategy.gather(distributed(ddl_strategy, lambda replica: [replica], "int64"), axis=0)
    assert ids.numpy().tolist() == list(range(ddl_strategy.num_replicas_in_sync))


@pytest.mark.ddl_item("strategy.extended.update", "strategy.extended.reduce_to")
@HOW
@pytest.mark.parametrize("aggregation", ["SUM", "ONLY_FIRST_REPLICA"])
def test_update_with_a_reduced_value(aggregation, how, ddl_strategy):
    """Assign in an update what was reduced to the variable: it must not be aggregated again."""
    import tensorflow as tf

    strategy = ddl_strategy
    with strategy.scope():
        one = tf.Variable([10.0, 20.0], trainable=False, aggregation=tf.VariableAggregation[aggregation])
    own = distributed(strategy, lambda replica: [replica + 1.0, replica * 5.0], "float32")

    def step():
        with strategy.scope():
            reduced = strategy.extended.reduce_to("SUM", own, one)
            strategy.extended.update(one, lambda part, value: part.assign_add(value), args=(reduced,))

    called(how, step)
    expected = np.array([10.0, 20.0]) + np.sum(
        everyone(strategy, lambda replica: [replica + 1.0, replica * 5.0]), axis=0
    )
    parts = strategy.experimental_local_results(one)
    assert len(parts) == (1 if has_one_copy(strategy) else len(local_replicas(strategy)))
    for part in parts:
        np.testing.assert_array_equal(part.read_value(), expected)


@pytest.mark.ddl_item("variables.checkpoint.on_read_int")
@pytest.mark.ddl(strategies=["mirrored", "mirrored[replicas=3]", "multi_worker_mirrored"])
@pytest.mark.parametrize("source", ["assigned", "restored"])
def test_an_integer_sum_is_kept(source, ddl_cluster, tmp_path):
    ddl_cluster.run(check_an_integer_sum, source, str(tmp_path))


def check_an_integer_sum(source: str, folder: str) -> None:
    """Choose a sum that the number of replicas does not divide."""
    import tensorflow as tf

    strategy = current_strategy()
    with strategy.scope():
        kind = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
        total = tf.Variable(0, dtype="int64", trainable=False, **kind)
        expected = sum(everyone(strategy, lambda replica: replica * replica))
        if source == "assigned":
            total.assign(expected)
        else:
            ids = distributed(strategy, lambda replica: replica * replica, "int64")
            strategy.run(lambda own: total.assign(own), args=(ids,))
            assert int(total.read_value()) == expected
            path = tf.train.Checkpoint(total=total).write(f"{folder}/{local_replicas(strategy)[0]}")
            tf.train.Checkpoint(total=total).read(path).assert_consumed()
        assert int(total.read_value()) == expected


@pytest.mark.ddl_item("strategy.context.getters")
@HOW
def test_code_that_asks_for_its_context(how, ddl_strategy):
    """A library adds over all replicas wherever it is called: in the scope, on replicas, and in a merge_call."""
    import tensorflow as tf

    own = distributed(ddl_strategy, lambda replica: [3.0**replica, replica - 1.0])

    def total(value):
        strategy = tf.distribute.get_strategy()
        if tf.distribute.in_cross_replica_context():
            return strategy.reduce("SUM", value, axis=None)
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(value))

    def merged(_, value):
        return total(value)

    def everywhere(value):
        with ddl_strategy.scope():
            cross = total(value)
        on_replicas = ddl_strategy.run(total, args=(value,))
        merge = lambda part: tf.distribute.get_replica_context().merge_call(merged, args=(part,))  # noqa: E731
        return cross, on_replicas, ddl_strategy.run(merge, args=(value,))

    whole = np.sum(everyone(ddl_strategy, lambda replica: [3.0**replica, replica - 1.0]), axis=0)
    for found in called(how, everywhere, own):
        for part in ddl_strategy.experimental_local_results(found):
            np.testing.assert_array_equal(part, whole)


@pytest.mark.ddl_item("strategy.scope.enter")
def test_creators_of_variables_around_a_scope_and_in_it(ddl_strategy):
    """Each sees a variable once; what it makes of the initial value is on all replicas, which then add their own."""
    import tensorflow as tf

    calls = []

    def creator(factor):
        def create(next_creator, **arguments):
            calls.append(factor)
            initial = arguments["initial_value"]
            return next_creator(**arguments | {"initial_value": lambda: factor * initial()})

        return tf.variable_creator_scope(create)

    with creator(3.0), ddl_strategy.scope(), creator(5.0):
        one = tf.Variable(lambda: tf.constant([1.0, 2.0]), aggregation=tf.VariableAggregation.SUM)
    assert calls.count(5.0) == 1
    own = distributed(ddl_strategy, lambda replica: [3.0**replica, replica], "float32")
    ddl_strategy.run(lambda value: one.assign_add(value), args=(own,))
    expected = np.sum([[15.0, 30.0], *everyone(ddl_strategy, lambda replica: [3.0**replica, replica])], axis=0)
    for part in ddl_strategy.experimental_local_results(one):
        np.testing.assert_array_equal(part.read_value(), expected)


@pytest.mark.ddl_item("strategy.set_strategy")
@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "central_storage"])
def test_variables_and_sums_of_the_current_strategy(ddl_strategy):
    import tensorflow as tf

    tf.distribute.experimental_set_strategy(ddl_strategy)
    try:
        one = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)
        own = distributed(ddl_strategy, lambda replica: 3.0**replica, "float32")
        current = tf.distribute.get_strategy()
        current.run(lambda value: one.assign_add(value), args=(own,))
        total = current.reduce("SUM", own, axis=None)
    finally:
        tf.distribute.experimental_set_strategy(None)
    whole = sum(everyone(ddl_strategy, lambda replica: 3.0**replica))
    assert float(total) == whole
    parts = ddl_strategy.experimental_local_results(one)
    assert len(parts) == (1 if has_one_copy(ddl_strategy) else 3)
    assert {float(part.read_value()) for part in parts} == {1.0 + whole}


@pytest.mark.ddl_item("strategy.oom_default", shows="parity")
@pytest.mark.ddl(strategies=["one_device"])
@HOW
def test_the_default_strategy_is_one_device(how, ddl_strategy):
    import tensorflow as tf

    values = np.arange(12.0).reshape(3, 4) ** 2

    def program(strategy):
        def function(value):
            context = tf.distribute.get_replica_context()
            return value * 2 + tf.cast(context.replica_id_in_sync_group, value.dtype), context.all_reduce("SUM", value)

        value = tf.constant(values)
        both = strategy.run(function, args=(value,))
        mean = strategy.reduce("MEAN", both[0], axis=0)
        return *both, mean, strategy.gather(value, axis=1), strategy.experimental_local_results(value)[0]

    default = tf.distribute.get_strategy()
    assert default is not ddl_strategy
    expected = (2 * values, values, 2 * values.mean(axis=0), values, values)
    for strategy in (default, ddl_strategy):
        for found, wanted in zip(called(how, program, strategy), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.ddl_item("strategy.run.options_xla")
@pytest.mark.ddl(strategies=["one_device", *VARIANTS], timeout=40)
@HOW
def test_options_for_other_hardware_change_nothing(how, ddl_strategy):
    """The options are for TPUs. On other devices, each replica computes the same with them as without."""
    import tensorflow as tf

    options = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)
    own = distributed(ddl_strategy, lambda replica: [3.0**replica])
    found = called(how, lambda: ddl_strategy.run(lambda value: value * 5, args=(own,), options=options))
    parts = [part.numpy().tolist() for part in ddl_strategy.experimental_local_results(found)]
    assert parts == [[5 * 3.0**replica] for replica in local_replicas(ddl_strategy)]


@pytest.mark.ddl_item("variables.ema")
@pytest.mark.ddl(strategies=["mirrored[replicas=3]", "multi_worker_mirrored"], timeout=40)
@HOW
def test_moving_average_of_components_that_differ(how, ddl_strategy):
    """Each replica has a value of its own. All components of the average move by the mean of these values."""
    import tensorflow as tf

    strategy, decay = ddl_strategy, 0.75
    reads, mean = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.MEAN
    with strategy.scope():
        average = tf.train.ExponentialMovingAverage(decay)
        one = tf.Variable(tf.zeros((2,), "float64"), trainable=False, synchronization=reads, aggregation=mean)
        average.apply([one])

    def step(number):
        def replica_function():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            one.assign(tf.cast([replica * replica + number, 2 * replica - number], "float64"))
            average.apply([one])

        strategy.run(replica_function)

    expected = np.zeros(2)
    for number in (1, 2, 3):
        called(how, step, number)
        values = everyone(strategy, lambda replica, n=number: [replica * replica + n, 2 * replica - n])
        expected = decay * expected + (1 - decay) * np.mean(values, axis=0)
    for part in strategy.experimental_local_results(average.average(one)):
        # Three steps with three operations each, and a mean over three replicas, of numbers below 8.
        np.testing.assert_allclose(part.read_value(), expected, rtol=0, atol=160 * np.finfo("float64").eps)
