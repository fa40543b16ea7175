"""An excused difference excuses what was recomputed from it, and nothing beside or after it."""

from __future__ import annotations

from typing import Any

import excused_programs as programs
import pytest

from pytest_ddl import check_training

GIVEN: dict[str, Any] = {"global_batch_size": 12, "timeout": 400}
TOLERATED, DOUBLED, STATE = "mean-of-replica-means", "gradient-scaled-by-replica-count", "state-not-aggregated"
STATISTICS = {"per-replica-normalization": "wanted"}


@pytest.mark.nightly(each_commit=("averages_features_and_trains_exactly",))
@pytest.mark.slow
@pytest.mark.parametrize("program", [programs.averages_features, programs.averages_features_and_trains_exactly])
def test_a_declared_mean_over_unequal_parts_passes_if_it_is_recomputed(program):
    report = check_training(program, "mirrored", **GIVEN)
    assert report.passed, str(report)
    assert {finding.cause for finding in report.approximations} == {TOLERATED}
    assert all(finding.exact for finding in report.approximations)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_state_that_is_not_that_mean_fails():
    report = check_training(programs.multiplies_the_mean_in_uneven_batches, "mirrored", **GIVEN)
    assert [(finding.variable, finding.step) for finding in report.findings] == [("state", 3)], str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_sum_that_only_its_parts_give_fails():
    report = check_training(programs.adds_up_means_of_uneven_batches, "mirrored", **GIVEN)
    assert [(finding.variable, finding.step, finding.cause) for finding in report.findings] == [("state", 3, STATE)]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "verdict"),
    [(programs.counts_examples, "pass"), (programs.counts_too_many_in_uneven_batches, "inconclusive")],
)
def test_a_state_in_a_tolerated_step_must_follow_from_it(program, verdict):
    report = check_training(program, "mirrored", **GIVEN)
    assert report.verdict == verdict, str(report)
    assert {doubt.check for doubt in report.doubts} == ({"STATE-EQ"} if verdict != "pass" else set())


