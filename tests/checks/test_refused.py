"""A program that only a strategy refuses is told apart from one that fails by itself."""

from __future__ import annotations

from dataclasses import replace

from simulated_training import Program, pair

from pytest_ddl.checks.compare import judge
from pytest_ddl.checks.findings import Finding
from pytest_ddl.records import ErrorRecord

CRASH = ErrorRecord("RuntimeError", "no", "", 1, file="/project/train.py", line=7, function="step", source="raise no")
REFUSED = ErrorRecord(
    "RuntimeError", "Unable to automatically build the model.\nException encountered: 'no call'", "", 0
)
KERAS = 'Traceback (most recent call last):\n  File "/site-packages/keras/trainer.py", line 1, in fit\n    fit()\n'


def _refused(error: ErrorRecord, theirs: ErrorRecord) -> Finding:
    reference, distributed = pair(Program(replicas=2), error=theirs, truncate=0)
    report = judge(replace(reference, refused=error), distributed)
    assert report.verdict == "fail"
    return report.findings[0]


def test_what_only_a_strategy_refuses_is_said_with_what_helps() -> None:
    error = replace(REFUSED, traceback=KERAS)
    finding = _refused(error, error)
    assert (finding.cause, finding.symptom) == ("unsupported-by-framework", "crash")
    assert "trains without a strategy, and raises under every tf.distribute strategy" in finding.message
    assert "OneDeviceStrategy included" in finding.message
    assert "self.built = True" in finding.message
    assert "call()" in finding.message


def test_a_refusal_that_is_not_known_is_the_programs_exception() -> None:
    finding = _refused(CRASH, CRASH)
    assert finding.cause == "worker-raised"
    assert "OneDeviceStrategy included" in finding.message
    assert "RuntimeError: no" in finding.message
    assert "any strategy it raises" in finding.fix
    assert finding.source == "/project/train.py:7, in step: raise no"


def test_two_different_refusals_are_both_named() -> None:
    finding = _refused(replace(CRASH, type="ValueError", message="on one"), CRASH)
    assert "RuntimeError: no" in finding.message
    assert "OneDeviceStrategy raises ValueError: on one" in finding.message


def test_a_program_that_fails_by_itself_is_blamed() -> None:
    reference, distributed = pair(Program(replicas=2), error=REFUSED, truncate=0)
    failing = replace(reference, refused=REFUSED, ranks=tuple(replace(rank, error=CRASH) for rank in reference.ranks))
    report = judge(failing, distributed)
    assert report.verdict == "inconclusive"
    text = str(report)
    assert "the program fails by itself, without a strategy too: RuntimeError: no" in text
    assert "raised in /project/train.py:7, in step: raise no" in text
