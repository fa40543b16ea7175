"""Check iterators, structures, options and sources of distributed datasets."""

from __future__ import annotations

import time
from collections import OrderedDict, namedtuple
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pytest_ddl import current_rank, current_strategy
from suites.parameters.spaces import Wrong
from suites.properties.inputs import MODES, batches, epoch, flat, ids, joined, pieces, plain

SYNCHRONOUS = ["mirrored", "mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"]
WITH_ONE = ["one_device", *SYNCHRONOUS]
NUMBER, BATCH = 11, 4


def counted(number=NUMBER, batch=BATCH):
    """Return a dataset of batches of consecutive numbers."""
    import tensorflow as tf

    return tf.data.Dataset.range(number).batch(batch)


def own(strategy, parts):
    """Return the pieces of one step for the replicas of this rank, from those for all replicas."""
    local = strategy.num_replicas_in_sync // current_rank().num_ranks
    return parts[current_rank().rank * local :][:local]


def expected(strategy, number=NUMBER, batch=BATCH):
    """Return the epoch of this rank for a dataset of ``counted``."""
    return [own(strategy, pieces(one, strategy.num_replicas_in_sync)) for one in batches(range(number), batch)]


@pytest.mark.ddl_item("input.iterator.get_next")
@pytest.mark.ddl(strategies=WITH_ONE)
@pytest.mark.parametrize("how", MODES)
def test_an_iterator_ends_again_and_again(ddl_strategy, how):
    """At the end, each call raises, and the optional has no value. A new iterator begins at the first example."""
    import tensorflow as tf

    distributed = ddl_strategy.experimental_distribute_dataset(counted())
    wrap = tf.function if how == "function" else lambda function: function
    take = wrap(lambda iterator: iterator.get_next())
    ask = wrap(lambda iterator: iterator.get_next_as_optional())

    for _ in range(2):
        iterator = iter(distributed)
        found = [ask(iterator).get_value() if step % 2 else take(iterator) for step in range(3)]
        assert [ids([map(plain, ddl_strategy.experimental_local_results(value))])[0] for value in found] == expected(
            ddl_strategy
        )
        for _ in range(2):
            with pytest.raises(tf.errors.OutOfRangeError):
                take(iterator)
            assert not ask(iterator).has_value()
        with pytest.raises(StopIteration):
            next(iterator)


# TensorFlow warns about its own use of options when a function gets a distributed dataset.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")
@pytest.mark.ddl_item("input.iterator.in_function", "input.dataset.element_spec")
@pytest.mark.ddl(strategies=WITH_ONE)
def test_a_loop_in_a_function(ddl_strategy):
    """The sum has a weight for each step and each replica. The dataset or its iterator is an argument."""
    import tensorflow as tf

    strategy = ddl_strategy
    distributed = strategy.experimental_distribute_dataset(counted())

    @tf.function
    def loop(given):
        step, total = tf.constant(0, tf.int64), tf.constant(0, tf.int64)
        for value in given:

            def weighted(part, step=step):
                replica = tf.distribute.get_replica_context().replica_id_in_sync_group
                return tf.reduce_sum(part + 1) * 100**step * tf.cast(replica + 1, tf.int64)

            total += strategy.reduce("SUM", strategy.run(weighted, args=(value,)), axis=None)
            step += 1
        return step, total

    whole = [pieces(one, strategy.num_replicas_in_sync) for one in batches(range(NUMBER), BATCH)]
    weights = sum(
        sum(example + 1 for example in part) * 100**step * (replica + 1)
        for step, parts in enumerate(whole)
        for replica, part in enumerate(parts)
    )
    for given in (distributed, iter(distributed)):
        assert [int(value) for value in loop(given)] == [len(whole), weights]


@pytest.mark.ddl_item("input.iterator.in_function", shows="behavior")
@pytest.mark.ddl(strategies=WITH_ONE)
def test_what_a_loop_in_a_function_refuses(ddl_strategy):
    """AutoGraph converts neither break nor enumerate over a distributed dataset, and says so."""
    import tensorflow as tf

    distributed = ddl_strategy.experimental_distribute_dataset(counted())

    @tf.function
    def with_break():
        for value in distributed:
            if tf.reduce_sum(tf.constant(1)) == 1:
                break
            del value

    @tf.function
    def with_enumerate():
        for step, value in enumerate(distributed):
            del step, value

    with pytest.raises(NotImplementedError, match="break and return statements are not yet supported"):
        with_break()
    with pytest.raises(NotImplementedError, match="enumerate not supported"):
        with_enumerate()


