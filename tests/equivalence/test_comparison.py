"""The whole comparison on real clusters: verdicts, causes, and what goes wrong on the way."""

from __future__ import annotations

import equivalence_programs as programs
import pytest

from pytest_ddl import check_training
from pytest_ddl.cluster import overrides

STRATEGIES = [
    "one_device",
    "mirrored",
    "multi_worker_mirrored",
    "parameter_server",
    "central_storage",
    "model_parallel",
]
GIVEN = {"global_batch_size": 12, "steps": 3, "timeout": 60}


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", [*STRATEGIES, pytest.param("mirrored[replicas=4]", marks=pytest.mark.slow)])
def test_a_right_program_passes(strategy):
    report = check_training(programs.right, strategy, **GIVEN)
    assert report.passed, str(report)
    assert report.distributed.precision == "float64"


@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored", "central_storage"])
def test_a_loss_that_is_not_divided_is_named(strategy):
    report = check_training(programs.loss_not_divided_by_the_global_batch, strategy, **GIVEN)
    assert report.verdict == "fail"
    finding = report.findings[0]
    assert (finding.cause, finding.step) == ("gradient-scaled-by-replica-count", 1)
    assert finding.exact


def test_changed_globals_are_searched_once_for_all_runs(monkeypatch):
    """The search walks through all modules of the user, which takes longer than a run in a large project."""
    searched = []
    collect = overrides.collect
    monkeypatch.setattr(overrides, "collect", lambda call: searched.append(call) or collect(call))
    assert check_training(programs.loss_not_divided_by_the_global_batch, "mirrored", **GIVEN).verdict == "fail"
    assert len([call for call in searched if programs.loss_not_divided_by_the_global_batch in call]) == 1


@pytest.mark.nightly(each_commit=("multi_worker_mirrored",))
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored", "central_storage"])
def test_a_function_of_one_replica_is_traced_by_the_strategy(strategy):
    report = check_training(programs.right_function_of_a_replica, strategy, **GIVEN)
    assert report.passed, str(report)
    (graph,) = report.distributed.ranks[0].graphs
    assert graph.step == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_a_mistake_in_a_function_of_one_replica_is_named():
    report = check_training(programs.function_of_a_replica_with_an_undivided_loss, "mirrored", **GIVEN)
    assert report.findings[0].cause == "gradient-scaled-by-replica-count", str(report)


@pytest.mark.slow
def test_a_phase_that_the_limit_of_steps_leaves_out_is_no_pass():
    report = check_training(programs.second_phase_is_wrong, "mirrored", **GIVEN)
    assert report.verdict == "inconclusive", str(report)
    (reason,) = report.program_reasons
    assert reason.startswith("RUN: steps=3 was used up before run.steps at ")
    assert "equivalence_programs.py:" in reason
    longer = check_training(programs.second_phase_is_wrong, "mirrored", **{**GIVEN, "steps": 8})
    assert longer.verdict == "fail", str(longer)


@pytest.mark.slow
def test_means_of_replicas_are_recomputed_and_an_approximation():
    given = {**GIVEN, "global_batch_size": 13}
    report = check_training(programs.mean_of_replica_means, "mirrored", **given)
    assert report.passed, str(report)
    assert [finding.cause for finding in report.approximations] == ["mean-of-replica-means"]
    assert report.approximations[0].exact, report.approximations[0].evidence
    strict = check_training(programs.mean_of_replica_means, "mirrored", strict=True, **given)
    assert [finding.cause for finding in strict.findings] == ["mean-of-replica-means"]


@pytest.mark.nightly
@pytest.mark.slow
def test_uneven_batches_are_tried_when_asked_for():
    checks = ["STEP-EQ", "UNEVEN-EQ"]
    right = check_training(programs.right, "mirrored", checks=checks, **GIVEN)
    assert right.passed, str(right)
    uneven = right.result("UNEVEN-EQ")
    assert uneven is not None
    assert all(f"global_batch_size={size}: " in uneven.reason for size in (13, 1)), uneven.reason
    wrong = check_training(programs.mean_of_replica_means, "mirrored", checks=checks, **GIVEN)
    assert wrong.findings[0].cause == "empty-replica"
    assert "global_batch_size=1" in wrong.findings[0].message


