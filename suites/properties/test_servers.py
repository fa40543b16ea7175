"""Test parameter servers: placement of variables, refusals, copies on workers, tables, and files of shards."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from suites.properties.test_sharding import WHOLE, sharded, variable

__all__ = ["variable"]
here = pytest.mark.ddl(strategies="parameter_server", timeout=60)
several = pytest.mark.ddl(strategies="parameter_server[ps=2]", timeout=60)


@pytest.fixture
def coordinator(ddl_strategy):
    import tensorflow as tf

    return tf.distribute.coordinator.ClusterCoordinator(ddl_strategy)


def task_of(variable: Any) -> str:
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(variable.device)
    return f"{spec.job}:{spec.task}"


@pytest.mark.ddl_item("strategy.ps.placement")
@several
def test_variables_go_round_the_servers(ddl_strategy):
    """Each new variable is on the next server, also if the scope is left and entered again, and keeps its own value."""
    import tensorflow as tf

    made = []
    for start in (0, 3):
        with ddl_strategy.scope():
            made += [tf.Variable([float(start + number), 7.0 * number]) for number in range(3)]
    tasks = [task_of(one) for one in made]
    assert set(tasks) == {"ps:0", "ps:1"}
    assert all(first != second for first, second in itertools.pairwise(tasks))
    for number, one in enumerate(made):
        one.assign_add([1.0, 2.0])
        assert one.numpy().tolist() == [number + 1.0, 7.0 * (number % 3) + 2]
    outside = tf.Variable(1.0)
    assert "ps" not in task_of(outside)


@pytest.mark.ddl_item("strategy.ps.placement")
@several
def test_a_variable_beside_another(ddl_strategy):
    import tensorflow as tf

    with ddl_strategy.scope():
        first = tf.Variable(1.0)
        with ddl_strategy.extended.colocate_vars_with(first):
            others = [tf.Variable(float(number)) for number in range(3)]
    assert {task_of(one) for one in others} == {task_of(first)}
    assert [float(one.numpy()) for one in others] == [0.0, 1.0, 2.0]


@pytest.mark.ddl_item("strategy.ps.run_outside", shows="parity")
@here
def test_run_out_of_a_closure(ddl_strategy):
    """Out of a closure, the coordinator itself runs the function once, on the variables of the servers."""
    import tensorflow as tf

    for strategy in (ddl_strategy, tf.distribute.OneDeviceStrategy("CPU:0")):
        with strategy.scope():
            variable = tf.Variable([1.0, 2.0])
        run = lambda value: strategy.run(variable.assign_add, args=(value,))  # noqa: B023, E731
        step = tf.function(run, autograph=False)
        for number in (1.0, 3.0):
            step(tf.constant([10.0, 20.0]) * number)
        assert variable.numpy().tolist() == [41.0, 82.0]
        assert float(strategy.reduce("SUM", tf.constant(3.0), axis=None)) == 3.0


CLUSTERS = {
    "no_server": ({"worker": ["localhost:1"]}, "at least one ps"),
    "no_worker": ({"ps": ["localhost:1"]}, "at least one worker"),
    "two_chiefs": (
        {"chief": ["localhost:1", "localhost:2"], "worker": ["localhost:3"], "ps": ["localhost:4"]},
        "chief",
    ),
    "other_name": ({"worker": ["localhost:1"], "ps": ["localhost:2"], "master": ["localhost:3"]}, "master"),
    "empty": ({}, "non-empty"),
}


@pytest.mark.ddl_item("strategy.ps.cluster_errors", shows="behavior")
@here
@pytest.mark.parametrize("case", CLUSTERS)
def test_clusters_that_are_refused(case, ddl_strategy):
    import tensorflow as tf

    spec, told = CLUSTERS[case]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(spec), rpc_layer="grpc")
    with pytest.raises(ValueError, match=told):
        tf.distribute.ParameterServerStrategy(resolver)


@pytest.mark.ddl_item("variables.ps.aggregating", "variables.ps.caching")
@here
@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA", "NONE"])
def test_what_closures_assign(aggregation, coordinator):
    """A worker has one replica here: every aggregation is its value. A closure reads what it has assigned."""
    import tensorflow as tf

    strategy = coordinator.strategy
    with strategy.scope():
        variable = tf.Variable([0.0, 1.0], trainable=False, aggregation=tf.VariableAggregation[aggregation])

    @tf.function
    def closure(value):
        def replica_function():
            variable.assign_add([value, 2.0 * value])
            return variable.read_value()

        return strategy.run(replica_function)

    total = 0.0
    for number in range(6):
        remote = coordinator.schedule(closure, args=(tf.constant(3.0**number),))
        coordinator.join()
        total += 3.0**number
        assert np.array(remote.fetch()).tolist() == [total, 1.0 + 2 * total]
    assert variable.numpy().tolist() == [total, 1.0 + 2 * total]


@pytest.mark.ddl_item("variables.table")
@here
@pytest.mark.parametrize("kind", ["static", "vocabulary"])
def test_lookup_tables_on_workers(kind, coordinator, tmp_path):
    """Closures of every worker find the same ids, and the default for words that the table does not have."""
    import tensorflow as tf

    words = ["blue", "red", "green", "white"]
    with coordinator.strategy.scope():
        if kind == "static":
            keys = tf.lookup.KeyValueTensorInitializer(words, tf.constant([7, 3, 11, 5], tf.int64))
            table = tf.lookup.StaticHashTable(keys, default_value=-1)
        else:
            (tmp_path / "words").write_text("\n".join(words))
            table = tf.lookup.StaticVocabularyTable(
                tf.lookup.TextFileInitializer(
                    str(tmp_path / "words"),
                    tf.string,
                    tf.lookup.TextFileIndex.WHOLE_LINE,
                    tf.int64,
                    tf.lookup.TextFileIndex.LINE_NUMBER,
                ),
                num_oov_buckets=1,
            )

    @tf.function
    def closure(number):
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        asked = tf.constant([*words, "none"])
        return index, table.lookup(tf.roll(asked, number, axis=0))

    ids = [7, 3, 11, 5, -1] if kind == "static" else [0, 1, 2, 3, 4]
    remote = [coordinator.schedule(closure, args=(tf.constant(number),)) for number in range(10)]
    coordinator.join()
    for number, one in enumerate(remote):
        assert np.array(one.fetch()[1]).tolist() == np.roll(ids, number).tolist()


@pytest.mark.ddl_item("sharding.assign")
@sharded
def test_numbers_of_python_are_assigned(variable):
    """A list has no dtype of its own, and becomes that of the variable, in shards or not."""
    import tensorflow as tf

    values = (WHOLE * 3).tolist()
    plain = tf.Variable(WHOLE)
    for one in (plain, variable):
        one.assign(values)
        one.assign_add(values)
        np.testing.assert_array_equal(one.numpy(), WHOLE * 6)


@pytest.mark.ddl_item("saving.shards")
@sharded
def test_slots_of_a_variable_in_shards(ddl_strategy, variable, tmp_path):
    """Momentum of each shard is saved with it: a third step after the load is that of the formula."""
    import tensorflow as tf

    parts = variable.variables
    rows = np.cumsum([part.shape[0] for part in parts])[:-1]

    def made(initial: Any) -> Any:
        with ddl_strategy.scope():
            table = tf.Variable(initial)
            slots = tf.Variable(np.zeros_like(WHOLE))
        return table, slots, tf.train.Checkpoint(table=table, slots=slots)

    def step(table: Any, slots: Any, number: int) -> None:
        gradient = WHOLE * (number + 1)
        for part, slot, piece in zip(table.variables, slots.variables, np.split(gradient, rows), strict=True):
            slot.assign(slot * 0.5 - 0.25 * piece)
            part.assign_add(slot)

    table, slots, checkpoint = made(WHOLE)
    for number in range(2):
        step(table, slots, number)
    path = checkpoint.write(str(tmp_path / "slots"))
    other, other_slots, loading = made(np.zeros_like(WHOLE))
    loading.read(path).assert_consumed()
    step(other, other_slots, 2)
    weights, velocity = WHOLE.copy(), np.zeros_like(WHOLE)
    for number in range(3):
        velocity = 0.5 * velocity - 0.25 * WHOLE * (number + 1)
        weights = weights + velocity
    np.testing.assert_array_equal(other_slots.numpy(), velocity)
    np.testing.assert_array_equal(other.numpy(), weights)


@pytest.mark.ddl_item("variables.savedmodel.ps")
@several
def test_a_saved_model_goes_to_servers_and_back(ddl_strategy, tmp_path):
    """A function that is loaded in the scope reads the variables of the servers, and what they become is saved."""
    import tensorflow as tf

    class Table(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = tf.Variable([2.0, 5.0], dtype=tf.float64)

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float64)])
        def call(self, value: Any) -> Any:
            return value * self.scale

    with ddl_strategy.scope():
        original = Table()
    original.scale.assign(np.array([3.0, 7.0]))
    tf.saved_model.save(original, str(tmp_path / "first"))
    plain = tf.saved_model.load(str(tmp_path / "first"))
    np.testing.assert_array_equal(plain.call(tf.constant(WHOLE)), WHOLE * [3.0, 7.0])
    with ddl_strategy.scope():
        loaded = tf.saved_model.load(str(tmp_path / "first"))
    np.testing.assert_array_equal(loaded.scale.numpy(), [3.0, 7.0])
    coordinator = tf.distribute.coordinator.ClusterCoordinator(ddl_strategy)
    closure = tf.function(lambda value: loaded.call(value))
    remote = coordinator.schedule(closure, args=(tf.constant(WHOLE),))
    np.testing.assert_array_equal(remote.fetch(), WHOLE * [3.0, 7.0])
