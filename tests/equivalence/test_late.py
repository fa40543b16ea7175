"""Training after a program's last recorded step is compared at the end, or leaves a doubt, both ways."""

from __future__ import annotations

from functools import partial

import late_programs as programs
import pytest

from pytest_ddl import check_training

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": 12, "timeout": 300}
WATCHED = [
    ("mirrored", programs.made_and_watched_late),
    ("mirrored", programs.made_early_and_watched_late),
    ("mirrored", programs.watched_early_and_built_late),
    ("mirrored", programs.watched_when_it_is_trained),
    ("mirrored", programs.fitted_by_keras),
    ("multi_worker_mirrored", programs.made_and_watched_late),
    ("multi_worker_mirrored", programs.watched_early_and_built_late),
]


@pytest.mark.nightly(each_commit=("mirrored-made_and_watched_late",))
@pytest.mark.parametrize(("strategy", "program"), WATCHED)
def test_wrong_training_of_what_is_watched_is_found(strategy, program):
    report = check_training(partial(program, sin=True), strategy, **GIVEN)
    assert {finding.cause for finding in report.findings} == {"changed-after-last-step"}, str(report)
    assert all("first watched after step 4" in finding.message for finding in report.findings)
    assert "STEP-EQ" in {finding.check for finding in report.findings}


@pytest.mark.nightly(each_commit=("mirrored-made_and_watched_late",))
@pytest.mark.parametrize(("strategy", "program"), WATCHED)
def test_right_training_of_what_is_watched_passes(strategy, program):
    report = check_training(partial(program, sin=False), strategy, **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly(each_commit=("fitted_in_a_callback",))
@pytest.mark.parametrize("program", [programs.fitted_by_keras_and_not_watched, programs.fitted_in_a_callback])
def test_training_of_what_is_not_watched_is_a_doubt(program):
    report = check_training(program, "mirrored", **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    assert all("kernel" in doubt.reason for doubt in report.doubts)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "program"),
    [
        ("mirrored", programs.used_after_training),
        ("mirrored", programs.evaluated_late),
        ("central_storage", programs.evaluated_late),
    ],
)
def test_what_is_evaluated_and_restored_after_training_passes(strategy, program):
    """Under central storage, metrics of Keras are known to be wrong."""
    report = check_training(program, strategy, **GIVEN)
    assert report.verdict in ("pass", "known"), str(report)


@pytest.mark.nightly
@pytest.mark.parametrize("sin", [True, False])
def test_a_metric_that_is_watched_after_the_last_step_is_compared(sin):
    report = check_training(partial(programs.counted_late, sin=sin), "mirrored", **GIVEN)
    assert [finding.cause for finding in report.findings] == ["metric-wrong"] * sin, str(report)
    assert report.passed is not sin


@pytest.mark.nightly
def test_what_is_trained_after_concurrent_steps_is_a_doubt():
    """Updates are counted in recorded steps only."""
    report = check_training(programs.trained_after_concurrent_steps, "parameter_server", **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    assert any("trained but not watched" in doubt.reason for doubt in report.doubts), str(report)
