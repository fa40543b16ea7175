"""Compare variables in shards with NumPy on the whole, and partitioners with their arithmetic."""

from __future__ import annotations

import math
from itertools import chain, product

import numpy as np
import pytest

SHARDS = 3
VARIANT = "parameter_server[ps=2]"
SIZES = (3, 2, 2)
WHOLE = (np.arange(14).reshape(7, 2) * 5 % 17 + 1).astype("float64")
"""Rows are different, and no element is zero."""


def partitioner(kind, *arguments, **options):
    import tensorflow as tf

    return getattr(tf.distribute.experimental.partitioners, f"{kind}Partitioner")(*arguments, **options)


def in_shards():
    return {"variable_partitioner": partitioner("FixedShards", SHARDS)}


sharded = pytest.mark.ddl(strategies=VARIANT, arguments={"parameter_server": in_shards})


@pytest.fixture
def variable(ddl_strategy):
    """Return a variable in three shards on two servers."""
    import tensorflow as tf

    with ddl_strategy.scope():
        made = tf.Variable(WHOLE)
    assert tuple(part.shape[0] for part in made.variables) == SIZES
    assert {part.device[: len("/job:ps/replica:0/task:0")] for part in made.variables} == {
        "/job:ps/replica:0/task:0",
        "/job:ps/replica:0/task:1",
    }
    return made


@pytest.mark.ddl_item("sharding.FixedShards")
def test_fixed_number_of_shards():
    import tensorflow as tf

    for number, rows, axis in product(range(1, 6), range(1, 8), (0, 1)):
        shape = [rows, 5] if axis == 0 else [5, rows]
        expected = [min(number, rows), 1] if axis == 0 else [1, min(number, rows)]
        assert partitioner("FixedShards", number)(tf.TensorShape(shape), tf.float32, axis=axis) == expected


def cases():
    """Yield shapes, dtypes with the bytes of a row, limits of bytes and limits of shards."""
    import tensorflow as tf

    for rows, width, (dtype, size) in product(
        (1, 2, 3, 6, 7, 10), (1, 3), ((tf.float32, 4), (tf.float64, 8), (tf.int8, 1), (tf.string, 16))
    ):
        for limit, most in product((1, 8, 20, 48, 100), (1, 3)):
            yield tf.TensorShape([rows, width]), dtype, rows, width * size, limit, most


@pytest.mark.ddl_item("sharding.MaxSize")
def test_shards_below_a_maximum():
    """The smallest number of shards that are small enough, with one row in each at least. The limit of shards wins."""
    for shape, dtype, rows, row, limit, most in cases():
        enough = (count for count in range(1, rows + 1) if math.ceil(rows / count) * row <= limit)
        smallest = next(enough, rows)
        assert partitioner("MaxSize", limit)(shape, dtype) == [smallest, 1], (shape, dtype, limit)
        assert partitioner("MaxSize", limit, most)(shape, dtype) == [min(smallest, most), 1], (shape, dtype, limit)


