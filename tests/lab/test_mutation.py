"""Mutants of recorded comparisons never pass without a reason, and numbers within their bounds change no verdict."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest

from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import RankRecord, StepRecord, TrainingRecord
from tests.checks.simulated_gradients import Way, train
from tests.checks.simulated_training import Program, pair
from tests.lab import codec, golden
from tests.lab.explained import EXPLAINED, NOT_QUANTITIES, OPEN
from tests.lab.golden import Golden
from tests.lab.mutate import Score, is_no_quantity, measure, passing, quantity_of, summary
from tests.lab.mutations import Subject, changed, mutants, within_bounds
from tests.lab.walk import Field, Item, Key, Place, drop, get, places, put, siblings

PAIRS = 5
"""Number of committed pairs of which a commit judges mutants. The night judges those of all pairs."""


def sample() -> Iterator[Path]:
    found = [path for path in golden.paths(golden.RECORDS) if not path.name.startswith("sin_")]
    yield from random.Random(26).sample(found, min(PAIRS, len(found)))


def test_no_mutant_of_a_sample_passes_without_a_reason() -> None:
    score = Score()
    for made in passing(sample()):
        measure(made, 1, score)
    assert score.number > 200
    assert not score.survivors, "\n".join(summary(score))
    assert not score.alarms, score.alarms


@pytest.fixture(name="made", scope="module")
def simulated_pair() -> Golden:
    """A pair with gradients, slots, losses and example ids."""
    way = Way(rule="Adam")
    return Golden("simulated", train(way, 1), train(way, 2))


def test_what_is_changed_in_a_simulated_pair_is_found(made: Golden) -> None:
    score = Score()
    measure(made, 3, score)
    assert not score.survivors, "\n".join(summary(score))
    assert score.within == Counter(["pass"])
    operators = {operator for _kind, operator in score.verdicts}
    assert {"change", "nudge", "drop", "swap replicas", "copy replica", "repeat step", "add step"} <= operators
    assert {"drop example", "repeat example"} <= operators


def test_a_judge_that_compares_nothing_lets_mutants_survive() -> None:
    score = Score()
    measure(Golden("simulated", *pair(Program(), replicas=2), options={"checks": ["MOVES"]}), 1, score)
    assert score.survivors
    assert any("StepRecord.loss | change" in line for line in summary(score))


@dataclass(frozen=True)
class Larger(StepRecord):
    """Record with a field that nothing compares."""

    added: float = 1.0


def test_a_new_field_of_a_record_is_mutated_without_a_change_here() -> None:
    def larger(record: TrainingRecord) -> TrainingRecord:
        def of_rank(rank: RankRecord) -> RankRecord:
            steps = (Larger(**{f.name: getattr(step, f.name) for f in fields(step)}) for step in rank.steps)
            return replace(rank, steps=tuple(steps))

        return replace(record, ranks=tuple(map(of_rank, record.ranks)))

    reference, distributed = pair(Program(), replicas=2)
    score = Score()
    measure(Golden("larger", larger(reference), larger(distributed)), 1, score)
    assert ("Larger.added", "change") in score.survivors


def test_everything_listed_is_a_field_of_a_record() -> None:
    known = {f"{name}.{f.name}" for name, kind in codec.CLASSES.items() for f in fields(kind)}
    for name in (*NOT_QUANTITIES, *(kind for kind, _operator in (*EXPLAINED, *OPEN))):
        assert name.split("[")[0] in known


def test_the_walk_finds_a_variable_and_names_its_kind(made: Golden) -> None:
    found = {place.kind for place in places(made.distributed) if not is_no_quantity(place)}
    assert {"StepRecord.snapshot[trainable]", "StepRecord.snapshot[slot]", "StepRecord.loss"} <= found
    assert not any(kind.startswith("TrainingRecord.seed") for kind in found)


def test_a_value_is_put_and_dropped_in_place() -> None:
    _reference, distributed = pair(Program(), replicas=2, workers=2)
    ranks = Field("TrainingRecord", "ranks")
    path = (ranks, Item(1), Field("RankRecord", "steps"), Item(0), Field("StepRecord", "loss"))
    assert get(put(distributed, path, lambda loss: loss + 1), path) == get(distributed, path) + 1
    assert get(drop(distributed, path), path) is None
    assert [item[1] for item in siblings(distributed, path)] == [Item(0), Item(1)]
    initial = (ranks, Item(0), Field("RankRecord", "initial"), Key(0))
    assert 0 not in get(drop(distributed, initial), initial[:-1])


@pytest.mark.parametrize(
    "value", [True, 3, 2.5, "name", frozenset(), np.arange(3), np.ones(2), np.array(["a"]), np.float32(0.0)]
)
def test_a_changed_value_differs_and_keeps_its_type(value: object) -> None:
    other = changed(value)
    assert type(other) is type(value)
    assert not np.array_equal(np.asarray(other), np.asarray(value))


def test_numbers_move_alike_on_all_replicas_and_not_without_arithmetic(made: Golden) -> None:
    moved = within_bounds(Subject(made.distributed, Tolerance(made.reference)), 0.3)
    assert not np.array_equal(moved.ranks[0].steps[0].snapshot[0][0], made.distributed.ranks[0].steps[0].snapshot[0][0])
    before, after = made.distributed.ranks[0], moved.ranks[0]
    for old, new in zip(before.steps, after.steps, strict=True):
        for index, parts in new.snapshot.items():
            assert all(np.array_equal(part, parts[0]) for part in parts)
            if np.array_equal(old.snapshot[index][0], before.initial[index][0]):
                assert np.array_equal(parts[0], before.initial[index][0])


def test_every_quantity_has_a_name(made: Golden) -> None:
    names = {quantity_of(place.kind) for place in places(made.distributed) if not is_no_quantity(place)}
    assert {"weights", "slots", "gradients", "examples", "losses", "steps"} <= names


def test_a_mutant_is_another_record(made: Golden) -> None:
    subject = Subject(made.distributed, Tolerance(made.reference))
    place = next(p for p in places(made.distributed) if p.kind == "StepRecord.snapshot[slot]")
    assert isinstance(place, Place)
    found = list(mutants(subject, place))
    assert found
    assert all(mutant.make() is not made.distributed for mutant in found)
