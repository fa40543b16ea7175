"""Check random numbers under strategies: streams of replicas, their state in checkpoints, and seeds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from pytest_ddl import current_rank, current_strategy
from suites.properties.inputs import MODES

ALL = ["one_device", "mirrored", "mirrored[replicas=3]", "multi_worker_mirrored"]
WITH_CENTRAL = [*ALL, "central_storage"]


def local(strategy, value):
    """Return the parts of the replicas of this rank as lists of numbers."""
    return [part.numpy().tolist() for part in strategy.experimental_local_results(value)]


def draw(strategy, generator, steps, how):
    """Return what each replica of this rank draws in each step."""
    import tensorflow as tf

    def step():
        return strategy.run(lambda: generator.uniform([4], dtype=tf.float64))

    step = tf.function(step) if how == "function" else step
    return [local(strategy, step()) for _ in range(steps)]


def streams(seed, how):
    """Return two streams of generators with the same seed."""
    import tensorflow as tf

    strategy = current_strategy()
    found = []
    for _ in range(2):
        with strategy.scope():
            generator = tf.random.Generator.from_seed(seed)
        found.append(draw(strategy, generator, 3, how))
    return found


@pytest.mark.ddl_item("random.generator.in_scope")
@pytest.mark.ddl(strategies=ALL)
@pytest.mark.parametrize("how", MODES)
def test_a_generator_gives_each_replica_its_own_stream(ddl_cluster, how):
    """No two draws of any replicas and steps are equal. Only the seed decides the streams."""
    ranks = ddl_cluster.run(streams, 7, how)
    draws = [tuple(drawn) for first, _ in ranks for parts in first for drawn in parts]
    assert len(draws) == 3 * ddl_cluster.num_replicas
    for one, other in combinations(draws, 2):
        assert not set(one) & set(other)
    for first, second in ranks:
        assert first == second
    for (first, _), (other, _) in zip(ranks, ddl_cluster.run(streams, 8, how), strict=True):
        assert first != other


@pytest.mark.ddl_item("random.generator.in_scope", shows="behavior")
@pytest.mark.ddl(strategies=ALL)
def test_the_states_of_all_replicas_advance_alike(ddl_strategy):
    """The counter of Philox grows by the numbers that were drawn, in blocks, and the key of a replica stays."""
    import tensorflow as tf

    with ddl_strategy.scope():
        generator = tf.random.Generator.from_seed(7)
    before = local(ddl_strategy, generator.state)
    draw(ddl_strategy, generator, 3, "function")
    after = local(ddl_strategy, generator.state)
    assert len({(new[0] - old[0], new[1] - old[1]) for new, old in zip(after, before, strict=True)}) == 1
    assert all(new[0] > old[0] and new[2] == old[2] for new, old in zip(after, before, strict=True))


@pytest.mark.ddl_item("random.generator.out_scope")
@pytest.mark.ddl(strategies=["mirrored", "mirrored[replicas=3]"])
@pytest.mark.parametrize("how", MODES)
def test_a_generator_without_a_strategy_has_one_stream(ddl_strategy, how):
    """The replicas share its state: together they draw what one device draws in as many calls, in some order."""
    import tensorflow as tf

    drawn = draw(ddl_strategy, tf.random.Generator.from_seed(7), 2, how)
    alone = tf.random.Generator.from_seed(7)
    expected = [alone.uniform([4], dtype=tf.float64).numpy().tolist() for _ in range(2 * len(drawn[0]))]
    assert sorted(part for parts in drawn for part in parts) == sorted(expected)


@pytest.mark.ddl_item("random.generator.restore")
@pytest.mark.ddl(strategies=ALL)
def test_a_restored_generator_continues(ddl_strategy, tmp_path):
    """Each replica goes on with its own stream."""
    import tensorflow as tf

    with ddl_strategy.scope():
        generator = tf.random.Generator.from_seed(7)
        other = tf.random.Generator.from_seed(8)
    draw(ddl_strategy, generator, 2, "function")
    path = tf.train.Checkpoint(generator=generator).write(str(tmp_path / f"rank-{current_rank().rank}"))
    expected = draw(ddl_strategy, generator, 2, "function")
    tf.train.Checkpoint(generator=other).read(path).assert_consumed()
    assert draw(ddl_strategy, other, 2, "function") == expected


@pytest.mark.ddl_item("random.generator.restore")
@pytest.mark.ddl(strategies="mirrored[replicas=3]")
@pytest.mark.parametrize("more", [True, False], ids=["2 to 3", "3 to 2"])
def test_a_generator_is_restored_with_another_number_of_replicas(ddl_strategy, tmp_path, more):
    """TensorFlow's guide promises this: replicas that both strategies have go on with their streams."""
    import tensorflow as tf

    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    before, after = (two, ddl_strategy) if more else (ddl_strategy, two)
    with before.scope():
        saved = tf.random.Generator.from_seed(7)
    draw(before, saved, 2, "eager")
    path = tf.train.Checkpoint(generator=saved).write(str(tmp_path / "checkpoint"))
    expected = draw(before, saved, 2, "eager")
    with after.scope():
        restored = tf.random.Generator.from_seed(8)
    tf.train.Checkpoint(generator=restored).read(path)
    found = draw(after, restored, 2, "eager")
    assert [parts[:2] for parts in found] == [parts[:2] for parts in expected]
    assert len({tuple(part) for parts in found for part in parts}) == 2 * after.num_replicas_in_sync


