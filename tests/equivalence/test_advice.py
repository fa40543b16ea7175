"""Advice on real clusters: the fix can be applied to the program at hand, and the evidence fits what it did."""

from __future__ import annotations

import advice_programs as programs
import pytest

from pytest_ddl import check_training

GIVEN = {"global_batch_size": 8, "steps": 4, "timeout": 100}


@pytest.mark.nightly(each_commit=("own_updates_that_are_summed",))
@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        programs.running_counts_of_the_batch,
        programs.target_network_by_a_common_condition,
        programs.own_updates_that_are_summed,
        programs.reduced_updates_that_are_averaged,
        programs.means_that_are_averaged,
        programs.all_replicas_leave_out_the_step,
        programs.every_term_is_a_share,
    ],
    ids=lambda value: value.__name__,
)
def test_right_programs_pass(program):
    report = check_training(program, "mirrored", **GIVEN)
    assert report.passed, str(report)


# Long programs: one strategy or one model runs for each commit.
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "cause", "fix", "evidence"),
    [
        (
            programs.running_counts_of_each_replica,
            "state-not-aggregated",
            "Add the shares up before the assignment",
            "every replica assigns 0.9 times the old value and its own share",
        ),
        (
            programs.target_network_by_the_replicas_own_condition,
            "replicas-diverged",
            "Look at the condition under which the program assigns it",
            "keeps the old value",
        ),
        (
            programs.own_updates_that_are_averaged,
            "gradient-scaled-by-inverse-replica-count",
            "The reported loss is right (LOSS-EQ passes), and aggregation=MEAN averages what the replicas assign",
            "the update weights each by 0.5",
        ),
        (
            programs.reduced_updates_that_are_summed,
            "gradient-scaled-by-replica-count",
            "The reported loss is right (LOSS-EQ passes), and aggregation=SUM adds up what the replicas assign",
            "2 x the single-device",
        ),
        (
            programs.means_that_are_added_up,
            "metric-wrong",
            "Look at how the parts of the replicas become one value",
            "as if means of the 2 replicas were added up",
        ),
        (
            programs.a_replica_leaves_out_its_own_gradient,
            "non-finite-not-synchronised",
            "Add the gradients up before tf.math.is_finite decides",
            "leaves out the gradient of replica 0; one device did not update",
        ),
        (
            programs.every_replica_leaves_out_its_easiest_example,
            "batch-coupled-loss",
            "Gather what the loss compares",
            "the replica function leaves out or selects examples",
        ),
        (
            programs.one_term_is_a_mean_of_each_replica,
            "gradient-scaled-by-replica-count",
            "One term of the loss is a mean over the replica's examples",
            "it is 2 times too large",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_fix_can_be_applied(program, cause, fix, evidence):
    report = check_training(program, "mirrored", **GIVEN)
    (finding,) = report.findings
    assert finding.cause == cause, str(report)
    assert (finding.fix or "").startswith(fix), str(report)
    assert evidence in (finding.evidence or ""), str(report)