@pytest.mark.ddl_item("sharding.MinSize")
def test_shards_above_a_minimum_that_divides():
    """If shards of the smallest size take up the variable exactly, there are as many as the limit allows."""
    for shape, dtype, rows, row, limit, most in cases():
        if rows * row % limit == 0 and limit % row == 0:
            expected = min(rows * row // limit, most, rows)
            assert partitioner("MinSize", limit, most)(shape, dtype) == [expected, 1], (shape, dtype, limit)


@pytest.mark.ddl_item("sharding.MinSize")
@pytest.mark.ddl(strategies=VARIANT)
def test_shards_above_a_minimum(ddl_strategy):
    """Each shard has the minimum of bytes, as the class says, unless there is only one."""
    for shape, dtype, rows, row, limit, most in cases():
        number = partitioner("MinSize", limit, most)(shape, dtype)[0]
        smallest = rows // number * row
        assert number == 1 or smallest >= limit, f"{number} shards of {shape}: one has {smallest} bytes, not {limit}"


@pytest.mark.ddl_item("sharding.FixedShards", "sharding.MinSize", "sharding.MaxSize")
@pytest.mark.parametrize("kind", ["FixedShards", "MinSize", "MaxSize"])
def test_a_type_has_many_names(kind):
    """The class of NumPy and the name of a type mean the type, as they do for a variable."""
    import tensorflow as tf

    for dtype in (tf.float32, tf.float64, tf.int8, tf.bfloat16):
        counts = [
            partitioner(kind, 8)(tf.TensorShape([10, 2]), one) for one in (dtype, dtype.name, dtype.as_numpy_dtype)
        ]
        assert counts == counts[:1] * 3


@pytest.mark.ddl_item("sharding.FixedShards", "sharding.MinSize", "sharding.MaxSize", shows="behavior")
@pytest.mark.parametrize("kind", ["MinSize", "MaxSize"])
@pytest.mark.parametrize("name", ["bytes", "max_shards", "bytes_per_string"])
def test_partitioners_refuse_numbers_that_are_not_positive(kind, name):
    given = {"max_shards": 1, f"{kind[:3].lower()}_shard_bytes": 8, "bytes_per_string": 1}
    wrong = f"{kind[:3].lower()}_shard_bytes" if name == "bytes" else name
    with pytest.raises(ValueError, match="must be positive"):
        partitioner(kind, **{**given, wrong: -1})


def chosen_by_rows():
    """Return a partitioner whose answer depends on the number of rows."""
    import tensorflow as tf

    class ByRows(tf.distribute.experimental.partitioners.Partitioner):
        def __call__(self, shape, dtype, axis=0):
            return {4: [2, 1], 5: [1, 2], 6: [0, 1], 7: []}.get(shape[0], [1, 1])

    return {"variable_partitioner": ByRows()}


@pytest.mark.ddl_item("sharding.custom_partitioner")
@pytest.mark.ddl(strategies=VARIANT, arguments={"parameter_server": chosen_by_rows})
def test_a_partitioner_of_the_user(ddl_strategy):
    """A partitioner may split only the first axis. Other results are an error."""
    import tensorflow as tf

    with ddl_strategy.scope():
        values = np.arange(8.0).reshape(4, 2) ** 2
        parts = tf.Variable(values).variables
        assert [part.numpy().tolist() for part in parts] == [values[:2].tolist(), values[2:].tolist()]
        assert not hasattr(tf.Variable(tf.zeros([3, 2])), "variables")
        for rows in (5, 6, 7):
            with pytest.raises(ValueError, match="elements are 1 besides the first element"):
                tf.Variable(tf.zeros([rows, 2]))


@pytest.mark.ddl_item("sharding.split")
@sharded
def test_shards_are_the_initial_value(ddl_strategy):
    """The first shards have one row more. A scalar has no shards."""
    import tensorflow as tf

    with ddl_strategy.scope():
        for rows in range(1, 9):
            values = np.arange(rows * 2).reshape(rows, 2)
            made = tf.Variable(values)
            parts = getattr(made, "variables", [made])
            number = min(SHARDS, rows)
            assert [part.shape[0] for part in parts] == [rows // number + (i < rows % number) for i in range(number)]
            np.testing.assert_array_equal(np.concatenate([part.numpy() for part in parts]), values)
        assert tf.Variable(3.5).numpy() == 3.5


def by_position(shape, dtype, partition_shape=None, partition_offset=None):
    """Return an initial value that a shard can compute from its own place."""
    import tensorflow as tf

    rows, start = (shape[0], 0) if partition_shape is None else (partition_shape[0], partition_offset[0])
    return tf.reshape(tf.range(start * shape[1], (start + rows) * shape[1], dtype=dtype), [rows, shape[1]])


@pytest.mark.ddl_item("sharding.init")
@sharded
@pytest.mark.parametrize("aware", [True, False], ids=["by shard", "whole"])
def test_initializers_give_the_whole(ddl_strategy, aware):
    """An initializer that accepts the place of a shard is called for each shard; another gives the whole value."""
    import functools

    import tensorflow as tf

    calls = []

    def whole():
        calls.append(None)
        return by_position([7, 2], tf.float32)

    def shard(partition_shape=None, partition_offset=None):
        calls.append(tuple(partition_shape))
        return by_position([7, 2], tf.float32, partition_shape, partition_offset)

    with ddl_strategy.scope():
        initializer = functools.partial(shard) if aware else whole
        made = tf.Variable(initializer, shape=[7, 2], dtype=tf.float32)
    assert calls == ([(rows, 2) for rows in SIZES] if aware else [None] * 3)
    np.testing.assert_array_equal(made.numpy(), np.arange(14).reshape(7, 2))


@pytest.mark.ddl_item("sharding.init")
@sharded
@pytest.mark.parametrize("kind", ["random_normal_initializer", "random_uniform_initializer"])
def test_random_initializers_with_a_seed(ddl_strategy, kind):
    """Rows of different shards are different."""
    import functools

    import tensorflow as tf

    with ddl_strategy.scope():
        initializer = functools.partial(getattr(tf, kind)(seed=5), shape=[6, 2], dtype=tf.float32)
        made = tf.Variable(initializer, shape=[6, 2], dtype=tf.float32)
    rows = [tuple(row) for row in made.numpy().tolist()]
    assert len(set(rows)) == len(rows), f"rows repeat: {rows}"


@pytest.mark.ddl_item("sharding.init")
@sharded
def test_an_initializer_of_keras_with_a_seed(ddl_strategy):
    """The values are those of a variable without shards."""
    import tensorflow as tf

    from suites.subject import keras

    def initial():
        return keras.initializers.RandomNormal(seed=5)([7, 2], "float32")

    with ddl_strategy.scope():
        made = tf.Variable(initial, shape=[7, 2], dtype=tf.float32)
    # Servers make it on the CPU, and a GPU rounds the logarithm of a normal number in another way.
    with tf.device("CPU:0"):
        np.testing.assert_array_equal(made.numpy(), initial().numpy())


def on_whole(kind, rows, values):
    """Return the whole after a scatter operation, one row after the other."""
    whole = WHOLE.copy()
    functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
    functions |= {"max": np.maximum, "min": np.minimum, "update": lambda old, new: new}
    for row, value in zip(rows, values, strict=True):
        whole[row] = functions[kind](whole[row], value)
    return whole


@pytest.mark.ddl_item("sharding.assign")
@sharded
@pytest.mark.parametrize("how", ["eager", "function"])
def test_assignments(variable, how):
    import tensorflow as tf

    wrap = tf.function if how == "function" else lambda function: function
    delta = np.arange(14.0).reshape(7, 2)
    wrap(lambda: variable.assign_add(delta) and None)()
    np.testing.assert_array_equal(variable.numpy(), WHOLE + delta)
    wrap(lambda: variable.assign_sub(2 * delta) and None)()
    np.testing.assert_array_equal(variable.numpy(), WHOLE - delta)
    wrap(lambda: variable.assign(delta * 3) and None)()
    np.testing.assert_array_equal(variable.numpy(), delta * 3)


@pytest.mark.ddl_item("sharding.assign")
@sharded
@pytest.mark.parametrize("how", ["eager", "function"])
@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "max", "min", "update"])
def test_scatter_operations(variable, kind, how):
    """Rows are unsorted, in all shards, and some are named twice. Values are powers of two: division is exact."""
    import tensorflow as tf

    rows = [6, 0, 3, 2] + ([6, 3] if kind != "update" else [])
    values = np.array([[2.0, 4.0], [8.0, 0.5], [16.0, 1.0], [0.25, 2.0], [4.0, 32.0], [2.0, 8.0]])[: len(rows)]
    wrap = tf.function if how == "function" else lambda function: function

    def scatter():
        slices = tf.IndexedSlices(tf.constant(values), tf.constant(rows, tf.int64))
        getattr(variable, f"scatter_{kind}")(slices)

    wrap(scatter)()
    np.testing.assert_array_equal(variable.numpy(), on_whole(kind, rows, values))


