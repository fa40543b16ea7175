"""Data order, interruption and files on real clusters."""

from __future__ import annotations

import data_programs as programs
import pytest

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 12, "steps": 3, "timeout": 120}
pytestmark = pytest.mark.slow


def name_of(value):
    return getattr(value, "__name__", None)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "program",
    [
        programs.shuffles_with_a_seed,
        programs.augments_at_random,
        programs.goes_on,
        programs.saves_where_nobody_else_does,
    ],
    ids=name_of,
)
def test_a_right_program_passes(program):
    report = check_training(program, "multi_worker_mirrored", **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly(each_commit=("mirrored-evaluates_on_every_replica", "mirrored-restores_a_sum"))
@pytest.mark.parametrize("program", [programs.evaluates_on_every_replica, programs.restores_a_sum], ids=name_of)
@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
def test_equal_tensors_and_restored_sums_are_no_difference(strategy, program):
    report = check_training(program, strategy, **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("program", "check", "cause"),
    [
        (programs.adds_up_equal_evaluations, "METRIC-EQ", "metric-wrong"),
        (programs.restores_a_sum_that_was_not_saved, "CKPT", "checkpoint-incomplete"),
    ],
    ids=name_of,
)
def test_a_wrong_number_beside_them_is_found(program, check, cause):
    report = check_training(program, "mirrored", **GIVEN)
    assert [(finding.check, finding.cause) for finding in report.findings] == [(check, cause)], str(report)


@pytest.mark.nightly
def test_another_order_is_replayed_on_one_device():
    report = check_training(programs.shards_and_then_shuffles, "multi_worker_mirrored", **GIVEN)
    assert report.passed, str(report)
    assert any("was run again on the global batches that the strategy consumed" in note for note in report.notes)


@pytest.mark.nightly(
    each_commit=(
        "shuffles_and_repeats_without_a_seed",
        "restores_on_the_chief_alone",
        "begins_the_data_again",
        "saves_where_the_chief_saves",
    )
)
@pytest.mark.parametrize(
    ("program", "check", "cause"),
    [
        (programs.shuffles_without_a_seed, "DATA-COVER", "examples-duplicated"),
        (programs.shuffles_and_repeats_without_a_seed, "DATA-COVER", "examples-duplicated"),
        (programs.ignores_the_shard, "DATA-COVER", "examples-duplicated"),
        (programs.begins_where_the_first_steps_of_another_end, "DATA-COVER", "examples-duplicated"),
        (programs.draws_with_one_seed_on_every_worker, "DATA-COVER", "examples-duplicated"),
        (programs.forgets_the_optimizer, "RESUME", "resume-lost-state"),
        (programs.restores_on_the_chief_alone, "RESUME", "workers-diverged"),
        (programs.begins_the_data_again, "RESUME", "resume-data-wrong"),
        (programs.saves_where_the_chief_saves, "WRITE", "unsafe-checkpoint-path"),
        (programs.goes_back_to_a_checkpoint_without_the_optimizer, "CKPT", "checkpoint-incomplete"),
    ],
    ids=name_of,
)
def test_a_sin_is_named(program, check, cause):
    report = check_training(program, "multi_worker_mirrored", **GIVEN)
    assert report.verdict == "fail"
    assert (report.findings[0].check, report.findings[0].cause) == (check, cause), str(report)


@pytest.mark.nightly(each_commit=("mirrored-takes_slices_in_the_replica_function",))
@pytest.mark.parametrize(
    "program",
    [
        programs.divides_batches_by_hand,
        programs.deals_examples_out_by_hand,
        programs.takes_slices_in_the_replica_function,
    ],
    ids=name_of,
)
@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_batches_may_be_divided_by_hand(strategy, program):
    report = check_training(program, strategy, **GIVEN)
    assert report.passed, str(report)


@pytest.mark.nightly(each_commit=("gives_the_first_part_to_all", "divides_labels_otherwise"))
@pytest.mark.parametrize(
    ("program", "check", "cause"),
    [
        (programs.gives_the_first_part_to_all, "DATA-COVER", "examples-duplicated"),
        (programs.divides_labels_otherwise, "DATA-COVER", "examples-altered"),
        (programs.takes_one_slice_on_all_replicas, "BATCH", "global-batch-wrong"),
    ],
    ids=name_of,
)
def test_batches_that_are_divided_wrongly_by_hand_are_named(program, check, cause):
    report = check_training(program, "mirrored", **GIVEN)
    assert report.verdict == "fail"
    assert (report.findings[0].check, report.findings[0].cause) == (check, cause), str(report)


@pytest.mark.nightly(each_commit=("distributes_one_shard",))
@pytest.mark.parametrize(
    ("program", "causes"),
    [(programs.distributes_one_shard, ["examples-dropped"]), (programs.distributes_all_shards, [])],
    ids=name_of,
)
def test_a_shard_that_nobody_reads_is_found_before_the_data_ends(program, causes):
    report = check_training(program, "mirrored", **GIVEN)
    assert [finding.cause for finding in report.findings[:1]] == causes, str(report)
    assert report.verdict == ("fail" if causes else "pass"), str(report)


@pytest.mark.nightly
@pytest.mark.parametrize("program", [programs.forgets_the_optimizer, programs.begins_the_data_again], ids=name_of)
def test_an_interruption_is_judged_in_one_process_too(program):
    report = check_training(program, "mirrored", **GIVEN)
    assert report.findings[0].check == "RESUME", str(report)
