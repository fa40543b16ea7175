"""Known behavior of Keras is recognized on real clusters, and hides neither a second defect nor the program's own."""

from __future__ import annotations

from functools import partial

import keras
import known_programs as programs
import pytest
import understood_programs as loops

from pytest_ddl import check_training
from pytest_ddl.terminal import cause_in_one_line

pytestmark = pytest.mark.slow
GIVEN = {"global_batch_size": 8, "timeout": 400}
DROPOUT = "keras-seed-generator"
REPEATED, SCALED = "random-stream-repeated-across-replicas", "gradient-scaled-by-replica-count"


# A known behavior of Keras and a mistake beside it: dropout and shared metrics run for each commit.
@pytest.mark.nightly(
    each_commit=("mirrored-positions", "mirrored-strings", "mirrored-one_example", "multi_worker_mirrored")
)
@pytest.mark.parametrize(
    ("strategy", "program", "known"),
    [
        ("mirrored", programs.dropout, DROPOUT),
        ("mirrored", programs.noise, DROPOUT),
        ("mirrored", loops.keras_dropout, DROPOUT),
        ("mirrored", programs.positions, "keras-squares-of-parts"),
        ("mirrored", programs.normalized, "keras-batch-normalization"),
        ("mirrored", programs.normalized_and_weighted_by_class, "keras-batch-normalization"),
        ("mirrored", programs.normalized_while_the_rate_is_zero, "keras-batch-normalization"),
        ("mirrored", programs.tuned_after_a_frozen_fit, "keras-batch-normalization"),
        ("central_storage", programs.shared_metrics, "keras-metrics-central-storage"),
        ("central_storage", programs.shared_metrics_of_two_outputs, "keras-metrics-central-storage"),
        ("central_storage", programs.shared_counts_of_positives, "keras-metrics-central-storage"),
        ("central_storage", programs.evaluated_with_shared_metrics, "keras-metrics-central-storage"),
        ("central_storage", programs.shared_state_of_a_metric_of_the_program, "keras-metrics-central-storage"),
        ("mirrored", programs.averages_that_overwrite, "keras-average-overwrites"),
        ("mirrored", programs.accumulated_by_the_optimizer, "keras-accumulation-steps"),
        ("mirrored", programs.strings, "keras-fit-strings"),
        ("mirrored", programs.one_example, "keras-fit-unequal-parts"),
        ("multi_worker_mirrored", programs.dropout, "keras-fit-multi-worker"),
        ("parameter_server", programs.dropout, "keras-fit-parameter-server"),
    ],
)
def test_what_keras_does_by_itself_is_recognized(strategy, program, known):
    report = check_training(program, strategy, **GIVEN)
    assert report.verdict == "known", str(report)
    assert not report.passed
    assert [behavior.id for behavior in report.known_behaviors] == [known]


@pytest.mark.nightly(each_commit=("AdamW",))
@pytest.mark.parametrize(
    ("optimizer", "options", "verdict"),
    [
        pytest.param(keras.optimizers.AdamW, {}, "known", id="AdamW"),
        pytest.param(keras.optimizers.AdamW, {"exclude": "embeddings", "weight_decay": 0.1}, "known", id="excluded"),
        pytest.param(keras.optimizers.Adam, {"weight_decay": 0.1, "amsgrad": True}, "known", id="largest"),
        pytest.param(keras.optimizers.Nadam, {"weight_decay": 0.1}, "known", id="Nadam"),
        # Later steps show no gradient that could be compared.
        pytest.param(keras.optimizers.Lamb, {}, "inconclusive", id="Lamb"),
        pytest.param(keras.optimizers.RMSprop, {"weight_decay": 0.1}, "inconclusive", id="RMSprop"),
        pytest.param(keras.optimizers.Adagrad, {"weight_decay": 0.1}, "inconclusive", id="Adagrad"),
    ],
)
def test_squares_of_parts_are_recognized_with_decay_and_other_optimizers(optimizer, options, verdict):
    report = check_training(partial(programs.positions, optimizer=optimizer, **options), "mirrored", **GIVEN)
    assert report.verdict == verdict, str(report)
    assert [behavior.id for behavior in report.known_behaviors] == ["keras-squares-of-parts"]


