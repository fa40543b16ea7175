"""Statistics that are reduced over replicas: a mean of variances or a sum of means is named, and right ones are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_gradients import NAMES, Way, batches, coupled, train

from pytest_ddl.equivalence.diagnosis.candidates.case import Case
from pytest_ddl.equivalence.diagnosis.candidates.reduced import reduced_otherwise
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import GradientStage, ReductionRecord, TrainingRecord

Statistic = Callable[[Any], Any]
MEAN: tuple[str, Statistic] = ("MEAN", lambda y: y.mean(axis=0))
SQUARES: tuple[str, Statistic] = ("MEAN", lambda y: (y * y).mean(axis=0))
SUM: tuple[str, Statistic] = ("SUM", lambda y: y.sum(axis=0))
VARIANCE: tuple[str, Statistic] = ("MEAN", lambda y: y.var(axis=0))
DEVIATION: tuple[str, Statistic] = ("MEAN", lambda y: y.std(axis=0))
SUM_OF_MEANS: tuple[str, Statistic] = ("SUM", MEAN[1])
MEAN_OF_SUMS: tuple[str, Statistic] = ("MEAN", SUM[1])
ONES: tuple[str, Statistic] = ("SUM", lambda y: np.ones(()))
LARGEST: tuple[str, Statistic] = ("MEAN", lambda y: y.max(axis=0))


def _reducing(way: Way, replicas: int, statistics: tuple[tuple[str, Statistic], ...]) -> TrainingRecord:
    """Train, and reduce statistics of the labels in each step."""
    record = train(way, replicas)
    (rank,), steps = record.ranks, []
    for step, parts in zip(rank.steps, batches(way, replicas), strict=True):
        made = []
        for position, (op, statistic) in enumerate(statistics):
            given = [np.asarray(statistic(part.y), np.float64) for part in parts]
            received = np.asarray((np.sum if op == "SUM" else np.mean)(given, axis=0))
            made += [ReductionRecord(r, position, op, "float64", one, received) for r, one in enumerate(given)]
        steps.append(replace(step, reductions=tuple(made)))
    return replace(record, ranks=(replace(rank, steps=tuple(steps)),))


def _evidence(way: Way, *statistics: tuple[str, Statistic]) -> Mapping[str, str]:
    reference, distributed = (_reducing(way, replicas, statistics) for replicas in (1, 2))
    report = judge(reference, distributed)
    assert report.tolerance is not None
    fit = reduced_otherwise(Case.at(Comparison(reference, distributed, report.tolerance), 1))
    return {} if fit is None else {fit.cause: fit.evidence}


@pytest.mark.parametrize(
    ("statistics", "said"),
    [
        ((VARIANCE, MEAN), "(number 1 of the replica function) gives the mean of the replicas' variances"),
        ((MEAN, VARIANCE), "(number 2 of the replica function) gives the mean of the replicas' variances"),
        ((SUM_OF_MEANS, VARIANCE), "(number 2 of the replica function) gives the mean of the replicas' variances"),
        ((MEAN, DEVIATION), "(number 2 of the replica function) gives the mean of the replicas' standard deviations"),
        ((MEAN, SUM_OF_MEANS), "(number 2 of the replica function) gives a sum of means: 2 times"),
        ((MEAN_OF_SUMS,), "(number 1 of the replica function) gives a mean of sums: 1/2"),
    ],
)
def test_a_wrong_statistic_is_named(statistics: tuple[tuple[str, Statistic], ...], said: str) -> None:
    found = _evidence(Way(computed=coupled), *statistics)
    assert list(found) == ["reduced-value-wrong"]
    assert said in found["reduced-value-wrong"]


@pytest.mark.parametrize(
    "statistics",
    [(), (MEAN, SQUARES), (SUM, ONES), (LARGEST, MEAN), (LARGEST, SUM_OF_MEANS), (VARIANCE,)],
    ids=["none", "moments", "count", "largest", "largest-first", "no-means"],
)
def test_what_is_right_or_not_understood_is_not_named(statistics: tuple[tuple[str, Statistic], ...]) -> None:
    assert _evidence(Way(computed=coupled), *statistics) == {}


def test_a_statistic_is_not_named_if_the_gradients_are_right() -> None:
    assert _evidence(Way(), MEAN, VARIANCE) == {}


def test_a_statistic_is_named_by_the_verdict() -> None:
    way = Way(computed=coupled)
    reference, distributed = (_reducing(way, replicas, (MEAN, VARIANCE)) for replicas in (1, 2))
    assert {g.stage for g in reference.ranks[0].steps[0].gradients} >= {GradientStage.COMPUTED}
    report = judge(reference, distributed, checks=["STEP-EQ"])
    assert [(f.cause, f.exact) for f in report.findings] == [("reduced-value-wrong", False)], str(report)
    assert report.findings[0].variable in NAMES