@pytest.mark.ddl_item("input.dataset.element_spec", shows="behavior")
@pytest.mark.ddl(strategies=WITH_ONE)
def test_the_specification_of_elements(ddl_strategy):
    """The values of a dataset match its own specification, which serves as a signature of a function."""
    import tensorflow as tf

    distributed = ddl_strategy.experimental_distribute_dataset(counted())
    spec = distributed.element_spec
    iterator = iter(distributed)
    assert iterator.element_spec == spec
    traces = []

    @tf.function(input_signature=[spec])
    def step(value):
        traces.append(value)
        return ddl_strategy.run(lambda part: tf.reduce_sum(part), args=(value,))

    for parts, value in zip(expected(ddl_strategy), iterator, strict=True):
        results = ddl_strategy.experimental_local_results(step(value))
        assert [int(result) for result in results] == [sum(part) for part in parts]
    assert len(traces) == 1


@pytest.mark.ddl_item("input.dataset.infinite", "input.iterator.get_next")
@pytest.mark.ddl(strategies=["mirrored", "mirrored[replicas=3]", "multi_worker_mirrored"])
@pytest.mark.parametrize("how", MODES)
def test_an_infinite_dataset(ddl_strategy, how):
    """The dataset repeats its examples, and its batches run over the end of the range."""
    import tensorflow as tf

    strategy = ddl_strategy
    dataset = tf.data.Dataset.range(5).repeat().batch(6, drop_remainder=True)
    distributed = strategy.experimental_distribute_dataset(dataset)
    assert tf.nest.flatten(distributed.element_spec, expand_composites=True)[0].shape == [
        6 // strategy.num_replicas_in_sync
    ]
    found = ids(epoch(strategy, distributed, how, limit=4))
    whole = [[example % 5 for example in one] for one in batches(range(24), 6)]
    assert found == [own(strategy, pieces(one, strategy.num_replicas_in_sync)) for one in whole]
    assert iter(distributed).get_next_as_optional().has_value()


@pytest.mark.ddl_item("input.dataset.empty")
@pytest.mark.ddl(strategies=["mirrored", "mirrored[replicas=3]", "multi_worker_mirrored"])
@pytest.mark.parametrize("how", MODES)
def test_an_empty_dataset_ends_at_once(ddl_strategy, how):
    import tensorflow as tf

    distributed = ddl_strategy.experimental_distribute_dataset(counted(0))
    assert epoch(ddl_strategy, distributed, how) == []
    assert not iter(distributed).get_next_as_optional().has_value()
    unknown = ddl_strategy.experimental_distribute_dataset(
        tf.data.Dataset.range(9).filter(lambda example: example > 9).batch(BATCH)
    )
    assert epoch(ddl_strategy, unknown, how) == []


def shuffled():
    """Return two epochs of each: shuffled anew in each epoch, shuffled once, and shuffled and kept in a cache."""
    import tensorflow as tf

    strategy = current_strategy()
    examples = tf.data.Dataset.range(24)
    datasets = {
        "anew": examples.shuffle(24, seed=3),
        "once": examples.shuffle(24, seed=3, reshuffle_each_iteration=False),
        "cached": examples.shuffle(24, seed=3).cache(),
    }
    found = {}
    for name, dataset in datasets.items():
        distributed = strategy.experimental_distribute_dataset(dataset.batch(6))
        found[name] = [ids(epoch(strategy, distributed)) for _ in range(2)]
    return found


@pytest.mark.ddl_item("input.dataset.cache_shuffle")
@pytest.mark.ddl(strategies=["one_device", "mirrored", "multi_worker_mirrored", "central_storage"])
def test_shuffled_epochs(ddl_cluster):
    """Every epoch has every example once, on all workers together. The seed decides the order."""
    ranks = ddl_cluster.run(shuffled)
    first, second = (
        {name: flat(joined([rank[name][index] for rank in ranks])) for name in ranks[0]} for index in (0, 1)
    )
    for order in (*first.values(), *second.values()):
        assert sorted(order) == list(range(24))
        assert order != list(range(24))
    assert first["anew"] != second["anew"]
    assert first["once"] == second["once"]
    assert first["cached"] == second["cached"]
    # With the same seed, a later run has the same order.
    again = ddl_cluster.run(shuffled)
    assert [rank["anew"] for rank in again] == [rank["anew"] for rank in ranks]