@pytest.mark.nightly
@pytest.mark.slow
def test_many_uneven_steps_are_all_judged():
    report = check_training(programs.wrong_from_the_25th_uneven_step, "mirrored", global_batch_size=3, timeout=400)
    assert [(finding.cause, finding.step) for finding in report.findings] == [(DOUBLED, 25)], str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_steps_after_a_declared_difference_are_compared_from_equal_weights():
    expect = {DOUBLED: "on purpose"}
    report = check_training(programs.doubled_on_purpose, "mirrored", expect=expect, **GIVEN)
    assert report.passed, str(report)
    report = check_training(programs.doubled_on_purpose_and_again_later, "mirrored", expect=expect, **GIVEN)
    assert not report.passed, str(report)
    assert {finding.step for finding in report.findings} == {3}, str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_steps_after_declared_clipping_are_compared_from_equal_weights():
    """The finding of CLIP is listed, and that of STEP-EQ only follows from it."""
    expect = {"gradient-clipped-before-aggregation": "on purpose"}
    report = check_training(programs.clips_on_each_replica, "mirrored", expect=expect, **GIVEN)
    assert report.passed, str(report)
    assert [finding.step for finding in report.declared if finding.check == "STEP-EQ"] == [1, 2, 3]
    report = check_training(programs.clips_and_penalizes_on_each_replica, "mirrored", expect=expect, **GIVEN)
    assert report.verdict == "fail", str(report)
    assert {finding.step for finding in report.findings} == {2}, str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_declared_clipping_of_means_over_uneven_parts_excuses_both_and_nothing_else():
    expect = {"gradient-clipped-before-aggregation": "on purpose"}
    right = programs.clips_on_each_replica_and_counts_replicas_equally
    report = check_training(right, "mirrored", expect=expect, **GIVEN)
    assert report.passed, str(report)
    assert (TOLERATED,) in [finding.besides for finding in report.declared]
    wrong = programs.clips_on_each_replica_and_doubles_an_uneven_step
    report = check_training(wrong, "mirrored", expect=expect, **GIVEN)
    assert not report.passed, str(report)
    report = check_training(right, "mirrored", expect=expect, strict=True, **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    assert check_training(right, "mirrored", expect={**expect, TOLERATED: "few"}, strict=True, **GIVEN).passed


@pytest.mark.nightly
@pytest.mark.slow
def test_steps_after_declared_means_over_uneven_parts_are_compared_from_equal_weights():
    given = {**GIVEN, "expect": {TOLERATED: "few"}, "strict": True}
    report = check_training(programs.counts_replicas_equally, "mirrored", **given)
    assert report.passed, str(report)
    report = check_training(programs.counts_replicas_equally_and_doubles_a_later_step, "mirrored", **given)
    assert (DOUBLED, 5) in [(finding.cause, finding.step) for finding in report.findings], str(report)


@pytest.mark.nightly(each_commit=("synchronizes_statistics_and_counts_replicas_equally",))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        (programs.normalizes_and_counts_replicas_equally, "known"),
        (programs.synchronizes_statistics_and_counts_replicas_equally, "pass"),
    ],
)
def test_means_over_uneven_parts_are_recomputed_with_batch_normalization(program, verdict):
    """One device takes its statistics from each example once, though it trains on copies."""
    report = check_training(program, "mirrored", **GIVEN)
    assert (report.verdict, report.doubts) == (verdict, ()), str(report)
    assert [(found.cause, found.step, found.exact) for found in report.approximations] == [(TOLERATED, 3, True)]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "step"),
    [
        (programs.normalizes_and_doubles_an_uneven_step, 6),
        (programs.synchronizes_statistics_and_scales_a_bias, 1),
    ],
)
def test_means_over_uneven_parts_excuse_no_other_update_with_batch_normalization(program, step):
    report = check_training(program, "mirrored", **GIVEN)
    assert (report.verdict, {found.step for found in report.findings}) == ("fail", {step}), str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_declared_clipping_does_not_excuse_wrong_gradients_behind_it():
    expect = {"gradient-clipped-before-aggregation": "on purpose"}
    report = check_training(programs.clips_on_each_replica_and_scales_a_bias, "mirrored", expect=expect, **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    assert any("a second defect behind it would not be seen" in reason for reason in report.inconclusive)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        (programs.clips_by_hand_on_each_replica, "pass"),
        (programs.clips_by_hand_on_each_replica_and_doubles_afterwards, "inconclusive"),
    ],
)
def test_declared_clipping_does_not_excuse_another_limit(program, verdict):
    expect = {"gradient-clipped-before-aggregation": "on purpose"}
    report = check_training(program, "mirrored", expect=expect, **GIVEN)
    assert report.verdict == verdict, str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_parts_that_are_clipped_and_cancel_are_recomputed():
    expect = {"gradient-clipped-before-aggregation": "on purpose"}
    report = check_training(programs.clips_each_variable_on_each_replica, "mirrored", expect=expect, **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_declared_rate_excuses_the_momentum_that_follows_from_it():
    expect = {"learning-rate-differs": "the rate grows with the batch"}
    report = check_training(programs.twice_the_rate_with_momentum, "mirrored", expect=expect, **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_declared_cause_does_not_excuse_other_settings_of_the_optimizer():
    """The gradients behind the updates are computed back by the settings of each run."""
    expect = {DOUBLED: "on purpose"}
    report = check_training(programs.doubled_with_momentum, "mirrored", expect=expect, **GIVEN)
    assert report.passed, str(report)
    report = check_training(programs.doubled_with_another_momentum, "mirrored", expect=expect, **GIVEN)
    assert report.verdict == "inconclusive", str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_cause_that_is_declared_for_one_thing_does_not_excuse_another():
    program = programs.normalizes_and_counts_the_first_replica
    report = check_training(program, "mirrored", expect={**STATISTICS, STATE: "of the layer"}, **GIVEN)
    assert [(finding.cause, finding.variable) for finding in report.findings] == [(STATE, "state")], str(report)
    both = {**STATISTICS, f"{STATE}[*normalization*]": "of the layer", f"{STATE}[state]": "of the program"}
    report = check_training(program, "mirrored", expect=both, **GIVEN)
    assert report.passed, str(report)
    assert not report.unused_expectations