@pytest.mark.ddl_item("sharding.assign")
@sharded
@pytest.mark.parametrize("rows", [[0, 2, 3, 6, 6], [6, 0, 3]], ids=["sorted", "unsorted"])
def test_rows_that_are_read(variable, rows):
    """Rows come back in the order of the indices."""
    import tensorflow as tf

    np.testing.assert_array_equal(tf.gather(variable, rows), WHOLE[rows])
    np.testing.assert_array_equal(variable.sparse_read(tf.constant(rows)), WHOLE[rows])


@pytest.mark.ddl_item("sharding.assign")
@sharded
def test_elements_that_are_read(variable):
    import tensorflow as tf

    places = [[6, 1], [0, 0], [3, 1], [2, 0]]
    np.testing.assert_array_equal(tf.gather_nd(variable, places), WHOLE[tuple(np.transpose(places))])


@pytest.mark.ddl_item("sharding.slicing")
@sharded
def test_slices(variable):
    """All slices of rows with ends in the variable, and the usual ways to name a column."""
    import tensorflow as tf

    ends = [None, *range(-7, 8)]
    for start, stop, step in product(ends[::2], ends[::3], (None, 1, 2, -1, -3)):
        np.testing.assert_array_equal(variable[start:stop:step], WHOLE[start:stop:step], f"{start}:{stop}:{step}")
    for row in range(-7, 7):
        np.testing.assert_array_equal(variable[row], WHOLE[row])
        np.testing.assert_array_equal(variable[row, 1], WHOLE[row, 1])
    np.testing.assert_array_equal(variable[1:6, 1], WHOLE[1:6, 1])
    np.testing.assert_array_equal(variable[..., 1], WHOLE[..., 1])
    np.testing.assert_array_equal(variable[tf.newaxis], WHOLE[np.newaxis])
    mask = WHOLE[:, 0] > 8
    np.testing.assert_array_equal(variable[mask], WHOLE[mask])
    with pytest.raises(IndexError, match="out of bounds"):
        variable[7]


