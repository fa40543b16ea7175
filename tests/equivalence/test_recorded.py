"""Values that only one side recorded, and runs of many steps, on real clusters, both ways."""

from __future__ import annotations

from functools import partial

import pytest
import recorded_programs as programs

from pytest_ddl import check_training

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": 12, "steps": 3, "timeout": 300}
ONE_SIDED = [
    (programs.loss_in_the_first_step_only, "inconclusive", "LOSS-EQ: a loss was recorded on one side only"),
    (programs.value_on_one_device_only, "inconclusive", "METRIC-EQ: recorded on one side only: accuracy"),
    (programs.evaluated_on_one_device_only, "inconclusive", "METRIC-EQ: recorded on one side only: evaluate"),
    (programs.value_not_a_number_on_one_device, "fail", "accuracy in step 1 is not that of one device"),
    (programs.metric_watched_on_one_device_only, "fail", "different variables are watched"),
]


@pytest.mark.nightly(each_commit=("metric_watched_on_one_device_only",))
@pytest.mark.parametrize(("program", "verdict", "told"), ONE_SIDED)
def test_what_one_side_recorded_is_reported(program, verdict, told):
    report = check_training(program, "mirrored", **GIVEN)
    assert report.verdict == verdict, str(report)
    assert told in (report.inconclusive[0] if verdict == "inconclusive" else report.findings[0].message)


@pytest.mark.nightly(each_commit=("loss_in_the_first_step_only", "evaluated_on_one_device_only"))
@pytest.mark.parametrize("program", [program for program, _verdict, _told in ONE_SIDED])
def test_what_both_sides_recorded_passes(program):
    report = check_training(partial(program, sin=False), "mirrored", **GIVEN)
    assert report.passed, str(report)


# Long programs: one strategy or one model runs for each commit.
@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
def test_a_program_that_is_right_in_many_steps_passes(strategy):
    assert check_training(programs.right_in_many_steps, strategy, checks=["METRIC-EQ"], **GIVEN)


@pytest.mark.nightly(each_commit=("ends_late",))
@pytest.mark.parametrize(
    ("program", "strategy", "cause"),
    [
        (programs.ends_late, "mirrored", "unequal-steps"),
        (programs.raises_late, "mirrored", "worker-raised"),
        (programs.raises_late, "multi_worker_mirrored", "worker-raised"),
        (programs.doubles_its_weights_late, "mirrored", None),
    ],
)
def test_what_goes_wrong_late_is_found_where_metrics_are_named(program, strategy, cause):
    report = check_training(program, strategy, checks=["METRIC-EQ"], **GIVEN)
    assert report.findings[0].check == "METRIC-EQ", str(report)
    assert report.findings[0].cause == cause, str(report)
    assert "run again for 300 steps" in report.findings[0].message
