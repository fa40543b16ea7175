"""Causes that another check of the same report contradicts, and the order of findings by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_gradients import Way, added, coupled, judged_with_slices, scaled, train
from simulated_training import Program, pair

from pytest_ddl.equivalence.checks.registry import ROLES
from pytest_ddl.equivalence.findings import CheckResult, Finding, Grounds, Outcome, Symptom
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.precedence import root_causes
from pytest_ddl.equivalence.verdict.vetoes import Evidence, without_contradictions
from pytest_ddl.records import ErrorRecord

NUMERIC = ["STEP-EQ", "OPT-STATE", "REPLICA-EQ", "MOVES"]


def _vetoed(finding: Finding, results: list[CheckResult], program: Program, declared: tuple[str, ...] = ()) -> Finding:
    (left,) = without_contradictions([finding], declared, Evidence(results, *pair(program), ROLES))
    return left


AGREE = CheckResult("REPLICA-EQ", Outcome.PASS)
EVEN, UNEVEN = Program(replicas=2), Program(replicas=2, batches=(5, 12))


@pytest.mark.parametrize(
    ("cause", "program"),
    [
        ("mean-of-replica-means", EVEN),
        ("empty-replica", UNEVEN),
        ("replicas-diverged", EVEN),
        ("gradient-not-aggregated", EVEN),
        ("optimizer-state-mismatch", EVEN),
        ("variable-did-not-move", EVEN),
        ("clipping-lost", EVEN),
    ],
)
def test_a_contradicted_cause_is_taken_back(cause: str, program: Program) -> None:
    finding = Finding("STEP-EQ", "differs", cause=cause, step=2, also=(cause,), exact=False, grounds=Grounds.PATTERN)
    others = [CheckResult(check, Outcome.PASS) for check in ("OPT-STATE", "MOVES", "CLIP")]
    left = _vetoed(finding, [AGREE, *others], program)
    assert (left.cause, left.also) == (None, ())
    assert f"not {cause}: " in (left.evidence or "")
    assert _vetoed(finding, [AGREE], program, declared=(cause,)) == finding


def test_a_cause_that_nothing_contradicts_stays() -> None:
    means = Finding("STEP-EQ", "differs", cause="mean-of-replica-means", step=1, grounds=Grounds.RECOMPUTED)
    assert _vetoed(means, [AGREE], UNEVEN).cause == means.cause
    recomputed = replace(means, cause="gradient-not-aggregated")
    assert _vetoed(recomputed, [AGREE], EVEN).cause == recomputed.cause
    apart = replace(recomputed, exact=False, grounds=Grounds.PATTERN)
    assert _vetoed(apart, [CheckResult("REPLICA-EQ", Outcome.FAIL)], EVEN).cause == apart.cause


@pytest.mark.parametrize("check", ["LOSS-EQ", "METRIC-EQ"])
def test_a_scaled_gradient_does_not_fit_where_the_weights_are_right(check: str) -> None:
    also = ("gradient-scaled-by-replica-count",)
    shown = Finding(check, "differs", cause="reported-loss-wrong", step=2, also=also, grounds=Grounds.RECOMPUTED)
    assert _vetoed(shown, [CheckResult("STEP-EQ", Outcome.PASS)], EVEN).also == ()
    assert _vetoed(shown, [CheckResult("STEP-EQ", Outcome.INCONCLUSIVE)], EVEN).also == also
    assert _vetoed(replace(shown, check="STEP-EQ"), [CheckResult("STEP-EQ", Outcome.FAIL)], EVEN).also == also


def test_exclusion_names_no_cause() -> None:
    finding = Finding("STEP-EQ", "differs", cause="batch-coupled-loss", step=1, exact=False, grounds=Grounds.EXCLUSION)
    assert _vetoed(finding, [AGREE], EVEN).cause is None
    assert _vetoed(finding, [AGREE], EVEN, declared=("batch-coupled-loss",)).cause == "batch-coupled-loss"


def test_a_coupled_loss_is_shown_by_what_each_replica_computes_alone() -> None:
    report = judged_with_slices(Way(computed=coupled), Way(computed=coupled), 2, checks=NUMERIC)
    assert report.findings[0].grounds is Grounds.PATTERN
    assert "the replica function leaves out or selects examples" in (report.findings[0].evidence or "")
    assert "in the dataset, before the batch is split" in (report.findings[0].fix or "")
    assert "grounds:" in str(report)

    def of_a_changed_weight(weights, batch):  # type: ignore[no-untyped-def]
        changed = {**weights, "kernel": weights["kernel"] * (1.0 + 0.1 * (batch.replicas - 1))}
        return coupled(changed, batch)

    report = judged_with_slices(Way(computed=coupled), Way(computed=of_a_changed_weight), 2, checks=NUMERIC)
    first = report.findings[0]
    assert (first.cause, len(first.look_at)) == (None, 3)
    assert "look at:" in str(report)


def test_a_difference_without_a_cause_says_which_values_are_right() -> None:
    wrong = Way(reduced=lambda parts: [scaled(added(parts), 1.3)] * len(parts))
    first = judge(train(Way(), 1), train(wrong, 2), checks=NUMERIC).findings[0]
    assert first.cause is None
    assert "the gradients computed on the replicas add up to those of one device" in (first.evidence or "")
    assert any("optimizer" in place for place in first.look_at)


def test_wrong_data_of_an_earlier_step_comes_before_a_crash() -> None:
    crash = Finding("RUN", "raised", cause="worker-raised", symptom=Symptom.CRASH.value, step=3)
    batch = Finding("BATCH", "16 examples", cause="global-batch-wrong", step=1)
    later = replace(batch, step=3)
    assert root_causes([crash, batch]) == [batch, crash]
    assert root_causes([later, crash]) == [crash, later]
    loss = Finding("LOSS-EQ", "differs", cause="reported-loss-wrong", step=1)
    assert root_causes([loss, crash])[0] is crash


def test_a_reported_value_does_not_stand_before_weights_without_a_cause() -> None:
    weights = Finding("STEP-EQ", "differs", step=1)
    own = Finding("LOSS-EQ", "differs", cause="reported-loss-wrong", step=1, grounds=Grounds.RECOMPUTED)
    assert root_causes([own, weights]) == [weights, own]
    assert root_causes([replace(own, grounds=Grounds.PATTERN), weights]) == [weights]


def test_a_crash_of_step_1_is_first() -> None:
    error = ErrorRecord("ValueError", "boom", "", 0)
    report = judge(*pair(Program(replicas=2, truncate=0), error=error))
    assert report.findings[0].cause == "worker-raised"


def test_a_shown_loss_whose_cause_is_taken_back_is_still_wrong() -> None:
    shown = Finding("LOSS-EQ", "differs", cause="mean-of-replica-means", step=2, grounds=Grounds.RECOMPUTED)
    left = _vetoed(shown, [AGREE], EVEN)
    assert left.cause == "reported-loss-wrong"
    assert "not mean-of-replica-means: " in str(left.evidence)


def test_slots_after_a_wrong_gradient_blame_no_optimizer() -> None:
    def handed(parts: Any, _step: int) -> Any:
        return [{**part, "kernel": np.abs(part["kernel"])} for part in parts]

    for rule in ({"rule": "Adam"}, {"momentum": 0.9}):
        report = judged_with_slices(Way(**rule), Way(handed=handed, **rule), 2, checks=NUMERIC)
        assert [(finding.check, finding.cause) for finding in report.findings] == [("STEP-EQ", None)], str(report)


def test_unequal_steps_come_before_what_fit_shows_of_them() -> None:
    steps = Finding("STEP-EQ", "differ", cause="unequal-steps", step=9)
    shown = Finding("LOSS-EQ", "differs", cause="reported-loss-wrong", step=5)
    metric = Finding("METRIC-EQ", "differs", cause="metric-wrong", step=5)
    assert root_causes([shown, metric, steps], roles=ROLES)[0] == steps
    early = replace(shown, step=1)
    assert root_causes([early, steps], roles=ROLES)[0] == early


def test_a_shard_that_ends_early_explains_other_batches_before() -> None:
    ended = Finding("BATCH", "ended", cause="unequal-steps", step=6)
    others = Finding("DATA-COVER", "other batches", step=1)
    weights = Finding("STEP-EQ", "differ", step=1)
    assert root_causes([others, weights, ended], roles=ROLES) == [ended]


def test_variables_that_combine_assignments_agree_without_a_reduction() -> None:
    finding = Finding(
        "STEP-EQ",
        "differs",
        cause="gradient-not-aggregated",
        variable="dense/kernel",
        exact=False,
        grounds=Grounds.PATTERN,
    )
    reference, distributed = pair(EVEN)
    assert _vetoed(finding, [AGREE], EVEN).cause is None
    averaged = tuple(
        replace(rank, variables=tuple(replace(v, aggregation="VariableAggregation.MEAN") for v in rank.variables))
        for rank in distributed.ranks
    )
    evidence = Evidence([AGREE], reference, replace(distributed, ranks=averaged), ROLES)
    (left,) = without_contradictions([finding], (), evidence)
    assert left.cause == "gradient-not-aggregated"