@pytest.mark.ddl_item("sharding.slicing")
@sharded
@pytest.mark.parametrize("part", [slice(-8, None, 2), slice(8, None, -3), slice(-9, 5, 3)], ids=str)
def test_slices_with_ends_outside(variable, part):
    """An end outside the variable counts as the end of the variable, as for tensors and arrays."""
    np.testing.assert_array_equal(variable[part], WHOLE[part])


@pytest.mark.ddl_item("sharding.slicing")
@sharded
def test_a_new_axis_before_a_slice(variable):
    import tensorflow as tf

    np.testing.assert_array_equal(variable[tf.newaxis, 1:6], WHOLE[np.newaxis, 1:6])


@pytest.mark.ddl_item("sharding.slicing")
@sharded
def test_an_ellipsis_that_covers_no_axis(ddl_strategy):
    import tensorflow as tf

    with ddl_strategy.scope():
        flat = tf.Variable(WHOLE[:, 0])
    np.testing.assert_array_equal(flat[..., 1:6], WHOLE[:, 0][1:6])


@pytest.mark.ddl_item("sharding.slicing")
@sharded
def test_operators(variable):
    """Python operators and functions of TensorFlow see the whole."""
    import tensorflow as tf

    other = WHOLE[::-1] + 0.5
    assert variable.shape == WHOLE.shape
    for found, expected in [
        (variable + other, WHOLE + other),
        (tf.constant(other) - variable, other - WHOLE),
        (variable * 2.0, WHOLE * 2),
        (variable / other, WHOLE / other),
        (variable**2.0, WHOLE**2),
        (-variable, -WHOLE),
        (variable > other, np.greater(WHOLE, other)),
        (tf.matmul(variable, other.T), WHOLE @ other.T),
        (tf.reduce_sum(variable, axis=0), WHOLE.sum(axis=0)),
        (tf.convert_to_tensor(variable), WHOLE),
    ]:
        # Whole numbers and halves are exact, and a quotient is rounded in the same way.
        np.testing.assert_array_equal(found, expected)


