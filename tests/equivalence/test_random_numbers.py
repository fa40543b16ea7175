"""Random numbers of examples on real clusters: right programs pass, and a wrong mean over random numbers is found."""

from __future__ import annotations

from functools import partial

import pytest
import random_programs as programs

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "steps": 4, "timeout": 170}
TOLERATED = {"random-stream-differs-across-replicas", "random-stream-repeated-across-replicas"}
"""Workers follow the global seed, which the plugin sets to the same value on all of them."""


# Two more comparisons make mixed_up_by_sorting the slowest one. For each commit, test_neutralized.py tests when numbers
# are drawn in order and what they excuse, and test_common_numbers.py which numbers these are.
@pytest.mark.nightly(
    each_commit=(
        "mirrored-mixed_up",
        "mirrored-noise_by_time",
        "mirrored-noise_over_a_dimension_before_the_examples",
        "mirrored-noise_contrast",
        "mirrored-words_found_by_a_mask",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "program"),
    [
        ("mirrored", programs.masked),
        ("multi_worker_mirrored", programs.masked),
        ("central_storage", programs.masked),
        ("mirrored", programs.mixed_up),
        ("multi_worker_mirrored", programs.mixed_up),
        ("mirrored", programs.mixed_up_by_sorting),
        ("mirrored", programs.noise_by_time),
        ("mirrored", programs.generator),
        ("mirrored", programs.micro_batches),
        ("mirrored", programs.one_example_after_the_other),
        ("mirrored", programs.several_numbers_for_each_example),
        ("mirrored", programs.noise_over_a_dimension_before_the_examples),
        ("mirrored", programs.random_images),
        ("mirrored", programs.sampled_classes),
        ("multi_worker_mirrored", programs.sampled_classes),
        ("mirrored", programs.noise_contrast),
        ("mirrored", programs.numbers_for_real_words),
        ("mirrored", programs.words_found_by_a_mask),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_right_programs_pass(strategy, program):
    report = check_training(program, strategy, **GIVEN)
    assert report.passed, str(report)
    causes = {finding.cause for finding in report.approximations}
    assert causes <= TOLERATED
    # Workers whose seeds are equal draw the classes of one device, so that nothing differs.
    assert causes or strategy == "multi_worker_mirrored"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("too_little", [False, True])
def test_noise_in_the_shape_of_a_weight_is_left_open(too_little):
    """The sum of independent parts has another variance than one draw, which no run with equal numbers shows."""
    report = check_training(partial(programs.noise_on_gradients, too_little=too_little), "mirrored", **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    assert "in the shape of a weight" in report.inconclusive[0]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("by_replica", [False, True])
def test_noise_in_a_branch_of_a_vectorized_map_is_left_open(by_replica):
    report = check_training(partial(programs.noise_in_a_branch, by_replica=by_replica), "mirrored", **GIVEN)
    assert report.verdict == "inconclusive", str(report)


@pytest.mark.slow
def test_raw_operations_without_a_seed_pass():
    report = check_training(programs.raw_operations, "mirrored", **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly(each_commit=("mirrored-masked_by_replica",))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "program", "causes"),
    [
        ("mirrored", programs.masked_by_replica, {"masked-loss-normalised-per-replica"}),
        ("multi_worker_mirrored", programs.masked_by_replica, {"masked-loss-normalised-per-replica"}),
        ("mirrored", programs.raw_mask_by_replica, {"masked-loss-normalised-per-replica"}),
        ("mirrored", programs.one_example_after_the_other_and_too_much, {"gradient-scaled-by-replica-count"}),
        ("mirrored", programs.mixed_up_and_weighed_by_replica, {"masked-loss-normalised-per-replica"}),
        ("mirrored", programs.noise_weighed_by_replica, {"masked-loss-normalised-per-replica"}),
        ("mirrored", programs.hardest_examples_of_the_replica, {"batch-coupled-loss"}),
        ("mirrored", programs.sampled_classes_and_a_mean_by_replica, {"gradient-scaled-by-replica-count"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_mean_over_random_numbers_is_found(strategy, program, causes):
    report = check_training(program, strategy, **GIVEN)
    assert report.verdict == "fail", str(report)
    assert report.findings[0].cause in causes, str(report)


@pytest.mark.nightly(each_commit=("vectorized-False", "coins-True"))
@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    "program",
    [
        partial(programs.noise_by_index, mapped=programs.in_a_loop),
        partial(programs.noise_by_index, mapped=programs.vectorized),
        programs.coins,
    ],
    ids=["in a loop", "vectorized", "coins"],
)
def test_a_seed_without_the_number_of_the_replica_repeats_its_numbers(program, own):
    report = check_training(partial(program, own=own), "mirrored", **GIVEN)
    assert report.passed is own, str(report)
    found = report.approximations if own else report.findings
    stream = "random-stream-differs-across-replicas" if own else "random-stream-repeated-across-replicas"
    assert [finding.cause for finding in found] == [stream]
