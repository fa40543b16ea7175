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
    """Ask out of the scope, in it, on replicas, in a merge_call and in a dataset's function."""
    import tensorflow as tf

    strategy, seen = ddl_strategy, {}

    def look(place: str) -> None:
        own = tf.distribute.get_replica_context()
        seen[place] = (
            tf.distribute.has_strategy(),
            tf.distribute.get_strategy() is strategy,
            own is not None,
            tf.distribute.in_cross_replica_context(),
        )

    def merged(_: Any) -> None:
        look("merge_call")

    def replica_function() -> None:
        look("replica")
        tf.distribute.get_replica_context().merge_call(merged)

    def everywhere() -> None:
        look("outside")
        with strategy.scope():
            look("scope")
        strategy.run(replica_function)
        look("after")

    called(how, everywhere)
    assert seen == {
        "outside": (False, False, True, False),
        "scope": (True, True, False, True),
        "replica": (True, True, True, False),
        "merge_call": (True, True, False, True),
        "after": (False, False, True, False),
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