@pytest.mark.ddl_item("sharding.embedding")
@sharded
@pytest.mark.parametrize("how", ["eager", "function"])
def test_embedding_lookup(variable, how):
    """Indices are unsorted, repeated, and have two dimensions."""
    import tensorflow as tf

    wrap = tf.function if how == "function" else lambda function: function
    indices = np.array([[6, 0, 3], [3, 2, 6]])
    np.testing.assert_array_equal(wrap(lambda: tf.nn.embedding_lookup(variable, indices))(), WHOLE[indices])


COMBINERS = {
    "sum": lambda rows, weights: (rows * weights).sum(axis=0),
    "mean": lambda rows, weights: (rows * weights).sum(axis=0) / weights.sum(),
    "sqrtn": lambda rows, weights: (rows * weights).sum(axis=0) / np.sqrt((weights**2).sum()),
}


@pytest.mark.ddl_item("sharding.embedding")
@sharded
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("safe", [False, True], ids=["plain", "safe"])
def test_embedding_lookup_of_sparse_indices(variable, combiner, safe):
    """Rows of indices have other lengths. The safe function gives zeros for a row without indices."""
    import tensorflow as tf

    bags = [[6, 0, 6], [3], [2, 5, 1, 0]] + ([[]] if safe else [])
    factors = [[1.0, 2.0, 3.0], [0.5], [1.0, 4.0, 2.0, 8.0], []]
    places = [[row, column] for row, bag in enumerate(bags) for column in range(len(bag))]
    shape = [len(bags), 4]
    indices = tf.SparseTensor(places, tf.constant(list(chain(*bags)), tf.int64), shape)
    weights = tf.SparseTensor(places, tf.constant(list(chain(*factors)), tf.float64), shape)
    lookup = tf.nn.safe_embedding_lookup_sparse if safe else tf.nn.embedding_lookup_sparse
    found = lookup(variable, indices, weights, combiner=combiner)
    for row, (bag, factor) in enumerate(zip(bags, factors, strict=False)):
        weight = np.array(factor)[:, None]
        expected = COMBINERS[combiner](WHOLE[bag], weight) if bag else np.zeros(2)
        # A sum of four products and a division: fewer than ten roundings in float64.
        np.testing.assert_allclose(found[row], expected, rtol=10 * np.finfo("float64").eps)


@pytest.mark.ddl_item("sharding.embedding")
@sharded
def test_the_gradient_of_an_embedding(variable):
    """Each shard gets the gradient of its own rows."""
    import tensorflow as tf

    indices = np.array([6, 0, 3, 6])
    weights = np.array([[1.0], [2.0], [3.0], [4.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, indices) * weights)
    found = np.concatenate([tf.convert_to_tensor(part) for part in tape.gradient(loss, variable.variables)])
    expected = np.zeros_like(WHOLE)
    np.add.at(expected, indices, np.broadcast_to(weights, (4, 2)))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.ddl_item("sharding.aggregation")
@sharded
@pytest.mark.parametrize("aggregation", ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_an_aggregation_of_one_replica(ddl_strategy, aggregation):
    """Each worker has one replica here, so that every aggregation leaves a value as it is."""
    import tensorflow as tf

    strategy = ddl_strategy
    with strategy.scope():
        made = tf.Variable(WHOLE, aggregation=getattr(tf.VariableAggregation, aggregation))
    assert [part.aggregation.name for part in made.variables] == [aggregation] * SHARDS

    @tf.function
    def add():
        strategy.run(lambda: made.assign_add(WHOLE * 2) and None)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    coordinator.schedule(add)
    coordinator.join()
    np.testing.assert_array_equal(made.numpy(), WHOLE * 3)
