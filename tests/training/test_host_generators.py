"""Generators of the process from which a program has drawn before it seeded them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pytest_ddl.training.host_generators import HostGenerators, seed_by_rank


@pytest.fixture(autouse=True)
def _restored():
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


@pytest.mark.parametrize(
    ("program", "drawn"),
    [
        (lambda: None, ()),
        (lambda: np.random.default_rng(0).normal(), ()),
        (lambda: random.Random(0).random(), ()),
        (random.random, ("random",)),
        (lambda: random.randint(1, 6), ("random",)),
        (lambda: random.shuffle([1, 2, 3]), ("random",)),
        (lambda: np.random.normal(size=3), ("numpy.random",)),
        (lambda: (np.random.rand(), random.random()), ("numpy.random", "random")),
        (lambda: (np.random.seed(0), np.random.rand()), ()),
        (lambda: (random.seed(0), random.random()), ()),
        (lambda: (random.setstate(random.getstate()), random.random()), ()),
        (lambda: (np.random.set_state(np.random.get_state()), np.random.rand()), ()),
        (lambda: (np.random.rand(), np.random.seed(0)), ("numpy.random",)),
        (lambda: (random.seed(0), np.random.rand()), ("numpy.random",)),
    ],
)
def test_numbers_before_a_seed_are_noticed(program, drawn):
    originals = random.seed, random.randint, np.random.seed
    generators = HostGenerators()
    with generators.watched(0):
        program()
        assert generators.unseeded == drawn
    assert (random.seed, random.randint, np.random.seed) == originals


def test_what_happens_in_a_pause_does_not_count():
    generators = HostGenerators()
    with generators.watched(0):
        with generators.paused():
            random.random()
            np.random.seed(3)
        assert generators.unseeded == ()
        np.random.rand()
        assert generators.unseeded == ("numpy.random",)


def test_the_default_seeds_of_keras_do_not_count():
    import keras

    generators = HostGenerators()
    with generators.watched(0):
        keras.random.SeedGenerator()
        assert generators.unseeded == ()


def test_numbers_of_tensorflow_count_on_the_host():
    import tensorflow as tf

    tf.random.set_seed(11)
    first, second = (float(tf.random.uniform([])) for _ in range(2))
    tf.random.set_seed(11)
    apart = HostGenerators(apart=1)
    with apart.watched(11):
        assert float(tf.random.uniform([], seed=1)) > 0
        tf.data.Dataset.range(3).shuffle(3)
        tf.function(lambda: tf.random.uniform([]))()
        assert apart.unseeded == ()
        assert float(tf.random.uniform([])) not in (first, second)
        assert apart.unseeded == ("tf.random",)


def test_only_the_first_rank_keeps_its_numbers():
    drawn = []
    for rank in (0, 1, 2):
        random.seed(5)
        np.random.seed(5)
        seed_by_rank(5, rank)
        drawn.append((random.random(), np.random.rand()))
    random.seed(5)
    np.random.seed(5)
    assert drawn[0] == (random.random(), np.random.rand())
    assert len({one for pair in drawn for one in pair}) == 6
