"""Variables that are trained and not watched are named in the record; others are not."""

from __future__ import annotations

import pytest
import unwatched_programs as programs

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": 8}
STRATEGIES = ["one_device", "mirrored", pytest.param("parameter_server", marks=pytest.mark.slow)]


def unwatched(records):
    return [name.rsplit("/", 2)[-2:] for record in records for name in record.facts.get("unwatched", ())]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("program", [programs.watches_all, programs.watches_what_it_trains])
def test_what_is_watched_or_does_not_move_is_not_named(ranks, strategy, program):
    assert unwatched(ranks(strategy, program, **GIVEN, steps=3)) == []


@pytest.mark.nightly(each_commit=("1", "3-parameter_server"))
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("steps", [1, 3])
def test_a_layer_that_is_not_watched_is_named(ranks, strategy, steps):
    found = unwatched(ranks(strategy, programs.watches_one_layer, **GIVEN, steps=steps))
    assert [name[-1] for name in found] == ["kernel", "bias"]


def test_a_model_that_is_not_watched_is_named(ranks):
    assert len(unwatched(ranks("mirrored", programs.watches_a_counter, **GIVEN, steps=2))) == 4


@pytest.mark.nightly(
    each_commit=(
        "moves_once_by_tape",
        "moves_once_by_persistent_tape-mirrored",
        "moves_once_by_jacobian-mirrored",
        "moves_once_by_graph-mirrored",
        "moves_once_by_forward_mode-mirrored",
    )
)
@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
@pytest.mark.parametrize(
    "program",
    [
        programs.moves_once_by_tape,
        programs.moves_once_by_persistent_tape,
        programs.moves_once_by_jacobian,
        programs.moves_once_by_graph,
        programs.moves_once_by_forward_mode,
    ],
)
def test_what_moves_in_the_first_step_only_is_named(ranks, strategy, program):
    assert unwatched(ranks(strategy, program, **GIVEN)) == [["hidden"]]


AFTERWARDS = ["one_device", "mirrored", "multi_worker_mirrored"]


@pytest.mark.parametrize("strategy", AFTERWARDS)
def test_what_is_trained_after_the_last_step_is_named(ranks, strategy):
    for record in ranks(strategy, programs.trains_afterwards, **GIVEN):
        assert [name[-1] for name in unwatched([record])] == ["kernel", "bias", "kernel", "bias"]


@pytest.mark.parametrize("strategy", AFTERWARDS)
@pytest.mark.parametrize("program", [programs.looks_at_gradients_afterwards, programs.evaluates_afterwards])
def test_what_stands_still_or_has_no_gradient_after_the_last_step_is_not_named(ranks, strategy, program):
    assert unwatched(ranks(strategy, program, **GIVEN)) == []
