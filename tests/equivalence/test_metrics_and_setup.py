"""METRIC-EQ, LINT, LAYOUT and PS on real clusters, both ways."""

from __future__ import annotations

import pytest
import setup_programs as programs

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "timeout": 100}


def outcomes(report):
    return {result.check: result.outcome.value for result in report.results}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("program", "strategy", "checks"),
    [
        (programs.right, "mirrored", ("METRIC-EQ", "LINT")),
        pytest.param(programs.right, "multi_worker_mirrored", ("METRIC-EQ", "LINT"), marks=pytest.mark.slow),
        pytest.param(programs.right, "parameter_server", ("METRIC-EQ", "LINT"), marks=pytest.mark.slow),
        pytest.param(programs.evaluates_and_predicts, "mirrored", ("METRIC-EQ",), marks=pytest.mark.slow),
        pytest.param(programs.sharded, "model_parallel", ("LAYOUT",), marks=pytest.mark.slow),
    ],
)
def test_right_programs_pass(program, strategy, checks):
    report = check_training(program, strategy, **GIVEN)
    assert report.passed, str(report)
    assert {outcomes(report)[check] for check in checks} == {"pass"}


@pytest.mark.nightly(
    each_commit=("metric_of_scaled_losses-multi_worker_mirrored", "model_outside_the_scope-multi_worker_mirrored")
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "strategy", "check", "cause"),
    [
        (programs.metric_of_scaled_losses, "mirrored", "METRIC-EQ", "metric-wrong"),
        (programs.metric_of_scaled_losses, "multi_worker_mirrored", "METRIC-EQ", "metric-wrong"),
        (programs.model_outside_the_scope, "mirrored", "LINT", "variable-outside-scope"),
        (programs.model_outside_the_scope, "multi_worker_mirrored", "LINT", "variable-outside-scope"),
        (programs.a_strategy_of_its_own, "mirrored", "LINT", "cluster-misconfigured"),
        (programs.a_strategy_of_its_own, "multi_worker_mirrored", "LINT", "cluster-misconfigured"),
        (programs.rule_with_a_typing_error, "model_parallel", "LAYOUT", "layout-wrong"),
        (programs.rule_after_the_variable, "model_parallel", "LAYOUT", "layout-wrong"),
    ],
)
def test_each_sin_is_named_first(program, strategy, check, cause):
    report = check_training(program, strategy, **GIVEN)
    assert report.verdict == "fail"
    assert (report.findings[0].check, report.findings[0].cause) == (check, cause), str(report)


@pytest.mark.slow
def test_numbers_that_a_mesh_draws_by_itself_are_no_mistake_and_hide_none():
    for program in (programs.draws_over_a_mesh, programs.draws_over_a_mesh_and_doubles_the_loss):
        report = check_training(program, "model_parallel", steps=2, **GIVEN)
        assert report.verdict == "inconclusive", str(report)
        assert not report.program_reasons, str(report)
        assert "random numbers" in str(report), str(report)
    report = check_training(programs.draws_over_a_mesh_with_a_typing_error, "model_parallel", steps=2, **GIVEN)
    assert report.verdict == "fail", str(report)
    assert [finding.cause for finding in report.findings] == ["layout-wrong"], str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_right_asynchronous_training_passes():
    report = check_training(programs.concurrent, "parameter_server", steps=40, **GIVEN)
    assert report.passed, str(report)
    assert outcomes(report)["STEP-EQ"] == "not applicable"
    # What Keras counts may lose updates, in an optimizer and in a metric. The program's own count never does.
    assert all(finding.cause == "lost-update" for finding in report.approximations), str(report)
    assert "seen" not in {finding.variable for finding in report.approximations}


@pytest.mark.nightly
@pytest.mark.slow
def test_concurrent_steps_on_data_that_each_worker_reads_pass_if_their_gradients_are_right():
    right = check_training(programs.concurrent_on_data_of_each_worker, "parameter_server", steps=6, **GIVEN)
    assert right.passed, str(right)
    wrong = check_training(
        programs.concurrent_and_too_large_on_data_of_each_worker, "parameter_server", steps=6, **GIVEN
    )
    assert wrong.verdict == "fail", str(wrong)
    assert wrong.findings[0].check == "PS", str(wrong)


@pytest.mark.slow
def test_the_mean_that_fit_shows_of_uneven_replicas_is_an_approximation():
    report = check_training(programs.fits_unevenly, "mirrored", **GIVEN)
    assert report.passed, str(report)
    assert {finding.cause for finding in report.approximations} == {"mean-of-replica-means"}


@pytest.mark.slow
def test_metrics_of_many_steps_stay_when_asked_for():
    report = check_training(programs.right, "mirrored", steps=3, checks=["METRIC-EQ"], **GIVEN)
    assert report.passed, str(report)
    assert "run again for 300 steps" in str(report)
