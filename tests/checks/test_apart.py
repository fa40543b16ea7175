"""Replicas that depend on the draws of several replicas, in simulated records."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_gradients import Batch, Gradient, Way, global_mean, scaled, train

from pytest_ddl.equivalence.findings import Doubt
from pytest_ddl.equivalence.probes import apart
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import DrawRecord, ErrorRecord, GradientStage, GradientSum, StepRecord, TrainingRecord
from pytest_ddl.training import neutral
from pytest_ddl.training.settings import RunSettings

STILL = Way(rate=lambda _step: 0.0)


def _drawing(record: TrainingRecord, **changes: Any) -> TrainingRecord:
    """Return the record of a program whose replicas draw one number each."""

    def drawn(step: StepRecord, replicas: Collection[int]) -> StepRecord:
        made = [DrawRecord(r, 0, "random_uniform", "drawn", 10 * step.index + r, 1, (), "float32", 1) for r in replicas]
        return replace(step, draws=tuple(replace(draw, **changes) for draw in made))

    ranks = (
        replace(rank, draws_observed=True, steps=tuple(drawn(step, rank.replicas) for step in rank.steps))
        for rank in record.ranks
    )
    return replace(record, ranks=tuple(ranks))


def _report(replicas: int = 2, **changes: Any) -> Report:
    return judge(*(_drawing(train(Way(), number), **changes) for number in (1, replicas)))


def _probed(
    equal: TrainingRecord,
    mixed: TrainingRecord,
    other: TrainingRecord | None = None,
    swapped: TrainingRecord | None = None,
) -> Report:
    report = _report(equal.num_replicas)
    assert apart.wanted(report, ())
    runs = []

    def compare_once(settings: RunSettings, _checks: Collection[str] | None, runs_left: int = 1) -> Report:
        runs.append(settings.neutralize)
        assert settings.still
        assert settings.places is not None
        chosen = {neutral.APART: mixed, neutral.OTHER: other or equal, neutral.SWAPPED: swapped}
        return judge(train(STILL, 1), chosen.get(settings.neutralize[-1]) or equal)

    probed = apart.probe(report, RunSettings(), compare_once)
    more = [neutral.SWAPPED] if swapped else []
    assert [given[-1] for given in runs] == [neutral.ALONE, neutral.OTHER, neutral.APART, *more]
    assert not any(neutral.NORMALIZATION in given for given in runs)
    return probed


def _by(way: Way, factors: tuple[float, ...]) -> Way:
    """The gradient of each replica is scaled by its number."""
    numbers = iter(factors * 100)

    def computed(weights: Gradient, batch: Batch) -> Gradient:
        return scaled(global_mean(weights, batch), next(numbers))

    return replace(way, computed=computed)


def _taken(record: TrainingRecord, factors: tuple[float, ...]) -> TrainingRecord:
    """The program adds up the gradients itself, each with a factor."""

    def own(step: StepRecord) -> StepRecord:
        parts = [item for item in step.gradients if item.stage is GradientStage.COMPUTED]
        total = {
            index: sum(f * np.asarray(part.values[index]) for f, part in zip(factors, parts, strict=True))
            for index in parts[0].values
        }
        given = [replace(item, stage=GradientStage.APPLIED, values=total, summed=GradientSum.TAKEN) for item in parts]
        return replace(step, gradients=(*parts, *given))

    ranks = (replace(rank, steps=tuple(map(own, rank.steps))) for rank in record.ranks)
    return replace(record, ranks=tuple(ranks))


@pytest.mark.parametrize(
    ("mixed", "passes"),
    [
        ((0.7, 0.2, 0.2), True),
        ((0.7, 0.7, 0.7), True),  # all replicas take the number of the first
        ((0.2, 0.2, 0.2), True),
        ((0.45, 0.2, 0.2), False),
        ((0.7, 0.2, 0.45), False),
        ((0.45, 0.45, 0.45), False),
    ],
)
def test_each_replica_depends_on_the_numbers_of_one_replica(mixed: tuple[float, ...], passes: bool) -> None:
    equal, other = (train(_by(STILL, (number,)), 3) for number in (0.7, 0.2))
    report = _probed(equal, train(_by(STILL, mixed), 3), other)
    assert report.passed is passes, str(report)
    assert [doubt.check for doubt in report.doubts] == [apart.CHECK] * (not passes)


@pytest.mark.parametrize(
    ("equal", "different", "passes"),
    [
        ((0.5, 0.5), (0.5, 0.5), True),
        ((0.5, 0.5), (0.4, 0.4), True),  # a limit of the norm
        ((0.5, 0.5), (1.0, 1.0), False),
        ((0.5, 0.5), (1.0, 0.0), False),
    ],
)
def test_gradients_that_the_program_adds_up_are_one_multiple_of_their_sum(
    equal: tuple[float, ...], different: tuple[float, ...], passes: bool
) -> None:
    first = _taken(train(STILL, 2), equal)
    # The second replica computes more in the second run, by its own number.
    second = _taken(train(_by(STILL, (1.0, 2.0)), 2), different)
    assert _probed(first, second, train(_by(STILL, (2.0,)), 2)).passed is passes


def test_steps_that_begin_with_other_weights_are_not_compared() -> None:
    moving = _by(Way(), (0.7, 0.2))
    equal, other = (train(_by(Way(), (number,)), 2) for number in (0.7, 0.2))
    assert _probed(equal, train(moving, 2), other).passed


def _reporting(loss: float, values: float) -> TrainingRecord:
    """Return the record of a program that reports numbers in the second step."""
    record = train(STILL, 2)
    ranks = tuple(
        replace(
            rank,
            steps=tuple(
                replace(step, loss=loss, values={"score": values}) if step.index == 2 else step for step in rank.steps
            ),
        )
        for rank in record.ranks
    )
    return replace(record, ranks=ranks)


@pytest.mark.parametrize(
    ("first", "others", "passes"),
    [
        ((0.3, 0.3), (0.3, 0.3), True),
        ((0.25, 0.2), (0.35, 0.4), True),
        ((0.25, 0.2), (0.35, 0.5), False),
        ((0.30, 0.2), (0.35, 0.4), False),
        ((0.25, 0.2), (0.35, float("nan")), False),
    ],
)
def test_a_reported_number_is_a_sum_over_the_replicas(
    first: tuple[float, float], others: tuple[float, float], passes: bool
) -> None:
    equal, other = _reporting(0.2, 0.1), _reporting(0.4, 0.5)
    report = _probed(equal, _reporting(*first), other, _reporting(*others))
    assert report.passed is passes, str(report)
    assert [doubt.check for doubt in report.doubts] == [apart.CHECK] * (not passes)


def test_runs_that_decide_nothing_are_a_doubt() -> None:
    good = train(STILL, 2)
    error = ErrorRecord("ValueError", "no", "", 1)
    failed = replace(good, ranks=tuple(replace(rank, error=error) for rank in good.ranks))
    note = Note(NoteKind.NOT_REPLACED, "binomial")
    refused = replace(good, ranks=tuple(replace(rank, notes=(note,)) for rank in good.ranks))
    unseen = train(replace(STILL, record=False), 2)
    for equal, different in ((good, failed), (refused, refused), (unseen, unseen)):
        assert _probed(equal, different).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, True),
        ({"digest": 1}, True),  # workers follow the global seed that the run has set
        ({"digest": 1, "seeded": True}, False),
        ({"digest": 1, "op": "stateless_random_uniform_v2"}, False),
        ({"op": "stateless_random_uniform_v2"}, True),
    ],
    ids=str,
)
def test_only_numbers_that_may_differ_between_replicas_need_the_runs(changes: dict[str, Any], wanted: bool) -> None:
    assert apart.wanted(_report(**changes), ()) is wanted


def test_a_program_that_fails_or_is_undecided_needs_no_further_runs() -> None:
    report = _report()
    assert not apart.wanted(replace(report, doubts=(Doubt("SEED", "why"),)), ())
    assert not apart.wanted(_report(1), ())
