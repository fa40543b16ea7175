"""Random streams, statistics and state on real clusters: what is understood passes, and hides nothing else."""

from __future__ import annotations

import pytest
import understood_programs as programs

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "steps": 3, "timeout": 100}
REPEATED = "random-stream-repeated-across-replicas"
DIFFERS = "random-stream-differs-across-replicas"
PLAIN = "per-replica-normalization"


# Random numbers: each way of drawing them has one defect and one right program in each commit.
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "program", "tolerated"),
    [
        ("mirrored", programs.noise_of_each_replica, [DIFFERS]),
        ("multi_worker_mirrored", programs.noise_of_each_replica, [DIFFERS]),
        ("mirrored", programs.tf_keras_dropout, [DIFFERS]),
        ("parameter_server", programs.tf_keras_dropout, [DIFFERS]),
        ("mirrored", programs.tf_keras_batch_normalization, [PLAIN]),
        ("mirrored", programs.synchronized_batch_normalization, []),
        ("mirrored", programs.random_features, []),
        ("mirrored", programs.mean_activation_aggregated, []),
    ],
)
def test_right_programs_pass(strategy, program, tolerated):
    report = check_training(program, strategy, **GIVEN)
    assert report.passed, str(report)
    assert [finding.cause for finding in report.approximations] == tolerated
    for finding in report.approximations:
        assert "they are equal then" in finding.evidence


@pytest.mark.nightly(each_commit=("an_optimizer_watched_on_one_device_alone",))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (programs.noise_by_step_alone, REPEATED),
        (programs.noise_by_replica_alone, "random-stream-repeated-across-steps"),
        (programs.keras_batch_normalization, "state-not-aggregated"),
        (programs.noise_of_each_replica_and_a_mean_per_replica, "gradient-scaled-by-replica-count"),
        (programs.tf_keras_dropout_and_a_mean_per_replica, "gradient-scaled-by-replica-count"),
        (programs.tf_keras_batch_normalization_and_a_mean_per_replica, "gradient-scaled-by-replica-count"),
        (programs.mean_activation_of_each_replica, "state-not-aggregated"),
        (programs.mean_activation_of_the_first_replica, "state-not-aggregated"),
        (programs.steps_counted_once_per_replica, "iteration-count-wrong"),
        (programs.an_optimizer_watched_on_one_device_alone, "optimizer-state-mismatch"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_defects_are_named_first(program, cause):
    report = check_training(program, "mirrored", **GIVEN)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == cause, str(report)


@pytest.mark.slow
def test_a_tolerated_difference_can_be_declared_and_fails_in_strict_mode():
    declared = check_training(programs.noise_of_each_replica, "mirrored", expect={DIFFERS: "noise"}, **GIVEN)
    assert declared.passed
    assert [reason for _finding, reason in declared.expected] == ["noise"]
    assert not declared.unused_expectations
    strict = check_training(programs.noise_of_each_replica, "mirrored", strict=True, **GIVEN)
    assert [finding.cause for finding in strict.findings] == [DIFFERS]


@pytest.mark.nightly
@pytest.mark.slow
def test_what_is_declared_hides_no_defect_besides_it():
    expect = {PLAIN: "per-replica statistics are what we want"}
    wrong = programs.tf_keras_batch_normalization_and_a_mean_per_replica
    report = check_training(wrong, "mirrored", expect=expect, **GIVEN)
    assert report.findings[0].cause == "gradient-scaled-by-replica-count", str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_numbers_of_a_few_steps_reach_both_branches():
    report = check_training(programs.a_mean_per_replica_in_every_other_step, "mirrored", **GIVEN)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == "gradient-scaled-by-replica-count", str(report)
    assert "with the same random numbers for the same examples" in report.findings[0].message


@pytest.mark.nightly
@pytest.mark.slow
def test_the_numbers_of_a_few_steps_reach_every_way():
    report = check_training(programs.a_mean_per_replica_in_one_of_three_ways, "mirrored", **GIVEN)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == "gradient-scaled-by-replica-count", str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_draw_in_a_vectorized_map_is_replaced():
    report = check_training(programs.augmented_in_a_vectorized_map, "mirrored", **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_few_examples_that_are_chosen_at_random_are_compared():
    report = check_training(programs.few_examples_chosen_at_random, "mirrored", **GIVEN)
    assert report.passed, str(report)
    assert [finding.cause for finding in report.approximations] == [DIFFERS]
