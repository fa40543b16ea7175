"""GRAD-EQ: recorded gradients are compared, also if equal weights hide a difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_gradients import Way, averaged, local_mean, train

from pytest_ddl.equivalence.checks.gradient_equality import check_gradient_equality
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Outcome
from pytest_ddl.equivalence.verdict.judge import judge, needs_noise
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import GradientRecord, GradientStage, TrainingRecord

Change = Callable[[int, GradientRecord], GradientRecord | None]


def pair(way: Way, replicas: int = 2) -> tuple[TrainingRecord, TrainingRecord]:
    return train(way, 1), train(way, replicas)


def with_gradients(record: TrainingRecord, change: Change) -> TrainingRecord:
    """The record with other gradients and the same weights."""

    def of_step(step: Any) -> Any:
        changed = (change(step.index, item) for item in step.gradients)
        return replace(step, gradients=tuple(item for item in changed if item is not None))

    ranks = tuple(replace(rank, steps=tuple(map(of_step, rank.steps))) for rank in record.ranks)
    return replace(record, ranks=ranks)


def scaled(item: GradientRecord, factor: float) -> GradientRecord:
    return replace(item, values={i: None if v is None else factor * v for i, v in item.values.items()})


def judged(reference: TrainingRecord, distributed: TrainingRecord, measured: bool = False) -> CheckResult:
    noisy = [reference] if measured else []
    return check_gradient_equality(Comparison(reference, distributed, Tolerance(reference, noisy)))


@pytest.mark.parametrize(
    "way",
    [Way(), Way(rule="Adam"), Way(rule="hand"), Way(computed=local_mean, reduced=averaged)],
    ids=["sgd", "adam", "hand", "mean"],
)
def test_gradients_that_add_up_pass(way: Way) -> None:
    reference, distributed = pair(way)
    assert judge(reference, distributed).passed
    assert judged(reference, distributed).outcome is Outcome.PASS


def test_a_scale_that_a_limit_hides_is_named() -> None:
    reference, distributed = pair(Way(settings={"clipnorm": 1e-3}))
    hidden = with_gradients(distributed, lambda _step, item: scaled(item, 2.0))
    only_applied = with_gradients(
        hidden, lambda _step, item: item if item.stage is GradientStage.APPLIED else scaled(item, 0.5)
    )
    (finding,) = judged(reference, only_applied).findings
    assert (finding.cause, finding.step) == ("gradient-scaled-by-replica-count", 1)


def test_another_difference_is_a_doubt_once_noise_was_measured() -> None:
    reference, distributed = pair(Way())
    wrong = with_gradients(
        distributed, lambda step, item: scaled(item, 1.1) if (step, item.replica) == (2, 1) else item
    )
    report = judge(reference, wrong)
    assert [(f.check, f.cause, f.step) for f in report.findings] == [("GRAD-EQ", None, 2)]
    assert report.findings[0].a_priori
    assert needs_noise(report)
    assert judged(reference, wrong, measured=True).outcome is Outcome.INCONCLUSIVE


def test_gradients_of_a_step_that_are_missing_are_a_doubt() -> None:
    reference, distributed = pair(Way())
    missing = with_gradients(distributed, lambda step, item: None if step == 2 else item)
    assert judged(reference, missing).outcome is Outcome.INCONCLUSIVE
    of_one_replica = with_gradients(distributed, lambda _step, item: item if item.replica else None)
    assert judged(reference, of_one_replica).outcome is Outcome.INCONCLUSIVE


def test_gradients_that_were_too_large_to_be_recorded_are_no_doubt() -> None:
    reference, distributed = pair(Way())
    missing = with_gradients(distributed, lambda step, item: None if step == 2 else item)
    noted = tuple(replace(rank, notes=(Note(NoteKind.GRADIENTS, "too large"),)) for rank in missing.ranks)
    assert judged(reference, replace(missing, ranks=noted)).outcome is Outcome.PASS


def test_a_variable_without_a_gradient_has_a_gradient_of_zero() -> None:
    reference, distributed = pair(Way())
    zero = with_gradients(reference, lambda _s, i: replace(i, values={**i.values, 99: np.zeros(3)}))
    assert judged(zero, distributed).outcome is Outcome.PASS
    other = with_gradients(reference, lambda _s, i: replace(i, values={**i.values, 99: np.ones(3)}))
    assert judged(other, distributed).outcome is Outcome.FAIL


def test_a_run_without_gradients_is_not_judged() -> None:
    reference, distributed = pair(Way())
    none = with_gradients(distributed, lambda _step, _item: None)
    assert judged(reference, none).outcome is Outcome.NOT_APPLICABLE
