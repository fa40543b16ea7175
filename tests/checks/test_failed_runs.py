"""Runs that fail: the crash is a finding with its cause, on the rank that failed first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.hints import FrontEnd
from pytest_ddl.records import ErrorRecord


def _error(kind: str, message: str, last: str = "user.py") -> ErrorRecord:
    trace = f'Traceback\n  File "user.py", line 1, in f\n    model.fit(x)\n  File "{last}", line 1, in f\n    code\n'
    return ErrorRecord(kind, message, f"{trace}{kind}: {message}", step=1)


MERGE = "`merge_call` called while defining a new graph or a tf.function."
ADDN = "Inputs to operation AddN of type AddN must have the same size and shape.  Input 0: [3,4] != input 1: [2,4]"
XLA = "Trying to access resource kernel/replica_1 (defined @ core.py:43) located in device CPU:1 from device CPU:0"
TRAINER = "/venv/site-packages/keras/src/backend/tensorflow/trainer.py"
KERAS = "/venv/site-packages/keras/src/optimizers/base_optimizer.py"


@pytest.mark.parametrize(
    ("error", "cause", "symptom"),
    [
        (_error("ValueError", "boom"), "worker-raised", "crash"),
        (_error("died", "exit code -9"), "worker-died", "crash"),
        (_error("deadline", "60 s"), "deadline-exceeded", "hang"),
        (_error("RuntimeError", MERGE, KERAS), "unsupported-by-framework", "crash"),
        (_error("RuntimeError", MERGE, "user.py"), "worker-raised", "crash"),
        (_error("InvalidArgumentError", ADDN, KERAS), "worker-raised", "crash"),
        (_error("InvalidArgumentError", ADDN, TRAINER), "unsupported-by-framework", "crash"),
        (_error("InvalidArgumentError", XLA, KERAS), "unsupported-by-framework", "crash"),
    ],
)
def test_crash_is_a_finding(error: ErrorRecord, cause: str, symptom: str) -> None:
    report = judge(*pair(Program(replicas=2), error=error, truncate=1))
    assert [finding.cause for finding in report.findings] == [cause]
    assert report.findings[0].symptom == symptom
    assert "step 2" in str(report).splitlines()[0]


def test_the_rank_that_raised_first_is_named_not_its_stranded_peers() -> None:
    reference, distributed = pair(Program(replicas=2, workers=2), truncate=1)
    ranks = (
        replace(distributed.ranks[0], error=_error("tensorflow.UnavailableError", "Collective ops is aborted")),
        replace(distributed.ranks[1], error=_error("ValueError", "boom")),
    )
    (finding,) = judge(reference, replace(distributed, ranks=ranks)).findings
    assert finding.worker == 1
    assert "rank 0" in (finding.details or "")


def test_same_failure_on_one_device_is_inconclusive() -> None:
    error = _error("ValueError", "boom")
    reference, distributed = pair(Program(replicas=2, error=error))
    report = judge(replace(reference), distributed)
    assert report.verdict == "inconclusive"
    assert "on one device too" in str(report)


def test_absent_rank_is_a_finding() -> None:
    reference, distributed = pair(Program(replicas=2, workers=2))
    report = judge(reference, replace(distributed, ranks=distributed.ranks[:1]))
    assert report.findings[0].cause == "rank-did-not-run"


def test_expected_crash_is_no_finding() -> None:
    error = _error("RuntimeError", MERGE, KERAS)
    report = judge(*pair(Program(replicas=2), error=error, truncate=1), expect={"unsupported-by-framework": "Keras 3"})
    assert not report.findings
    assert not report.inconclusive
    assert report.expected[0][1] == "Keras 3"


def test_a_deadline_on_one_device_names_the_timeout() -> None:
    reference, distributed = pair(Program(replicas=2))
    error = ErrorRecord("deadline", "60 s", "stacks", step=0)
    late = replace(reference, ranks=tuple(replace(rank, error=error) for rank in reference.ranks))
    result = judge(late, distributed).rendered(FrontEnd.TEST).result("RUN")
    assert result is not None
    assert result.reason.endswith("set a longer timeout=")
    assert result.details == "stacks"
