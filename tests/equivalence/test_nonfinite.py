"""NONFINITE on real runs: infinities planted in programs that handle them correctly, and in programs that do not."""

from __future__ import annotations

import nonfinite_programs as programs
import pytest

from pytest_ddl import check_training
from pytest_ddl.equivalence.findings import Outcome

pytestmark = pytest.mark.slow


def compare(program, strategy="mirrored", **given):
    report = check_training(getattr(programs, program), strategy, global_batch_size=12, steps=4, **given)
    (result,) = (result for result in report.results if result.check == "NONFINITE")
    return report, result


@pytest.mark.nightly(each_commit=("right_by_hand-multi_worker_mirrored",))
@pytest.mark.parametrize(
    ("program", "strategy"),
    [
        ("right_by_hand", "mirrored"),
        ("right_by_hand", "multi_worker_mirrored"),
        ("right_without_a_scale", "mirrored"),
        ("right_in_tf_keras", "mirrored"),
        ("right_in_legacy_tf_keras", "mirrored"),
        ("fits_in_tf_keras", "mirrored"),
    ],
)
def test_right_programs_pass_with_infinities_planted(program, strategy):
    report, result = compare(program, strategy)
    assert report.passed, str(report)
    assert result.outcome is Outcome.PASS
    assert "run again with" in result.reason


@pytest.mark.nightly(each_commit=("fits_in_keras",))
@pytest.mark.parametrize(
    "program",
    ["right_in_keras", "fits_in_keras", "fits_in_mixed_precision"],
)
def test_what_keras_decides_is_no_false_alarm(program):
    report, result = compare(program)
    assert not report.findings, str(report)
    assert result.outcome is Outcome.NOT_APPLICABLE


@pytest.mark.nightly
def test_what_keras_decides_is_shown_where_it_is_asked_for():
    report, _result = compare("right_in_keras", checks=["NONFINITE"], timeout=300)
    assert report.findings, str(report)
    assert report.findings[0].cause == "non-finite-not-synchronised"


@pytest.mark.nightly
def test_updating_with_anything_on_one_device_too_is_not_judged():
    report, result = compare("updates_with_anything")
    assert report.passed, str(report)
    assert result.outcome is Outcome.NOT_APPLICABLE
    assert "one device also updates" in result.reason


@pytest.mark.nightly(each_commit=("zeros_before_the_sum",))
@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("each_replica_decides_for_itself", "non-finite-not-synchronised"),
        ("each_replica_scales_for_itself", "loss-scale-not-synchronised"),
        ("forgets_to_scale_in_keras", "gradient-unscaled-without-scale"),
        ("zeros_before_the_sum", "non-finite-not-synchronised"),
        ("zeros_its_own_gradient", "non-finite-not-synchronised"),
        ("forgets_to_scale_in_tf_keras", "gradient-unscaled-without-scale"),
    ],
)
def test_wrong_programs_fail_with_their_cause_first(program, cause):
    report, _result = compare(program)
    assert report.findings[0].check == "NONFINITE"
    assert report.findings[0].cause == cause


def test_workers_that_decide_differently_are_found_before_the_deadline():
    report = check_training(
        programs.overflows_on_one_worker, "multi_worker_mirrored", global_batch_size=12, timeout=300
    )
    found = report.findings[0]
    assert (found.check, found.cause, found.symptom) == ("RUN", "non-finite-not-synchronised", "hang"), str(report)
    assert "the gradients of rank 0 are finite, and those of rank 1 are not finite" in found.message
    assert report.seconds < 200
