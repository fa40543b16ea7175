"""Runs without a verdict: an expected crash compares nothing, and some reasons lie in the program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_training import Program, pair, simulate

from pytest_ddl.equivalence.findings import Doubt, Finding
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import ErrorRecord, TrainingRecord

CRASH = ErrorRecord("RuntimeError", "no", "", 1, file="/project/train.py", line=7, function="step", source="raise no")


def test_an_expected_crash_compares_nothing_and_is_no_pass() -> None:
    report = judge(*pair(Program(replicas=2), error=CRASH, truncate=1), expect={"worker-raised": "known"})
    assert (report.verdict, report.passed) == ("inconclusive", False)
    assert report.expected_end == "worker-raised: known"
    assert str(report).startswith("mirrored[replicas=2] ended as expected, nothing was compared: worker-raised: known")


def test_an_expected_difference_is_no_end() -> None:
    cause = "gradient-scaled-by-replica-count"
    report = judge(*pair(Program(replicas=2, batches=(12,)), scale=2.0), expect={cause: "known"})
    assert (report.verdict, report.expected_end) == ("pass", None)


def test_an_expected_crash_does_not_hide_another_finding() -> None:
    report = judge(*pair(Program(replicas=2), error=CRASH, truncate=2, scale=2.0), expect={"worker-raised": "known"})
    assert (report.verdict, report.expected_end) == ("fail", None)


def _with_value(record: TrainingRecord, name: str, number: float) -> TrainingRecord:
    steps = [replace(step, values={name: number}) for step in record.ranks[0].steps]
    return replace(record, ranks=(replace(record.ranks[0], steps=tuple(steps)),))


@pytest.mark.parametrize(("number", "causes"), [(2.0, ["worker-raised", "metric-wrong"]), (1.0, ["worker-raised"])])
def test_what_was_recorded_before_a_crash_is_compared(number: float, causes: list[str]) -> None:
    reference, distributed = pair(Program(replicas=2), error=CRASH, truncate=2)
    report = judge(_with_value(reference, "recall", 1.0), _with_value(distributed, "recall", number))
    assert [finding.cause for finding in report.findings] == causes
    assert _with_value(distributed, "recall", number).num_steps < reference.num_steps


def _without_variables(record: TrainingRecord) -> TrainingRecord:
    ranks = tuple(replace(rank, variables=(), initial={}) for rank in record.ranks)
    return replace(
        record,
        ranks=tuple(replace(rank, steps=tuple(replace(step, snapshot={}) for step in rank.steps)) for rank in ranks),
    )


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([simulate(Program(nan_at=1)), simulate(Program(replicas=2, nan_at=1))], "not finite after step 1"),
        (list(pair(Program(replicas=2, truncate=0))), "no training step was recorded"),
        ([_without_variables(record) for record in pair(Program(replicas=2))], "no variable was watched"),
        (
            [_with_value(simulate(Program()), "extra", 1.0), simulate(Program(replicas=2))],
            "recorded on one side only: extra",
        ),
    ],
)
def test_a_reason_in_the_program_is_told_apart(records: list[TrainingRecord], words: str) -> None:
    report = judge(*records)
    assert report.verdict == "inconclusive"
    assert any(words in reason for reason in report.program_reasons), report.program_reasons


def test_arithmetic_is_no_reason_in_the_program() -> None:
    report = judge(*pair(Program(replicas=2, learning_rate=0.0)))
    assert (report.verdict, report.program_reasons) == ("inconclusive", ())
    assert judge(*pair(Program(replicas=2))).program_reasons == ()


def test_a_known_end_of_a_run_does_not_settle_a_doubt() -> None:
    ended = Finding("RUN", "Model.fit fails", "unsupported-by-framework", known="keras-fit-strings")
    report = replace(judge(*pair(Program(replicas=2))), known=(ended,))
    assert report.verdict == "known"
    assert replace(report, doubts=(Doubt("STEP-EQ", "a weight is not watched"),)).verdict == "inconclusive"
