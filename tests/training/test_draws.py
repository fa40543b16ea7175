"""The record has the random numbers of replica functions. Constants replace the numbers if they are switched off."""

from __future__ import annotations

import draw_programs as programs
import pytest

from pytest_ddl.equivalence.probes.placing import places_of
from pytest_ddl.records import TrainingRecord
from pytest_ddl.training.neutral import RANDOM

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


def test_a_vectorized_map_draws_rows(ranks):
    draws = draws_of(ranks("mirrored", programs.vectorized, **GIVEN))
    assert {(draw.shape, draw.size) for draw in draws.values()} == {((4, 3), 12)}
    assert len({draw.digest for draw in draws.values()}) == len({draw.seeds for draw in draws.values()}) == 6


def test_the_seed_generator_of_keras_is_named(ranks):
    draws = draws_of(ranks("mirrored", programs.seeds_of_keras, **GIVEN))
    named = {position: {d.generator for (p, _r, _s), d in draws.items() if p == position} for position in range(3)}
    assert named == {0: {"generator"}, 1: {""}, 2: {""}}


def test_initial_values_are_no_draws(ranks):
    draws = draws_of(ranks("one_device", programs.creates_a_variable, **GIVEN))
    assert sorted(draws) == [(0, 0, step) for step in (1, 2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [programs.stateless, programs.legacy, programs.in_a_loop, programs.vectorized, programs.every_kind]
)
def test_observing_changes_nothing(ranks, program):
    observed = ranks("mirrored", program, **GIVEN)[0]
    plain = ranks("mirrored", program, observe=False, **GIVEN)[0]
    assert [step.loss for step in observed.steps] == [step.loss for step in plain.steps]
    assert not any(step.draws for step in plain.steps)


def _common(program, ranks, strategy="mirrored", **given):
    """Records of both runs with common random numbers, whose places come from plain runs."""
    plain = [_joined(ranks(name, program, **GIVEN), name) for name in ("one_device", strategy)]
    off = {"neutralize": (RANDOM,), "places": places_of(*plain), **GIVEN, **given}
    return [_joined(ranks(name, program, **off), name) for name in ("one_device", strategy)]


def _joined(found, strategy):
    replicas = sum(len(rank.replicas) for rank in found)
    return TrainingRecord(strategy, replicas, tuple(found), GIVEN["global_batch_size"], "native", 0)


# The strategy decides only at which place a replica's numbers begin, which two programs show over workers.
@pytest.mark.nightly(
    each_commit=(
        "stateless",
        "eager",
        "legacy-mirrored",
        "in_a_loop-mirrored",
        "one_by_one-mirrored",
        "vectorized-mirrored",
        "vectorized_twice-mirrored",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
@pytest.mark.parametrize(
    "program",
    [
        programs.stateless,
        programs.legacy,
        programs.in_a_loop,
        programs.one_by_one,
        programs.vectorized,
        programs.vectorized_twice,
        programs.eager,
    ],
)
def test_replicas_draw_together_what_one_device_draws(ranks, program, strategy):
    alone, record = _common(program, ranks, strategy)
    ours, theirs = ([step.loss for step in run.ranks[0].steps] for run in (alone, record))
    assert theirs == pytest.approx(ours, rel=1e-5)
    assert len(set(ours)) == len(ours)
    assert not record.ranks[0].notes


def test_every_kind_is_replaced(ranks):
    record, again = (_common(programs.every_kind, ranks)[1] for _run in range(2))
    draws = draws_of(record.ranks)
    assert draws == draws_of(again.ranks)
    assert {draw.op for draw in draws.values()} == {
        "random_uniform_int", "multinomial", "random_shuffle", "random_gamma", "random_poisson_v2"
    }  # fmt: skip
    assert not record.ranks[0].notes