Pair = namedtuple("Pair", ["left", "right"])
ROWS = [[], [1], [2, 22], [3, 33, 333], [4]]


def structures(name):
    """Return a dataset of 5 examples."""
    import tensorflow as tf

    numbers = tf.data.Dataset.range(5)
    if name == "ragged":
        return tf.data.Dataset.from_tensor_slices(tf.ragged.constant(ROWS, dtype=tf.int64))
    if name == "sparse":
        return numbers.map(lambda x: tf.SparseTensor([[x % 3]], [x + 1], [3]))
    if name == "none":
        return numbers.map(lambda x: (x, None))
    return numbers.map(
        lambda x: {
            "tuple": (x, (10 * x, -x)),
            "dict": {"b": x, "a": {"c": x + 7}},
            "named": Pair(x, 3 * x),
            "string": tf.strings.as_string(x),
            "flag": x % 2 == 0,
            "matrix": tf.fill([2, 3], tf.cast(x, tf.float32)),
        }
    )


def wanted(name, examples):
    """Return what ``plain`` must give for a piece of a batch with these examples."""
    x = np.array(examples, dtype="int64")
    if name == "ragged":
        return [ROWS[example] for example in examples]
    if name == "sparse":
        return {
            "indices": [[row, example % 3] for row, example in enumerate(examples)],
            "values": [example + 1 for example in examples],
            "dense_shape": [len(examples), 3],
        }
    if name == "none":
        return [x, None]
    return {
        "tuple": [x, [10 * x, -x]],
        "dict": {"b": x, "a": {"c": x + 7}},
        "named": [x, 3 * x],
        "string": np.array([str(example).encode() for example in examples], "O"),
        "flag": x % 2 == 0,
        "matrix": np.broadcast_to(x[:, None, None].astype("float32"), (len(x), 2, 3)),
    }


def assert_same(actual, expected):
    """Compare nests; arrays must have the same shape, dtype and elements."""
    if isinstance(expected, dict):
        assert sorted(actual) == sorted(expected)
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, np.ndarray):
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(actual, expected)
    elif isinstance(expected, list) and expected and isinstance(expected[0], np.ndarray):
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    else:
        assert actual == expected


@pytest.mark.ddl_item("input.dataset.structures")
@pytest.mark.ddl(strategies=["one_device", "mirrored", "multi_worker_mirrored", "central_storage"])
@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("name", ["dense", "ragged", "none"])
def test_structures_with_an_uneven_last_batch(ddl_strategy, name, how):
    """The last batch has one example, so that the other replica gets an empty piece of the same structure."""
    distributed = ddl_strategy.experimental_distribute_dataset(structures(name).batch(4))
    found = epoch(ddl_strategy, distributed, how)
    for parts, here in zip(found, expected(ddl_strategy, 5, 4), strict=True):
        for part, examples in zip(parts, here, strict=True):
            assert_same(part, wanted(name, examples))


class Frozen(Mapping):
    """A dictionary of a user that cannot be changed. It is made from pairs, as ``tf.nest`` makes it."""

    def __init__(self, pairs):
        self._held = dict(pairs)

    def __getitem__(self, key):
        return self._held[key]

    def __iter__(self):
        return iter(self._held)

    def __len__(self):
        return len(self._held)


KINDS = {
    "tuple": lambda x: (x, (10 * x, -x)),
    "named": lambda x: Pair(x, {"b": 3 * x, "a": x}),
    "ordered": lambda x: OrderedDict([("b", x), ("a", 2 * x)]),
    "mapping": lambda x: Frozen([("b", x), ("a", (2 * x, x))]),
    "nothing": lambda x: (x, None),
}
WAYS = ("numpy", "file", "distributed", "replica", "module")


def on_a_way(way, make, strategy, folder):
    """Return the elements 3 and 4 of a structure as they come out of a dataset, a file, a replica or a saved module."""
    import tensorflow as tf

    elements = tf.data.Dataset.range(3, 5).map(make)
    if way == "numpy":
        return [*elements.as_numpy_iterator()]
    if way == "file":
        elements.save(str(folder))
        return [*tf.data.Dataset.load(str(folder))]
    if way == "module":
        module = tf.Module()
        module.call = tf.function(make, input_signature=[tf.TensorSpec([], tf.int64)])
        tf.saved_model.save(module, str(folder))
        call = tf.saved_model.load(str(folder)).call
        return [call(tf.constant(number, tf.int64)) for number in (3, 4)]
    if way == "replica":
        return [strategy.run(tf.function(lambda one: one), args=(one,)) for one in elements]
    return tf.nest.map_structure(
        lambda one: one if one is None else one[0], [*strategy.experimental_distribute_dataset(elements.batch(1))]
    )


