"""The record has the random numbers of replica functions. Constants replace the numbers if they are switched off."""

from __future__ import annotations

import draw_programs as programs
import pytest
import tensorflow as tf

from pytest_ddl.training import neutral
from pytest_ddl.training.neutral import LOW, RANDOM, VARIED

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": 8, "steps": 3}


def draws_of(found):
    """(position, replica, step) -> the draw, over all ranks."""
    return {(d.position, d.replica, step.index): d for rank in found for step in rank.steps for d in step.draws}


@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored", "central_storage"])
def test_each_replica_and_step_is_told_apart(ranks, strategy):
    draws = draws_of(ranks(strategy, programs.stateless, **GIVEN))
    assert sorted(draws) == [(0, replica, step) for replica in (0, 1) for step in (1, 2, 3)]
    assert len({draw.digest for draw in draws.values()}) == 6
    assert {(draw.op, draw.shape, draw.size) for draw in draws.values()} == {("stateless_random_normal_v2", (4, 3), 12)}


@pytest.mark.parametrize(
    ("program", "positions"),
    [
        (programs.eager, 1),
        (programs.folded, 1),
        (programs.legacy, 2),
        (programs.in_a_loop, 1),
        (programs.nested_function, 1),
        (programs.under_a_name_of_initializers, 1),
        (programs.draws_nothing, 0),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_way_to_draw_is_seen_once(ranks, program, positions):
    draws = draws_of(ranks("mirrored", program, **GIVEN))
    assert sorted(draws) == [(p, r, s) for p in range(positions) for r in (0, 1) for s in (1, 2, 3)]
    assert len({draw.digest for draw in draws.values()}) == len(draws)
    if program is programs.in_a_loop:
        assert {draw.size for draw in draws.values()} == {24}


def test_the_seed_generator_of_keras_is_named(ranks):
    draws = draws_of(ranks("mirrored", programs.seeds_of_keras, **GIVEN))
    named = {position: {d.generator for (p, _r, _s), d in draws.items() if p == position} for position in range(3)}
    assert named == {0: {"generator"}, 1: {""}, 2: {""}}


def test_initial_values_are_no_draws(ranks):
    draws = draws_of(ranks("one_device", programs.creates_a_variable, **GIVEN))
    assert sorted(draws) == [(0, 0, step) for step in (1, 2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("program", [programs.stateless, programs.legacy, programs.in_a_loop, programs.every_kind])
def test_observing_changes_nothing(ranks, program):
    observed = ranks("mirrored", program, **GIVEN)[0]
    plain = ranks("mirrored", program, observe=False, **GIVEN)[0]
    assert [step.loss for step in observed.steps] == [step.loss for step in plain.steps]
    assert not any(step.draws for step in plain.steps)


@pytest.mark.slow
@pytest.mark.parametrize("program", [programs.stateless, programs.legacy, programs.in_a_loop, programs.eager])
def test_with_the_randomness_off_replicas_compute_what_one_device_does(ranks, program):
    off = {**GIVEN, "neutralize": (RANDOM,)}
    (alone,), (record,) = ranks("one_device", program, **off), ranks("mirrored", program, **off)
    assert [step.loss for step in record.steps] == pytest.approx([step.loss for step in alone.steps], rel=1e-5)
    assert not any(step.draws for step in record.steps)
    assert not record.notes


@pytest.mark.parametrize("off", [(RANDOM,), (RANDOM, LOW), (RANDOM, VARIED)])
def test_every_kind_has_a_constant(ranks, off):
    (record,) = ranks("mirrored", programs.every_kind, neutralize=off, **GIVEN)
    again = ranks("mirrored", programs.every_kind, neutralize=off, **GIVEN)[0]
    assert not record.notes
    assert [step.loss for step in record.steps] == [step.loss for step in again.steps]


def _integers(minval, maxval):
    raise NotImplementedError


def _categories(logits, num_samples):
    raise NotImplementedError


def _gamma(alpha):
    raise NotImplementedError


def _poisson(rate):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("name", "drawn", "original", "given", "high", "low"),
    [
        ("random_uniform", [0.2, 0.7], None, (), [0.96875] * 2, [0.03125] * 2),
        ("stateless_random_normal_v2", [0.2, 0.7], None, (), [0.5] * 2, [-0.5] * 2),
        ("random_uniform_int", [17, 3], _integers, (10, 1010), [978] * 2, [41] * 2),
        ("random_uniform_int", [0, 0], _integers, (0, 2), [1] * 2, [0] * 2),
        ("random_uniform_int", [4, 4], _integers, (4, 5), [4] * 2, [4] * 2),
        ("multinomial", [[1, 0]], _categories, ([[-float("inf"), 0.7, 0.3, -1e9]], 2), [[2, 2]], [[1, 1]]),
        ("multinomial", [[1], [0]], _categories, ([[0.0, 9.0], [9.0, 0.0]], 1), [[1], [0]], [[1], [0]]),
        ("random_gamma", [2.2, 1.7], _gamma, (2.0,), [2.9375] * 2, [1.0625] * 2),
        ("random_poisson_v2", [2.0, 1.0], _poisson, (0.5,), [1.0] * 2, [0.0] * 2),
    ],
)
def test_constants_are_high_or_low(name, drawn, original, given, high, low):
    for level, expected in ((neutral.HIGH_LEVEL, high), (neutral.LOW_LEVEL, low)):
        found = neutral.constant_draw(name, tf.constant(drawn), original, given, {}, level=level)
        assert found.dtype == tf.constant(drawn).dtype
        assert found.numpy().tolist() == expected
    assert neutral.has_levels(name)


def test_a_shuffle_keeps_the_order_at_both_levels():
    def shuffle(value):
        raise NotImplementedError

    for level in (neutral.HIGH_LEVEL, neutral.LOW_LEVEL):
        found = neutral.constant_draw("random_shuffle", tf.constant([2, 1]), shuffle, ([1, 2],), {}, level=level)
        assert found.numpy().tolist() == [1, 2]
    assert not neutral.has_levels("random_shuffle")


def test_levels_that_vary_choose_every_way_within_a_few_steps():
    ways = {int(3 * neutral.varied_level(0, step)) for step in range(1, 5)}
    assert ways == {0, 1, 2}
    pairs = [[neutral.varied_level(position, step) for position in (0, 1)] for step in range(1, 5)]
    assert {first < second for first, second in pairs} == {True, False}
