"""Steps and results after a tolerated uneven batch: compared from equal weights, so that no bug hides there."""

from __future__ import annotations

from functools import partial

import pytest
import uneven_programs as programs

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "timeout": 400}
TOLERATED = "mean-of-replica-means"


# Each is a comparison with several probes.
@pytest.mark.nightly(each_commit=("averaged_by_the_program", "program3"))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "strategy"),
    [
        (programs.evaluated, "mirrored"),
        (programs.averaged_by_a_callback, "mirrored"),
        (programs.averaged_by_the_program, "mirrored"),
        (partial(programs.averaged_by_the_program, optimizer="SGD"), "mirrored"),
        (programs.loop, "multi_worker_mirrored"),
        (partial(programs.fitted_with, optimizer="RMSprop"), "mirrored"),
        (partial(programs.fitted_with, optimizer="Lion"), "mirrored"),
    ],
)
def test_right_programs_pass(program, strategy):
    report = check_training(program, strategy, **GIVEN)
    assert report.passed, str(report)
    assert {finding.cause for finding in report.approximations} == {TOLERATED}
    assert any("compared from equal weights" in note for note in report.notes), str(report)
    assert not any("weights are not compared" in note for note in report.notes), str(report)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "check", "step"),
    [
        (programs.evaluates_wrongly, "METRIC-EQ", 6),
        (programs.records_a_wrong_value, "METRIC-EQ", 7),
        (programs.adds_its_penalty_per_replica_later, "STEP-EQ", 5),
    ],
)
def test_a_bug_after_the_uneven_step_is_found(program, check, step):
    report = check_training(program, "mirrored", **GIVEN)
    assert report.verdict == "fail", str(report)
    assert [finding.step for finding in report.findings if finding.check == check] == [step], str(report)
    assert {finding.cause for finding in report.approximations} == {TOLERATED}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_wrong_value_of_what_the_program_keeps_is_no_pass():
    """The value is neither that of one device nor that of equal parts, and the program may have kept it."""
    report = check_training(programs.averages_wrongly, "mirrored", **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    (reason,) = report.inconclusive
    assert reason.startswith("METRIC-EQ: not compared: test_error"), reason


# Long programs: one strategy or one model runs for each commit.
@pytest.mark.nightly
@pytest.mark.slow
def test_a_bug_in_a_later_uneven_step_alone_is_found():
    report = check_training(programs.adds_its_penalty_in_the_second_uneven_step, "mirrored", **GIVEN)
    assert report.verdict == "fail", str(report)
    assert {finding.step for finding in report.findings} == {6}, str(report)
