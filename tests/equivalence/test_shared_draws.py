"""Random numbers that belong to no example, on real clusters: a replica may depend on those of one replica."""

from __future__ import annotations

import pytest
import shared_draw_programs as programs

from pytest_ddl import check_training
from pytest_ddl.equivalence.probes.apart import CHECK

GIVEN = {"global_batch_size": 12, "steps": 4, "timeout": 170}


@pytest.mark.nightly(each_commit=("mirrored-masked_features", "mirrored-number_of_one_replica"))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "program"),
    [
        ("mirrored", programs.noise_on_inputs),
        ("multi_worker_mirrored", programs.noise_on_inputs),
        ("mirrored", programs.mixed_up_by_one_number),
        ("mirrored", programs.stochastic_depth),
        ("mirrored", programs.masked_features),
        ("mirrored", programs.masked_features_before_synchronized_batch_normalization),
        ("mirrored", programs.number_of_one_replica),
        ("mirrored", programs.number_of_the_last_replica),
        ("mirrored", programs.skipped_gradients),
        ("mirrored", programs.reports_a_mean_over_replicas),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_replica_may_depend_on_the_numbers_of_one_replica(strategy, program):
    report = check_training(program, strategy, **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly(each_commit=("mirrored-skipped_gradients_by_the_averaged_share",))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "program"),
    [
        ("mirrored", programs.averaged_noise_on_inputs),
        ("multi_worker_mirrored", programs.averaged_noise_on_inputs),
        ("mirrored", programs.mixed_up_with_averaged_targets),
        ("mirrored", programs.number_of_one_replica_for_targets),
        ("mirrored", programs.stochastic_depth_by_the_averaged_gate),
        ("mirrored", programs.masked_features_by_the_averaged_mask),
        ("mirrored", programs.skipped_gradients_by_the_averaged_share),
        ("mirrored", programs.reports_a_function_of_a_mean_over_replicas),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_mixture_of_the_numbers_of_several_replicas_does_not_pass(strategy, program):
    """Equal numbers are their own mixture. No run on one device shows what one of different numbers should give."""
    report = check_training(program, strategy, **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    assert [doubt.check for doubt in report.doubts] == [CHECK]
