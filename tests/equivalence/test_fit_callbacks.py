"""``fit`` with callbacks and validation: correct programs pass, and what a callback does wrong is found."""

from __future__ import annotations

import fit_programs as programs
import pytest

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "timeout": 150}


@pytest.mark.nightly(each_commit=("scheduled_lazily", "stopped_early_in_tf_keras"))
@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        programs.scheduled,
        programs.stopped_early,
        programs.split,
        programs.scheduled_lazily,
        programs.scheduled_in_tf_keras,
        programs.stopped_early_in_tf_keras,
        programs.split_in_tf_keras,
    ],
)
def test_right_programs_pass(program):
    report = check_training(program, "mirrored", **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_callback_that_sets_another_rate_is_named():
    report = check_training(programs.rate_of_replicas, "mirrored", **GIVEN)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == "learning-rate-differs", str(report)


# Within an epoch, fit shows the mean or the sum of what the replicas' metrics show, which is no recall.
@pytest.mark.nightly(each_commit=("mirrored",))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "right", "wrong"),
    [
        ("mirrored", programs.shown_without_a_loss, programs.shown_divided_without_a_loss),
        (
            "multi_worker_mirrored",
            programs.shown_without_a_loss_in_tf_keras,
            programs.shown_divided_without_a_loss_in_tf_keras,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_metrics_of_a_train_step_without_a_loss_are_those_at_the_end_of_the_epoch(strategy, right, wrong):
    report = check_training(right, strategy, **GIVEN)
    assert report.passed, str(report)
    report = check_training(wrong, strategy, **GIVEN)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == "metric-wrong", str(report)
    assert "errors" in (report.findings[0].variable or ""), str(report)
