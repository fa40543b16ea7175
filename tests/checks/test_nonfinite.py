"""NONFINITE on records: allowed updates and scales after a gradient that is not finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_ddl.equivalence.checks.nonfinite import check_nonfinite
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.equivalence.probes import nonfinite as nonfinite_probe
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import (
    GradientRecord,
    GradientStage,
    GraphRecord,
    OptimizerRecord,
    RankRecord,
    StepRecord,
    TrainingRecord,
    VariableKind,
    VariableRecord,
)
from pytest_ddl.training.settings import RunSettings

INF = float("inf")
VARIABLES = (
    VariableRecord(0, "dense/kernel", VariableKind.TRAINABLE, (2,), "float64", distributed=True),
    VariableRecord(1, "loss_scale", VariableKind.STATE, (), "float64", distributed=True),
)
SKIPPED = [(1.0, 8.0), (0.5, 8.0), (0.5, 4.0), (0.0, 4.0)]
"""Weight and scale at first and after each of three steps: the second is skipped, and halves the scale."""


def record(*histories, broken=(), gradient=1.0):
    """A run with one history per replica; ``broken`` are the replicas whose gradient in step 2 is not finite."""
    steps = len(histories[0]) - 1

    def snapshot(step):
        return {
            0: tuple(np.full(2, history[step][0]) for history in histories),
            1: tuple(np.array(history[step][1]) for history in histories),
        }

    def gradients(step):
        share = gradient / len(histories)
        return tuple(
            GradientRecord(
                replica,
                GradientStage.COMPUTED,
                0,
                {0: np.array([INF if step == 2 and replica in broken else share, share])},
            )
            for replica in range(len(histories))
        )

    made = tuple(StepRecord(k, 1.0, snapshot=snapshot(k), gradients=gradients(k)) for k in range(1, steps + 1))
    rank = RankRecord(0, "local", tuple(range(len(histories))), VARIABLES, initial=snapshot(0), steps=made)
    name = "one_device" if len(histories) == 1 else f"mirrored[replicas={len(histories)}]"
    return TrainingRecord(name, len(histories), (rank,), 8, "float64", 0)


def history(*changed):
    """The right history with other values from step 2 on."""
    return [*SKIPPED[:2], *changed, *SKIPPED[2 + len(changed) :]]


REFERENCE = record(SKIPPED, broken=[0])


def result_of(distributed, reference=REFERENCE):
    return check_nonfinite(Comparison(reference, distributed, Tolerance(reference)))


def test_passes_where_all_replicas_skip_as_one_device_does():
    result = result_of(record(SKIPPED, SKIPPED, broken=[1]))
    assert result.outcome is Outcome.PASS
    assert "step(s) 2" in result.reason


@pytest.mark.parametrize(
    ("histories", "cause", "says"),
    [
        ([history((0.25, 8.0)), SKIPPED], "non-finite-not-synchronised", "replicas decided differently"),
        ([history((INF, 4.0)), SKIPPED], "non-finite-not-synchronised", "replicas decided differently"),
        ([history((0.25, 4.0))] * 2, "non-finite-not-synchronised", "not as one device"),
        ([history((np.nan, 4.0))] * 2, "non-finite-not-synchronised", "not as one device"),
        ([history((0.5, 8.0)), SKIPPED], "loss-scale-not-synchronised", "replicas disagree"),
        ([history((0.5, 2.0))] * 2, "loss-scale-not-synchronised", "not that of one device"),
    ],
)
def test_names_what_was_not_synchronized(histories, cause, says):
    result = result_of(record(*histories, broken=[1]))
    (finding,) = result.findings
    assert finding.cause == cause
    assert finding.step == 2
    assert says in finding.message
    assert finding.evidence


def test_the_evidence_says_what_each_replica_did():
    (finding,) = result_of(record(history((INF, 4.0)), SKIPPED, broken=[0])).findings
    assert "replica 0 updated with values that are not finite" in finding.evidence
    assert "replica 1 did not update" in finding.evidence
    assert "one device did not update" in finding.evidence


OF_KERAS = OptimizerRecord("LossScaleOptimizer", {"initial_scale": 8.0, "dynamic_growth_steps": 2000})


@pytest.mark.parametrize(("broken", "named"), [([1], True), ([0, 1], False)])
def test_an_overflow_that_keras_does_not_see_is_explained(broken, named):
    overflowing = record(*[history((np.nan, 8.0))] * 2, broken=broken)
    (rank,) = overflowing.ranks
    (finding,) = result_of(replace(overflowing, ranks=(replace(rank, optimizers=(OF_KERAS,)),))).findings
    assert finding.cause == "non-finite-not-synchronised"
    assert ("looks only at the gradients of the first replica" in finding.evidence) is named
    assert ("mixed_bfloat16" in (finding.fix or "")) is named


def test_explains_what_follows_from_it_in_weights_and_replicas():
    report = judge(REFERENCE, record(history((0.25, 8.0), (0.1, 8.0)), SKIPPED, broken=[1]))
    assert report.findings[0].check == "NONFINITE"
    assert report.findings[0].cause == "non-finite-not-synchronised"
    assert not any(finding.check == "REPLICA-EQ" for finding in report.findings)


@pytest.mark.parametrize(
    ("reference", "distributed", "why"),
    [
        (record(SKIPPED), record(SKIPPED, SKIPPED), "every gradient is finite"),
        (record(history((INF, 4.0)), broken=[0]), record(SKIPPED, SKIPPED, broken=[1]), "one device also updates"),
        (REFERENCE, record(SKIPPED, broken=[0]), "one replica"),
        # An empty replica's 0/0 is no overflow: one device has nothing to skip.
        (record(SKIPPED), record(history((0.25, 8.0)), SKIPPED, broken=[1]), "every gradient is finite"),
    ],
)
def test_does_not_judge(reference, distributed, why):
    result = result_of(distributed, reference)
    assert result.outcome is Outcome.NOT_APPLICABLE
    assert why in result.reason


def test_never_passes_on_nothing_recorded():
    distributed = record(SKIPPED, SKIPPED, broken=[1])
    (rank,) = distributed.ranks
    blind = replace(
        rank,
        steps=tuple(replace(step, gradients=()) for step in rank.steps),
        notes=(Note(NoteKind.GRADIENTS, "no PyFunc"),),
    )
    result = result_of(replace(distributed, ranks=(blind,)))
    assert result.outcome is Outcome.NOT_APPLICABLE
    assert "no PyFunc" in result.reason


# -- the probe: plain runs without incident, and runs with planted infinities ----------------------


def planted(*histories):
    """A comparison in which every run has what the settings plant, given the histories of the replicas."""
    asked = []

    def compare_once(settings, _checks, _runs=1):
        asked.append(settings)
        return judge(REFERENCE, record(*histories, broken=[1]))

    return asked, compare_once


def plain(gradient=1.0):
    return judge(record(SKIPPED, gradient=gradient), record(SKIPPED, SKIPPED, gradient=gradient))


def nonfinite(report):
    (result,) = (result for result in report.results if result.check == "NONFINITE")
    return result


def test_the_probe_passes_a_program_that_handles_them():
    asked, compare_once = planted(SKIPPED, SKIPPED)
    report = nonfinite_probe.probe(plain(), RunSettings(), compare_once)
    assert nonfinite(report).outcome is Outcome.PASS
    assert "inf in dense/kernel on replica 1" in nonfinite(report).reason
    assert report.passed
    assert [settings.loss_scale_factor for settings in asked] == [0.5]
    assert {injection.replica for injection in asked[0].inject} == {1}


def test_the_probe_fails_one_that_does_not_and_names_it_first():
    _asked, compare_once = planted(history((0.25, 8.0)), SKIPPED)
    report = nonfinite_probe.probe(plain(), RunSettings(), compare_once)
    assert nonfinite(report).outcome is Outcome.FAIL
    assert [finding.cause for finding in report.findings] == ["non-finite-not-synchronised"]
    assert "run again with half the loss scale and inf in dense/kernel" in report.findings[0].message


def test_the_probe_respects_what_is_expected():
    before, after = (record(*histories) for histories in ([SKIPPED], [SKIPPED, SKIPPED]))
    cause = {"non-finite-not-synchronised": "known"}

    def compare_once(_settings, _checks, _runs=1):
        return judge(REFERENCE, record(history((0.25, 8.0)), SKIPPED, broken=[1]), expect=cause)

    report = nonfinite_probe.probe(judge(before, after, expect=cause), RunSettings(), compare_once)
    assert report.findings == []
    assert [finding.cause for finding, _why in report.expected] == ["non-finite-not-synchronised"]
    assert report.unused_expectations == {}


def test_a_gradient_that_does_not_follow_the_scale_by_which_it_is_divided():
    def halved(update):
        again = [(1.0, 4.0), (1.0 - update, 4.0), (1.0 - 2 * update, 4.0)]
        return judge(record(again), record(again, again))

    whole = [(1.0, 8.0), (0.75, 8.0), (0.5, 8.0)]
    report = judge(record(whole), record(whole, whole))
    forgets = nonfinite_probe.probe(report, RunSettings(), lambda _settings, _checks, _runs: halved(update=0.5))
    assert [finding.cause for finding in forgets.findings] == ["gradient-unscaled-without-scale"]
    keeps = nonfinite_probe.probe(report, RunSettings(), lambda _settings, _checks, _runs: halved(update=0.25))
    assert keeps.findings == []


@pytest.mark.parametrize(
    ("claim", "wanted"),
    [
        ({"variables": VARIABLES[:1]}, False),
        ({}, True),
        ({"variables": VARIABLES[:1], "optimizers": (OptimizerRecord("LossScaleOptimizerV3"),)}, True),
        ({"variables": VARIABLES[:1], "graphs": (GraphRecord("step", 1, 9, operations={"IsFinite": 2}),)}, True),
    ],
)
def test_runs_by_itself_where_the_program_claims_to_handle_them(claim, wanted):
    report = plain()
    (rank,) = report.distributed.ranks
    report = replace(report, distributed=replace(report.distributed, ranks=(replace(rank, **claim),)))
    assert nonfinite_probe.wanted(report, ()) is wanted
    assert nonfinite_probe.wanted(report, ["NONFINITE"])


def test_keras_own_decision_is_judged_where_it_is_asked_for_alone():
    def of_keras(checks):
        report = judge(record(SKIPPED), record(SKIPPED, SKIPPED), checks=checks)
        (rank,) = report.distributed.ranks
        rank = replace(rank, optimizers=(OF_KERAS,))
        return replace(report, distributed=replace(report.distributed, ranks=(rank,)))

    asked, compare_once = planted(SKIPPED, SKIPPED)
    report = nonfinite_probe.probe(of_keras(None), RunSettings(), compare_once)
    assert [settings.inject for settings in asked] == [()]
    assert "Keras 3's LossScaleOptimizer" in nonfinite(report).reason
    asked, compare_once = planted(SKIPPED, SKIPPED)
    nonfinite_probe.probe(of_keras(["NONFINITE"]), RunSettings(), compare_once)
    assert {(i.replica, i.variable) for settings in asked for i in settings.inject} == {(0, 0), (1, 0)}