@pytest.mark.parametrize(
    ("program", "cause", "symptom", "words"),
    [
        (programs.raises_on_the_last_rank_at_step_2, "worker-raised", "crash", "ZeroDivisionError: planted"),
        (programs.exits_with_status_0, "worker-died", "crash", "exited with status 0"),
        (programs.is_killed, "worker-died", "crash", "SIGKILL"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_rank_that_fails_is_a_finding(program, cause, symptom, words):
    report = check_training(program, "multi_worker_mirrored", **GIVEN)
    assert report.verdict == "fail"
    finding = report.findings[0]
    assert (finding.cause, finding.symptom, finding.worker) == (cause, symptom, 1)
    assert words in str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_hang_is_a_finding_with_stacks():
    report = check_training(programs.hangs, "mirrored", **{**GIVEN, "timeout": 20})
    finding = report.findings[0]
    assert (finding.cause, finding.symptom) == ("deadline-exceeded", "hang")
    assert "in hangs" in finding.details


@pytest.mark.slow
def test_a_program_that_fails_on_one_device_too_is_inconclusive():
    report = check_training(programs.raises_everywhere, "mirrored", **GIVEN)
    assert report.verdict == "inconclusive"
    assert "on every device" in str(report)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_program_that_records_nothing_does_not_pass():
    assert check_training(programs.watches_nothing, "mirrored", **GIVEN).verdict == "inconclusive"


@pytest.mark.slow
def test_an_interrupted_run_goes_on_in_a_fresh_cluster():
    report = check_training(programs.restarts_after_two_steps, "mirrored", **GIVEN)
    assert report.passed, str(report)
    assert report.distributed.num_steps == 3


@pytest.mark.slow
def test_reduced_precision_is_held_against_its_own_rounding():
    report = check_training(programs.mixed_precision, "mirrored", **GIVEN)
    assert report.verdict != "fail", str(report)


@pytest.mark.nightly(each_commit=("parameter_server",))
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mirrored", "parameter_server", "multi_worker_mirrored"])
def test_the_end_of_the_data_changes_nothing(strategy):
    report = check_training(programs.weight_decay_over_two_passes, strategy, global_batch_size=12, timeout=60)
    assert report.passed, str(report)
    assert report.distributed.num_steps == 8


@pytest.mark.nightly
@pytest.mark.slow
def test_weights_changed_after_the_last_step_are_seen():
    report = check_training(programs.weights_changed_after_the_last_step, "mirrored", **GIVEN)
    assert report.verdict == "fail"
    assert "changed after the last recorded step" in report.findings[0].message


@pytest.mark.nightly
@pytest.mark.slow
def test_a_restart_on_one_rank_alone_is_an_error():
    report = check_training(programs.restarts_on_one_rank, "multi_worker_mirrored", **GIVEN)
    assert report.findings[0].cause == "worker-raised"
    assert "not on all" in report.findings[0].message


@pytest.mark.nightly
@pytest.mark.slow
def test_a_program_that_evaluates_only_is_judged_by_its_results():
    report = check_training(programs.evaluates_only, "mirrored", **GIVEN)
    assert report.passed, str(report)
    assert "METRIC-EQ" in [result.check for result in report.results if result.outcome == "pass"]
    assert not report.comparable


@pytest.mark.nightly
@pytest.mark.slow
def test_data_that_ends_before_the_limit_is_said():
    report = check_training(programs.right, "mirrored", **{**GIVEN, "steps": 40})
    assert report.passed
    assert "ended after 4" in str(report)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"strategy": "typo"}, "'typo' is not a strategy"),
        ({"steps": 0}, "steps=0"),
        ({"global_batch_size": 1.5}, "global_batch_size=1.5"),
        ({"precision": "half"}, "precision='half'"),
        ({"expect": {"no-such-cause": "x"}}, "no-such-cause"),
        ({"checks": ["NOPE"]}, "NOPE"),
        ({"timeout": -1}, "timeout=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"train": 3}, "train=3"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    given = {"train": programs.right, "strategy": "mirrored", **GIVEN, **arguments}
    with pytest.raises(ValueError, match=words):
        check_training(given.pop("train"), given.pop("strategy"), **given)
