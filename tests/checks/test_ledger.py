"""The ledger: every value that the strategy recorded has an entry, and one that nothing explains is a doubt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.checks.registry import CHECKS
from pytest_ddl.equivalence.findings import Outcome, Reason
from pytest_ddl.equivalence.ledger import Quantity
from pytest_ddl.equivalence.outcomes import passed
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import StepRecord, TrainingRecord

PROGRAM = Program(replicas=2, momentum=0.9)


def test_a_correct_run_is_accounted_for() -> None:
    reference, distributed = pair(PROGRAM)
    report = judge(reference, distributed)
    assert report.passed, str(report)
    assert report.ledger.compared == len(report.ledger.entries)
    names = {(variable.name, step) for variable in distributed.variables for step in (1, 2, 3)}
    assert names <= {(entry.name, entry.step) for entry in report.ledger.entries}
    assert f"compared: {report.ledger.compared} of {len(report.ledger.entries)} recorded values" in str(report)


def _changed(record: TrainingRecord, change: Callable[[StepRecord], StepRecord]) -> TrainingRecord:
    """Change the second step on every rank."""
    return replace(
        record,
        ranks=tuple(
            replace(rank, steps=(rank.steps[0], change(rank.steps[1]), *rank.steps[2:])) for rank in record.ranks
        ),
    )


@pytest.mark.parametrize("quantity", [Quantity.WEIGHTS, Quantity.STATE, Quantity.SLOTS, Quantity.COUNTERS])
def test_a_value_that_its_check_does_not_look_at_is_a_doubt(quantity: Quantity) -> None:
    """A check that passes without looking is what a future mistake in a check would be."""
    reference, distributed = pair(PROGRAM)
    entry = next(e for e in judge(reference, distributed).ledger.entries if e.quantity is quantity)
    index = next(variable.index for variable in distributed.variables if variable.name == entry.name)

    def moved(step: StepRecord) -> StepRecord:
        values = tuple(np.asarray(value) + 1 for value in step.snapshot[index])
        return replace(step, snapshot={**step.snapshot, index: values})

    blind = [
        replace(check, function=lambda _comparison, name=check.name: passed(name, "nothing was looked at"))
        if check.name in (quantity.check, "UNEVEN-EQ", "MOVES")
        else check
        for check in CHECKS
    ]
    assert judge(reference, distributed, known=blind).passed
    report = judge(reference, _changed(distributed, moved), known=blind)
    assert report.result(quantity.check).outcome is Outcome.PASS  # type: ignore[union-attr]
    assert report.verdict == "inconclusive", str(report)
    assert any(doubt.check == quantity.check and entry.name in doubt.reason for doubt in report.doubts)


def test_a_loss_that_its_check_does_not_look_at_is_a_doubt() -> None:
    reference, distributed = pair(PROGRAM)
    blind = [
        replace(check, function=lambda _comparison: passed("LOSS-EQ", "nothing")) if check.name == "LOSS-EQ" else check
        for check in CHECKS
    ]
    wrong = _changed(distributed, lambda step: replace(step, loss=(step.loss or 0.0) + 1.0))
    report = judge(reference, wrong, known=blind)
    assert [entry.reason for entry in report.ledger.entries if entry.reason] == [Reason.NOT_EXPLAINED]
    assert report.verdict == "inconclusive"
