"""A program that only a strategy refuses is distinguished from one that fails by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.verdict.judge import judge
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


IN_CALL = """Traceback (most recent call last):
  File "/project/train.py", line 3, in train
    model.fit(data)
  File "/site-packages/keras/src/utils/traceback_utils.py", line 122, in error_handler
    raise e.with_traceback(filtered_tb) from None
  File "/project/model.py", line 9, in call
    return self.decoder(latent)
RuntimeError: no
"""


def test_a_call_that_keras_makes_symbolically_is_known_by_where_it_is() -> None:
    error = replace(CRASH, step=0, traceback=IN_CALL)
    finding = _refused(error, error)
    assert (finding.cause, finding.exact) == ("unsupported-by-framework", False)
    assert "symbolic batch" in finding.message


@pytest.mark.parametrize("trace", [IN_CALL.replace("in call", "in train_step"), IN_CALL.replace("fit", "own")])
def test_another_call_of_the_model_is_not_keras_doing(trace: str) -> None:
    error = replace(CRASH, step=0, traceback=trace)
    assert _refused(error, error).cause == "worker-raised"
