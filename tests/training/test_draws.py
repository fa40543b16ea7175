"""What is recorded of the random numbers of replica functions, and what replaces them when they are switched off."""

from __future__ import annotations

import draw_programs as programs
import pytest

from pytest_ddl.training.neutral import RANDOM

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
    off = {**GIVEN, "neutralise": (RANDOM,)}
    (alone,), (record,) = ranks("one_device", program, **off), ranks("mirrored", program, **off)
    assert [step.loss for step in record.steps] == pytest.approx([step.loss for step in alone.steps], rel=1e-5)
    assert not any(step.draws for step in record.steps)
    assert not record.notes


def test_every_kind_has_a_constant(ranks):
    (record,) = ranks("mirrored", programs.every_kind, neutralise=(RANDOM,), **GIVEN)
    again = ranks("mirrored", programs.every_kind, neutralise=(RANDOM,), **GIVEN)[0]
    assert not record.notes
    assert [step.loss for step in record.steps] == [step.loss for step in again.steps]