@pytest.mark.ddl_item("input.dataset.structures")
@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.filterwarnings("ignore:Encoding a StructuredValue")
@pytest.mark.parametrize("way", WAYS)
def test_structures_are_kept_on_each_way(way, ddl_strategy, tmp_path):
    """A file and a saved module may know a dictionary by its keys only."""
    wrong = Wrong()
    for number, (kind, make) in enumerate(KINDS.items()):
        with wrong.of(kind):
            for value, found in zip((3, 4), on_a_way(way, make, ddl_strategy, tmp_path / str(number)), strict=True):
                assert same_kind(found, make(np.int64(value))), f"{found} of {value}"
    wrong.check()


def same_kind(found, expected):
    """Return whether two nests have the same parts, and say the same of each."""
    if expected is None or not isinstance(expected, (tuple, Mapping)):
        return found is expected or (found is not None and np.asarray(found) == expected)
    if isinstance(expected, Mapping):
        return sorted(found) == sorted(expected) and all(same_kind(found[key], expected[key]) for key in expected)
    names = getattr(expected, "_fields", None)
    return getattr(found, "_fields", None) == names and all(map(same_kind, found, expected))


@pytest.mark.ddl_item("input.dataset.structures")
@pytest.mark.ddl(strategies=["one_device", "mirrored", "central_storage"])
def test_sparse_tensors_with_an_uneven_last_batch(ddl_strategy):
    """The strategy has one process: with several, the others would wait for one that fails."""
    distributed = ddl_strategy.experimental_distribute_dataset(structures("sparse").batch(4))
    found = epoch(ddl_strategy, distributed)
    assert found == [[wanted("sparse", part) for part in here] for here in expected(ddl_strategy, 5, 4)]


@pytest.mark.ddl_item("input.dataset.structures")
@pytest.mark.ddl(strategies=["one_device", "mirrored", "multi_worker_mirrored", "central_storage"])
def test_sparse_tensors_with_even_batches(ddl_strategy):
    distributed = ddl_strategy.experimental_distribute_dataset(structures("sparse").batch(4, drop_remainder=True))
    found = epoch(ddl_strategy, distributed, "function")
    assert found == [[wanted("sparse", part) for part in here] for here in expected(ddl_strategy, 4, 4)]


def drop_iterators():
    """Take one element of each iterator, while its thread reads ahead. Return the elements."""
    import tensorflow as tf

    def slow(number):
        return number + 0 * sum(range(3_000_000))  # the thread must still read when the iterator is dropped

    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    data = tf.data.Dataset.range(8).map(lambda number: tf.numpy_function(slow, [number], tf.int64))
    distributed = current_strategy().experimental_distribute_dataset(data.with_options(options))
    return [int(next(iter(distributed))) for _ in range(10)]


@pytest.mark.ddl(strategies="one_device")
@pytest.mark.ddl_item("input.iterator.get_next")
def test_an_iterator_that_is_dropped_stops_its_thread(ddl_cluster):
    """``fit`` of Keras drops such an iterator in each evaluation."""
    assert ddl_cluster.run(drop_iterators) == [[0] * 10]


OLD = 1.0
"""Age in seconds at which an iterator is old. The thread of its autotuning then sleeps for a second or more."""
_LEFT: list[Any] = []


def longest_wait():
    """Drop iterators that are older than a second until one is waited for. Return the longest wait in seconds."""
    import tensorflow as tf

    data, begin = tf.data.Dataset.range(8).map(lambda number: number + 1), time.monotonic()
    while time.monotonic() < begin + 2 or len(_LEFT) < 200:
        _LEFT.append(iter(data))
        next(_LEFT[-1])
    waits = [0.0]
    # The rank ends without dropping those that are left: it would wait for some of them, too.
    while len(_LEFT) > 100 and waits[-1] < OLD / 2:
        before = time.monotonic()
        _LEFT.pop(0)
        waits.append(time.monotonic() - before)
    return max(waits)


@pytest.mark.ddl(strategies="one_device", isolation="fresh")
@pytest.mark.ddl_item("input.iterator.get_next")
def test_an_old_iterator_is_dropped_at_once(ddl_cluster):
    """``fit`` of Keras drops one at its end and after each evaluation."""
    assert max(ddl_cluster.run(longest_wait)) < OLD / 2
