"""Places of examples and of random numbers, from the records of the plain runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pytest_ddl.equivalence.probes.placing import moved, places_of, same_examples, unlike_loops, unplaced
from pytest_ddl.records import BatchRecord, DrawRecord, RankRecord, StepRecord, TrainingRecord
from pytest_ddl.training.places import Block, Placement, Rows, Shared, Spans, Unplaced

Shape = tuple[int, ...]
Batches = Sequence[tuple[int, Sequence[int]]]
"""Replica and examples of each call, in order."""


def _record(
    batches: Batches,
    shapes: Mapping[int, Mapping[int, Shape]],
    times: int | Sequence[int] = 1,
    known: bool = True,
    op: str = "uniform",
) -> TrainingRecord:
    """Return a run of one step, with ``replica -> position -> shape`` of what was drawn.

    :param times: executions of each operation, for all replicas or for each.
    """
    consumed = [BatchRecord(r, len(examples), tuple(examples) if known else None) for r, examples in batches]
    draws = []
    for replica, own in shapes.items():
        for position, shape in own.items():
            size = times if isinstance(times, int) else times[replica]
            for length in shape:
                size *= length
            draws.append(DrawRecord(replica, position, op, "drawn", 7, size, shape, "float32", 9))
    step = StepRecord(1, None, {}, tuple(consumed), {}, draws=tuple(draws))
    replicas = tuple(sorted({replica for replica, _examples in batches}))
    return TrainingRecord("any", len(replicas), (RankRecord(0, "", replicas, steps=(step,)),), 6, "native", 0)


ALONE: Batches = [(0, (1, 2, 3, 4, 5, 6))]
APART: Batches = [(0, (1, 2, 3, 4)), (1, (5, 6))]


def test_examples_are_found_by_their_contents() -> None:
    shuffled: Batches = [(0, (6, 1, 3)), (1, (2, 2, 4))]
    places = places_of(_record([(0, (1, 2, 3, 4, 2, 6))], {}), _record(shuffled, {}))
    assert places.blocks[1] == (Block(0, (5, 0, 2)), Block(1, (1, 4, 3)))
    assert places.of_replica(1, 1, 0).tolist() == [[1, 1, 0], [4, 1, 1], [3, 1, 2]]
    assert places.of_device(1, 0)[:2].tolist() == [[0, 0, 1], [1, 1, 0]]
    assert places.of_device(1, 0, (5, 3)).tolist() == [[5, 0, 0], [3, 1, 2]]
    assert places.of_replica(2, 0, 0).shape == (0, 3)


def test_without_contents_replicas_take_successive_parts() -> None:
    places = places_of(_record(ALONE, {}, known=False), _record(APART, {}, known=False))
    assert places.blocks[1] == (Block(0, (0, 1, 2, 3)), Block(1, (4, 5)))


def test_each_call_of_a_step_has_places_of_its_own() -> None:
    twice = places_of(_record([*ALONE, *ALONE], {}), _record([APART[0], APART[0], APART[1], APART[1]], {}))
    assert [block.places for block in twice.blocks[1]] == [(0, 1, 2, 3), (4, 5), (6, 7, 8, 9), (10, 11)]
    assert twice.of_replica(1, 1, 1)[:, 0].tolist() == [10, 11]
    assert twice.of_device(1, 1)[:, 0].tolist() == [6, 7, 8, 9, 10, 11]


def test_other_examples_have_no_places() -> None:
    assert not places_of(_record(ALONE, {}), _record([(0, (1, 2, 3)), (1, (4, 5, 9))], {})).blocks


@pytest.mark.parametrize(
    ("alone", "first", "second", "placement"),
    [
        ((6,), (4,), (2,), Rows(0)),
        ((3, 6, 2), (3, 4, 2), (3, 2, 2), Rows(1)),
        ((12,), (8,), (4,), Rows(0, each=2)),
        ((6, 2), (6, 2), (6, 2), Shared()),
        ((), (), (), Shared()),
        ((5, 2), (3, 2), (2, 2), Spans(0, ((1, 0, 0), (1, 1, 3)))),
        ((2, 5), (2, 1), (2, 4), Spans(1, ((1, 0, 0), (1, 1, 1)))),
        ((5,), (3,), (3,), Unplaced()),
        ((6, 6), (4, 4), (2, 2), Unplaced()),
    ],
)
def test_the_dimension_of_the_examples_has_their_ratio(
    alone: Shape, first: Shape, second: Shape, placement: Placement
) -> None:
    ours, theirs = _record(ALONE, {0: {0: alone}}), _record(APART, {0: {0: first}, 1: {0: second}})
    places = places_of(ours, theirs)
    assert places.draws == {0: placement}
    left = unplaced(places, ours, theirs)
    assert bool(left) is isinstance(placement, Unplaced)


@pytest.mark.parametrize(("alone", "times"), [(6, (4, 2)), (5, (4, 2)), (6, (3, 3))])
def test_a_loop_over_the_examples_draws_for_one_after_the_other(alone: int, times: tuple[int, int]) -> None:
    ours = _record(ALONE, {0: {0: (3,)}}, times=alone)
    theirs = _record(APART, {0: {0: (3,)}, 1: {0: (3,)}}, times=times)
    places = places_of(ours, theirs)
    rows = (alone, times) == (6, (4, 2))
    assert places.draws == {0: Rows(0, looped=True) if rows else Unplaced()}
    assert bool(unplaced(places, ours, theirs)) is not rows
    assert bool(unlike_loops(places, ours, theirs)) is not rows
    assert unplaced(places, ours, _record(APART, {0: {0: (3,)}, 1: {0: (3,)}}, times=4))


def test_an_eager_loop_over_the_examples_has_no_place() -> None:
    """Each execution is an operation of its own there."""
    shapes: list[dict[int, Shape]] = [dict.fromkeys(range(count), ()) for count in (6, 4, 2)]
    ours, theirs = _record(ALONE, {0: shapes[0]}), _record(APART, {0: shapes[1], 1: shapes[2]})
    places = places_of(ours, theirs)
    assert unplaced(places, ours, theirs)
    assert unlike_loops(places, ours, theirs)


def test_a_loop_of_the_same_length_on_one_device_is_compared() -> None:
    ours = _record(ALONE, {0: {0: (3,)}}, times=4)
    theirs = _record(APART, {0: {0: (3,)}, 1: {0: (3,)}}, times=4)
    assert places_of(ours, theirs).draws == {0: Shared()}
    assert not unlike_loops(places_of(ours, theirs), ours, theirs)


def test_parts_of_the_examples_are_in_order() -> None:
    half = {0: (3,)}, {0: (2,)}, {0: (1,)}
    repeated = places_of(_record(ALONE, {0: half[0]}, times=2), _record(APART, {0: half[1], 1: half[2]}, times=2))
    assert repeated.draws == {0: Rows(0, parts=2)}
    apart = [dict.fromkeys(range(4), own[0]) for own in half]
    several = places_of(_record(ALONE, {0: apart[0]}), _record(APART, {0: apart[1], 1: apart[2]}))
    assert several.draws == {
        0: Rows(0, parts=2, part=0, operation=0),
        1: Rows(0, parts=2, part=0, operation=1),
        2: Rows(0, parts=2, part=1, operation=0),
        3: Rows(0, parts=2, part=1, operation=1),
    }
    alone = places_of(_record(ALONE, {0: half[0]}), _record(APART, {0: half[1], 1: half[2]}))
    assert alone.draws == {0: Unplaced()}


def test_a_draw_of_another_length_than_before_is_reported() -> None:
    ours, theirs = _record(ALONE, {0: {0: (6,)}}), _record(APART, {0: {0: (4,)}, 1: {0: (2,)}})
    places = places_of(ours, theirs)
    assert not unplaced(places, ours, theirs)
    assert unplaced(places, ours, _record(APART, {0: {0: (3,)}, 1: {0: (2,)}})) == ["uniform (3,) in step 1"]
    assert unplaced(places, _record(ALONE, {0: {5: (6,)}})) == ["uniform (6,)"]


def test_rows_that_a_shuffle_does_not_exchange_are_reported() -> None:
    """A shuffle of the entries of one example, or of parts of the examples, mixes within them, which is not seen."""
    for alone, first, second, seen in (((6, 2), (4, 2), (2, 2), True), ((12,), (8,), (4,), False)):
        ours = _record(ALONE, {0: {0: alone}}, op="random_shuffle")
        theirs = _record(APART, {0: {0: first}, 1: {0: second}}, op="random_shuffle")
        assert bool(unplaced(places_of(ours, theirs), ours, theirs)) is not seen


def test_places_with_equal_content_have_equal_text() -> None:
    first, second = (places_of(_record(ALONE, {}), _record(APART, {})) for _time in range(2))
    assert repr(first) == repr(second)
    assert repr(first) != repr(places_of(_record(ALONE, {}), _record([(0, (1, 2)), (1, (3, 4, 5, 6))], {})))


def test_examples_are_the_same_only_in_the_same_order() -> None:
    assert same_examples(_record(APART, {}), _record(APART, {}))
    assert not same_examples(_record(APART, {}), _record([(0, (2, 1, 3, 4)), (1, (5, 6))], {}))


def test_lengths_that_follow_from_other_draws_move_the_places() -> None:
    ours, theirs = _record(ALONE, {0: {0: (5,)}}), _record(APART, {0: {0: (3,)}, 1: {0: (2,)}})
    places = places_of(ours, theirs)
    assert places.firsts(1, 1) == [3]
    assert places.firsts(1, None) == [0]
    assert moved(places, ours, theirs) is None
    found = moved(places, ours, _record(APART, {0: {0: (1,)}, 1: {0: (4,)}}))
    assert found is not None
    assert found.firsts(1, 1) == [1]
    unknown = places_of(_record(ALONE, {0: {0: (4,)}}), theirs)
    assert unknown.draws == {0: Unplaced()}
    assert moved(unknown, ours, theirs) is not None
