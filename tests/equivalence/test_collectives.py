"""Workers that wait for each other for ever are stopped within seconds, and the reason is named."""

from __future__ import annotations

import collective_programs as programs
import pytest

from pytest_ddl import check_training

pytestmark = pytest.mark.slow

# Far beyond what any of them takes: whoever waits for the deadline fails by its cause.
GIVEN = {"global_batch_size": 12, "steps": 3, "timeout": 90}


@pytest.mark.nightly(each_commit=("chief_saves",))
@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (programs.chief_evaluates_at_the_end, "rank-conditional-collective"),
        (programs.chief_saves, "rank-conditional-collective"),
        (programs.one_worker_takes_a_step_more, "unequal-steps"),
    ],
)
def test_a_hang_is_named_without_waiting_for_the_deadline(program, cause):
    report = check_training(program, "multi_worker_mirrored", **GIVEN)
    finding = report.findings[0]
    assert (finding.cause, finding.symptom, finding.worker) == (cause, "hang", 0)
    assert "collective_programs.py:" in finding.message
    assert report.distributed.seconds < GIVEN["timeout"] / 2


@pytest.mark.nightly
def test_an_exception_of_one_worker_stays_its_own():
    report = check_training(programs.one_worker_raises, "multi_worker_mirrored", **GIVEN)
    finding = report.findings[0]
    assert (finding.cause, finding.worker) == ("worker-raised", 1)
    assert "my own mistake" in finding.message


@pytest.mark.nightly(each_commit=("multi_worker_mirrored",))
@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
def test_a_count_that_wraps_around_is_found(strategy):
    report = check_training(programs.counts_too_far, strategy, **GIVEN)
    finding = report.findings[0]
    assert (finding.check, finding.cause, finding.step) == ("COLL-VALUE", "reduction-overflow", 1)
    assert "-2147483648" in finding.message


@pytest.mark.nightly
def test_workers_in_step_pass():
    report = check_training(programs.right, "multi_worker_mirrored", **GIVEN)
    assert report.passed, str(report)
    outcomes = {result.check: result.outcome.value for result in report.results}
    assert outcomes["COLL-LOG"] == outcomes["COLL-VALUE"] == outcomes["LIVENESS"] == outcomes["PERF"] == "pass"