def stateless(how):
    """Return what the replicas of a rank draw with the same seed and with their own, and what is drawn outside."""
    import tensorflow as tf

    strategy = current_strategy()

    def drawn(seed):
        return tf.random.stateless_normal([3], seed, dtype=tf.float64)

    def replica_function():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return drawn([1, 2]), drawn(tf.random.fold_in([1, 2], replica))

    def step():
        return strategy.run(replica_function)

    same, own = (tf.function(step) if how == "function" else step)()
    # In the pytest process, TensorFlow would be imported for these numbers only.
    alone = [drawn(tf.random.fold_in([1, 2], replica)).numpy() for replica in range(strategy.num_replicas_in_sync)]
    return local(strategy, same), local(strategy, own), [drawn([1, 2]).numpy(), *alone]


@pytest.mark.ddl_item("random.stateless")
@pytest.mark.ddl(strategies=WITH_CENTRAL)
@pytest.mark.parametrize("how", MODES)
def test_stateless_numbers_depend_on_the_seed_only(ddl_cluster, how):
    """Equal seeds give what one device draws. Seeds that depend on the replica give what it draws with those."""
    ranks = ddl_cluster.run(stateless, how)
    expected, *alone = ranks[0][2]
    same, own = ([part for rank in ranks for part in rank[index]] for index in (0, 1))
    assert len(same) == ddl_cluster.num_replicas
    # A device may compute a logarithm with another instruction set, so the last two bits can differ.
    close = {"rtol": 4 * np.finfo("float64").eps}
    for part in same:
        np.testing.assert_allclose(part, expected, **close)
    for part, outside in zip(own, alone, strict=True):
        np.testing.assert_allclose(part, outside, **close)
    assert len({tuple(part) for part in own}) == len(own)


@pytest.mark.ddl_item("random.global_seed", shows="behavior")
@pytest.mark.ddl(strategies=ALL)
@pytest.mark.parametrize("how", MODES)
def test_a_global_seed_repeats_the_numbers(ddl_strategy, how):
    """Operations with a state draw the same numbers again. The replicas of one process draw different ones."""
    import tensorflow as tf

    def numbers(seed):
        tf.random.set_seed(seed)

        def step():
            return ddl_strategy.run(lambda: tf.random.uniform([4]))

        step = tf.function(step) if how == "function" else step
        return [local(ddl_strategy, step()) for _ in range(2)]

    first = numbers(3)
    assert numbers(3) == first
    assert numbers(4) != first
    parts = [tuple(part) for step in first for part in step]
    assert len(set(parts)) == len(parts)


def initial_weights(in_scope):
    """Return the weights of a model that is made with a seed."""
    import contextlib

    from suites.subject import keras

    keras.utils.set_random_seed(11)
    with current_strategy().scope() if in_scope else contextlib.nullcontext():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), keras.layers.Dense(2, "relu")])
    return [np.asarray(weight) for weight in model.get_weights()]


@pytest.mark.ddl_item("random.global_seed", shows="parity")
@pytest.mark.ddl(strategies=WITH_CENTRAL)
def test_initial_weights_are_those_of_one_device(ddl_cluster):
    """Layers of the same shape have other weights, and all ranks have the same."""
    alone = ddl_cluster.run(initial_weights, False)[0]
    for weights in ddl_cluster.run(initial_weights, True):
        for one, other in zip(weights, alone, strict=True):
            np.testing.assert_array_equal(one, other)
    assert np.abs(alone[0]).min() > 0