@pytest.mark.nightly
def test_a_decay_that_one_device_does_not_have_is_no_known_behavior():
    report = check_training(programs.positions_that_decay_under_a_strategy_only, "mirrored", **GIVEN)
    assert report.verdict == "fail", str(report)


# A gradient that is too large beside shared metrics is the headline of another test of each commit.
@pytest.mark.nightly(each_commit=("central_storage-shared_counts_and_an_area_that_is_wrong-metric-wrong",))
@pytest.mark.parametrize(
    ("strategy", "program", "cause"),
    [
        ("mirrored", programs.noise_of_the_program, REPEATED),
        ("mirrored", programs.dropout_and_noise_of_the_program, REPEATED),
        ("mirrored", programs.dropout_and_a_gradient_that_is_too_large, SCALED),
        ("mirrored", programs.positions_and_a_gradient_that_is_too_large, SCALED),
        (
            "mirrored",
            partial(programs.positions_and_a_gradient_that_is_too_large, optimizer=keras.optimizers.AdamW),
            SCALED,
        ),
        ("mirrored", programs.normalized_and_a_state_of_the_program, "state-not-aggregated"),
        ("mirrored", programs.weighted_by_class_and_a_state_of_the_program, "state-not-aggregated"),
        ("mirrored", programs.tuned_with_a_state_of_the_program, "state-not-aggregated"),
        ("mirrored", programs.dropout_and_a_mean_that_is_scaled, "state-scaled-by-replica-count"),
        ("central_storage", programs.shared_metrics_and_a_gradient_that_is_too_large, SCALED),
        ("central_storage", programs.shared_counts_and_an_area_that_is_wrong, "metric-wrong"),
        ("central_storage", programs.shared_state_of_a_metric_that_is_wrong, "metric-wrong"),
    ],
)
def test_a_mistake_of_the_program_fails_beside_it(strategy, program, cause):
    report = check_training(program, strategy, **GIVEN)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause == cause, str(report)
    assert report.findings[0].known is None


@pytest.mark.parametrize("watched", [False, True])
def test_training_before_a_known_end_that_no_step_recorded_is_no_pass(watched):
    report = check_training(partial(programs.trained_before_strings, watched=watched), "mirrored", **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    assert [doubt.check for doubt in report.doubts] == ["STEP-EQ"]
    assert report.program_reasons
    assert [behavior.id for behavior in report.known_behaviors] == ["keras-fit-strings"]


@pytest.mark.parametrize(
    ("strategy", "program"),
    [
        ("mirrored", programs.normalized_and_synchronized),
        ("mirrored", programs.averages_that_the_loop_puts_into_the_weights),
        ("central_storage", programs.evaluated_by_a_copy),
    ],
)
def test_a_workaround_helps(strategy, program):
    report = check_training(program, strategy, **GIVEN)
    assert report.verdict == "pass", str(report)


def test_a_mistake_that_shows_after_a_known_behavior_is_the_headline():
    report = check_training(
        programs.shared_metrics_and_a_gradient_that_is_too_large_from_step_3, "central_storage", **GIVEN
    )
    assert [(finding.cause, finding.step) for finding in report.findings] == [(SCALED, 3)], str(report)
    assert str(report).startswith(f"{SCALED}: central_storage")
    assert cause_in_one_line(report, 70).startswith(f"{SCALED} at step 3")
    assert [(finding.known, finding.step) for finding in report.known] == [("keras-metrics-central-storage", 2)]


# For each commit, tests/plugin/test_known_behaviors.py declares it, and tests/checks/test_known.py is strict.
@pytest.mark.nightly
def test_a_declared_cause_passes_and_strict_mode_fails():
    declared = check_training(programs.dropout, "mirrored", expect={REPEATED: "why not"}, **GIVEN)
    assert declared.passed, str(declared)
    strict = check_training(programs.dropout, "mirrored", strict=True, **GIVEN)
    assert strict.verdict == "fail"
    assert [finding.cause for finding in strict.findings] == [REPEATED]
