"""A wrong scale of the gradient is found although the update hides it, and a right program is not reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_gradients import (
    Gradient,
    Way,
    added,
    clipped_globally,
    global_mean,
    local_mean,
    scaled,
    train,
)

from pytest_ddl.equivalence.checks.step_equality import check_step_equality
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Outcome
from pytest_ddl.records import GradientSum, ReductionRecord, TrainingRecord

LARGE, SMALL = "gradient-scaled-by-replica-count", "gradient-scaled-by-inverse-replica-count"
Update = Callable[[Gradient], Gradient]


def signs(gradient: Gradient) -> Gradient:
    return {name: np.sign(value) for name, value in gradient.items()}


def normalized(gradient: Gradient) -> Gradient:
    return {name: value / np.linalg.norm(value) for name, value in gradient.items()}


def always_clipped(gradient: Gradient) -> Gradient:
    return clipped_globally(1e-3, gradient)


def plain(gradient: Gradient) -> Gradient:
    return gradient


def run(way: Way, update: Update, replicas: int, summed: GradientSum = GradientSum.ADDED) -> TrainingRecord:
    """Train with an optimizer that is not watched, and that adds up the gradients or takes the one of each replica."""

    def reduced(parts: Sequence[Gradient]) -> list[Gradient]:
        if summed is GradientSum.TAKEN:
            return [update(part) for part in parts]
        return [update(added(parts))] * len(parts)

    record = train(replace(way, reduced=reduced), replicas)
    ranks = []
    for rank in record.ranks:
        steps = tuple(
            replace(step, gradients=tuple(replace(item, summed=summed) for item in step.gradients))
            for step in rank.steps
        )
        ranks.append(replace(rank, optimizers=(), steps=steps))
    return replace(record, ranks=tuple(ranks))


def judged(reference: TrainingRecord, distributed: TrainingRecord) -> CheckResult:
    return check_step_equality(Comparison(reference, distributed, Tolerance(reference)))


@pytest.mark.parametrize("update", [signs, normalized, always_clipped])
@pytest.mark.parametrize("replicas", [2, 4])
def test_a_scale_that_the_update_hides(update: Update, replicas: int) -> None:
    reference = run(Way(), update, 1)
    result = judged(reference, run(Way(computed=local_mean), update, replicas))
    assert [finding.cause for finding in result.findings] == [LARGE]
    divided = Way(computed=lambda weights, batch: scaled(global_mean(weights, batch), 1 / replicas))
    assert [finding.cause for finding in judged(reference, run(divided, update, replicas)).findings] == [SMALL]


@pytest.mark.parametrize("update", [signs, normalized, always_clipped, plain])
@pytest.mark.parametrize("summed", GradientSum)
def test_a_right_gradient(update: Update, summed: GradientSum) -> None:
    taken = summed is GradientSum.TAKEN

    def handed(parts: Any, _step: int) -> Any:
        return [added(parts)] * len(parts) if taken else parts

    assert (
        judged(run(Way(handed=handed), update, 1, summed), run(Way(handed=handed), update, 2, summed)).outcome
        is Outcome.PASS
    )


@pytest.mark.parametrize(("share", "outcome"), [(1e-9, Outcome.PASS), (0.3, Outcome.INCONCLUSIVE)])
def test_less_than_one_example_is_no_doubt(share: float, outcome: Outcome) -> None:
    def handed(parts: Any, _step: int) -> Any:
        return [scaled(part, 1 + share) for part in parts]

    assert judged(run(Way(), signs, 1), run(Way(handed=handed), signs, 2)).outcome is outcome


def test_gradients_that_the_program_averages_itself() -> None:
    def averaged(parts: Any, _step: int) -> Any:
        return [added(parts, 1 / len(parts))] * len(parts)

    way = Way(computed=local_mean, handed=averaged)
    assert judged(run(way, signs, 1), run(way, signs, 2, GradientSum.TAKEN)).outcome is Outcome.PASS
    assert judged(run(way, signs, 1), run(way, signs, 2, GradientSum.UNKNOWN)).outcome is Outcome.PASS
    found = judged(run(way, signs, 1), run(way, signs, 2, GradientSum.ADDED)).findings
    assert [finding.cause for finding in found] == [LARGE]  # averaged, and then added up again


def test_a_scale_that_the_weights_prove() -> None:
    """The learning rate makes up for a gradient that is twice too large."""
    reference = run(Way(), plain, 1)
    made_up = run(Way(computed=local_mean, rate=lambda _step: 0.05), plain, 2)
    assert judged(reference, made_up).outcome is Outcome.PASS
    assert judged(train(Way(), 1), train(Way(), 2)).outcome is Outcome.PASS


def by_hand(way: Way, replicas: int, op: str | None) -> TrainingRecord:
    """Descend along the sign without an optimizer, after a reduction of the program's own."""

    def reduced(parts: Sequence[Gradient]) -> list[Gradient]:
        return [signs(added(parts))] * len(parts)

    record = train(replace(way, rule="hand", reduced=reduced), replicas)
    (rank,) = record.ranks
    steps = []
    for step in rank.steps:
        made = []
        for index in step.gradients[0].values:
            parts = [np.asarray(item.values[index]) for item in step.gradients]
            received = np.sum(parts, axis=0) / (len(parts) if op == "MEAN" else 1)
            made += [ReductionRecord(at, index, op or "", "float64", part, received) for at, part in enumerate(parts)]
        steps.append(replace(step, reductions=tuple(made) if op else ()))
    return replace(record, ranks=(replace(rank, steps=tuple(steps)),))


@pytest.mark.parametrize(
    ("computed", "op", "outcome"),
    [
        (global_mean, "SUM", Outcome.PASS),
        (global_mean, None, Outcome.PASS),
        (local_mean, "MEAN", Outcome.PASS),
        (local_mean, "SUM", Outcome.INCONCLUSIVE),
        (local_mean, None, Outcome.INCONCLUSIVE),
    ],
)
def test_updates_by_hand(computed: Any, op: str | None, outcome: Outcome) -> None:
    reference, distributed = (by_hand(Way(computed=computed), replicas, op) for replicas in (1, 2))
    assert judged(reference, distributed).outcome is outcome


@pytest.mark.parametrize("limit", [normalized, always_clipped, signs])
@pytest.mark.parametrize("computed", [global_mean, local_mean])
def test_a_limit_of_the_program_hides_the_scale_too(limit: Update, computed: Any) -> None:
    def handed(parts: Any, _step: int) -> Any:
        return [limit(added(parts))] * len(parts)

    way = Way(computed=computed, handed=handed)
    found = judged(run(way, plain, 1), run(way, plain, 2, GradientSum.TAKEN))
    assert found.outcome is (Outcome.PASS if computed is global_mean else Outcome.INCONCLUSIVE)
