"""Write checkpoints in several files, by task, by size and by a function of the user: what was saved is restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.properties.bounds import at_most_calls
from suites.properties.test_values import distributed, everyone

ITEM = "variables.checkpoint.sharding"
STRATEGIES = ["one_device", "mirrored[replicas=3]", "multi_worker_mirrored", "parameter_server[ps=2]"]
alone = pytest.mark.ddl(strategies="one_device")
MOST_CALLS = 200_000
"""A hundred times what one of the checkpoints here needs."""


def by_size(limit: int) -> Any:
    import tensorflow as tf

    return tf.train.experimental.MaxShardSizePolicy(limit)


def there_and_back(values: dict[str, Any], callback: Any, folder: Path) -> list[int]:
    """Save variables with these values, load them into others, compare, and return the sizes of the files in bytes."""
    import tensorflow as tf

    path = str(folder / "checkpoint")
    options = tf.train.CheckpointOptions(experimental_sharding_callback=callback)
    with at_most_calls(MOST_CALLS):
        tf.train.Checkpoint(**{name: tf.Variable(value) for name, value in values.items()}).write(path, options=options)
    loaded = {name: tf.Variable(tf.zeros_like(value)) for name, value in values.items()}
    tf.train.Checkpoint(**loaded).read(path).assert_consumed()
    for name, value in values.items():
        np.testing.assert_array_equal(loaded[name].numpy(), value, err_msg=name)
    return sorted(file.stat().st_size for file in folder.glob("checkpoint.data-*"))


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) * 7 % 23 - 3).astype(dtype)


@alone
@pytest.mark.ddl_item(ITEM)
@given(
    shapes=st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float64", "int8", "bool"]),
    limit=st.integers(200, 700),
)
def test_files_below_a_size(shapes, dtype, limit, ddl_strategy, tmp_path_factory):
    """No file is larger than the limit, but for the one that holds the graph of objects too."""
    values = {f"v{number}": numbers(shape, dtype) + number for number, shape in enumerate(shapes)}
    values = {name: value.astype(dtype) for name, value in values.items()}
    sizes = there_and_back(values, by_size(limit), tmp_path_factory.mktemp("sized"))
    assert all(size <= limit for size in sizes[:-1])
    assert len(sizes) >= sum(value.nbytes for value in values.values()) / limit


@alone
@pytest.mark.ddl_item(ITEM)
@pytest.mark.parametrize("limit", [8, 24, 48, 100])
def test_rows_that_fit(limit, ddl_strategy, tmp_path):
    """A row has 8 bytes. Whole rows go into each file, as many as fit."""
    sizes = there_and_back({"table": numbers((9, 2))}, by_size(limit), tmp_path)
    rows = limit // 8
    # The last file holds the rest and the graph of objects.
    assert sizes[: (9 - 1) // rows] == [8 * rows] * ((9 - 1) // rows)
    assert len(sizes) == -(-9 // rows)


@alone
@pytest.mark.ddl_item(ITEM)
@pytest.mark.parametrize("shape", [(4, 4), (3,), (2, 5)], ids=str)
def test_a_row_that_does_not_fit(shape, ddl_strategy, tmp_path):
    """A row that is larger than a shard goes into a file of its own, or is refused, like a scalar that does not fit."""
    there_and_back({"table": numbers(shape)}, by_size(3), tmp_path)


@alone
@pytest.mark.ddl_item(ITEM)
def test_a_scalar_that_does_not_fit(ddl_strategy, tmp_path):
    assert there_and_back({"one": numbers(()) + 5, "two": numbers((2,))}, by_size(4), tmp_path)[0] == 4
    there_and_back({"one": numbers((), "float64") + 5}, by_size(2), tmp_path)


@alone
@pytest.mark.ddl_item(ITEM)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)], ids=str)
def test_a_variable_without_elements(shape, ddl_strategy, tmp_path):
    there_and_back({"empty": numbers(shape), "full": numbers((2, 2))}, by_size(100), tmp_path)


@alone
@pytest.mark.ddl_item(ITEM)
@pytest.mark.parametrize("limit", [3, 5, 1000])
@pytest.mark.parametrize("case", ["scalar", "vector", "table"])
def test_strings(case, limit, ddl_strategy, tmp_path):
    values = {"scalar": b"abcdef", "vector": [b"a", b"bcd", b"ef"], "table": [[b"a", b"bcd"], [b"ef", b""]]}
    there_and_back({"words": np.array(values[case], dtype=object)}, by_size(limit), tmp_path)


def one_by_one() -> Any:
    """Return a callback of a user, which puts every tensor into a file of its own."""
    import tensorflow as tf

    class OneByOne(tf.train.experimental.ShardingCallback):
        description = "one tensor in each file"

        def __call__(self, shardable_tensors):
            return [{one.checkpoint_key: {one.slice_spec: one.tensor}} for one in shardable_tensors]

    return OneByOne()


def by_task() -> Any:
    import tensorflow as tf

    return tf.train.experimental.ShardByTaskPolicy()


@pytest.mark.ddl(strategies=STRATEGIES)
@pytest.mark.ddl_item(ITEM)
@pytest.mark.parametrize("policy", ["by_task", "by_size", "one_by_one"])
def test_variables_of_a_strategy_in_several_files(policy, ddl_strategy, tmp_path):
    """The files hold what the replicas have assigned, and load into the strategy's variables and into plain ones."""
    import tensorflow as tf

    strategy = ddl_strategy
    callback = {"by_task": by_task, "by_size": lambda: by_size(100), "one_by_one": one_by_one}[policy]()
    servers = isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)
    with strategy.scope():
        tables = {
            name: tf.Variable(numbers((rows, 5)), trainable=False, aggregation=tf.VariableAggregation.SUM)
            for name, rows in (("long", 9), ("short", 2))
        }
    expected = {}
    for number, (name, table) in enumerate(tables.items()):
        start = numbers(tuple(table.shape))
        if servers:
            table.assign(start * (number + 2))
            expected[name] = start * (number + 2)
            continue

        def value_of(replica: int, start: Any = start, number: int = number) -> Any:
            return start * (replica + number + 1)

        given_value = distributed(strategy, value_of, "float32")
        strategy.run(lambda own, table=table: table.assign_add(tf.identity(own)), args=(given_value,))
        expected[name] = start + np.sum(everyone(strategy, value_of), axis=0)
    path = str(tmp_path / "checkpoint")
    options = tf.train.CheckpointOptions(experimental_sharding_callback=callback)
    tf.train.Checkpoint(**tables).write(path, options=options)
    files = len(list(tmp_path.glob("checkpoint.data-*")))
    # Tables of 180 and 40 bytes and the graph: three files of 100 bytes, or one for each tensor, or one in each task.
    # With servers, the graph is in another task, the coordinator.
    expected_files = {"by_task": (1, 3), "by_size": (3, 4), "one_by_one": (3, 3)}[policy]
    assert files == expected_files[servers]
    plain = {name: tf.Variable(tf.zeros_like(value)) for name, value in expected.items()}
    tf.train.Checkpoint(**plain).read(path).assert_consumed()
    for name, table in tables.items():
        table.assign(tf.zeros_like(expected[name]))
    tf.train.Checkpoint(**tables).read(path).assert_consumed()
    for name, value in expected.items():
        np.testing.assert_array_equal(plain[name], value)
        for part in [tables[name]] if servers else strategy.experimental_local_results(tables[name]):
            np.testing.assert_array_equal(part.read_value(), value)


@alone
@pytest.mark.ddl_item(ITEM, shows="behavior")
def test_a_function_is_no_callback(ddl_strategy):
    import tensorflow as tf

    with pytest.raises(ValueError, match="ShardingCallback"):
        tf.train.CheckpointOptions(experimental_sharding_callback=lambda tensors: [tensors])
