"""Values that a program changes after its last step, on records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.probes import stale as stale_probe
from pytest_ddl.equivalence.runs.slices import slices_to_recompute
from pytest_ddl.equivalence.verdict.judge import judge, needs_noise
from pytest_ddl.equivalence.verdict.own_precision import is_of_single_precision
from pytest_ddl.records import OptimizerRecord, VariableKind, VariableRecord

KERNEL, STATE, ITERATIONS, RATE, SLOT = 0, 3, 4, 5, 6
MOMENTUM = Program(momentum=0.9)


def ended(record, index, factor, cut_off=()):
    """The record of a program that multiplies a variable when its loop has ended."""
    ranks = []
    for rank in record.ranks:
        parts = tuple(value * factor for value in rank.steps[-1].snapshot[index])
        ranks.append(replace(rank, final={index: parts}, cut_off=cut_off))
    return replace(record, ranks=tuple(ranks))


def runs(index, ours, theirs, cut_off=()):
    reference, distributed = pair(MOMENTUM, replicas=2)
    return ended(reference, index, ours, cut_off), ended(distributed, index, theirs, cut_off)


@pytest.mark.parametrize(
    ("index", "check"),
    [
        (KERNEL, "STEP-EQ"),
        (STATE, "STATE-EQ"),
        (ITERATIONS, "OPT-STATE"),
        (RATE, "OPT-STATE"),
        (SLOT, "OPT-STATE"),
    ],
)
def test_another_change_after_the_last_step_is_a_finding(index, check):
    (found,) = judge(*runs(index, 1.0, 2.0)).findings
    assert (found.check, found.cause) == (check, "changed-after-last-step")


@pytest.mark.parametrize("index", [KERNEL, STATE, ITERATIONS, RATE, SLOT])
def test_the_same_change_passes(index):
    assert judge(*runs(index, 2.0, 2.0)).passed


def test_what_a_step_changed_in_part_is_not_decided():
    report = judge(*runs(KERNEL, 1.0, 2.0, cut_off=(KERNEL,)))
    assert report.verdict == "inconclusive"
    assert "assert_cardinality" in report.inconclusive[0]
    assert judge(*runs(KERNEL, 2.0, 2.0, cut_off=(KERNEL,))).passed


def test_a_counter_that_a_cut_off_step_moves_leaves_the_verdict():
    assert judge(*runs(KERNEL, 1.0, 2.0, cut_off=(ITERATIONS,))).verdict == "fail"


def test_a_counter_that_a_cut_off_step_moves_leaves_its_own_final_value_open():
    report = judge(*runs(RATE, 1.0, 2.0, cut_off=(ITERATIONS,)))
    assert [doubt.check for doubt in report.doubts] == ["OPT-STATE"]


def with_setting(record, momentum):
    """The record of a program that changes the momentum of its optimizer at its end."""
    optimizer = OptimizerRecord("SGD", {"momentum": 0.9}, {"momentum": momentum})
    return replace(record, ranks=tuple(replace(rank, optimizers=(optimizer,)) for rank in record.ranks))


@pytest.mark.parametrize(("theirs", "verdict"), [(0.5, "pass"), (0.9, "fail"), (0.25, "fail")])
def test_a_setting_that_is_changed_otherwise_at_the_end_is_a_finding(theirs, verdict):
    reference, distributed = pair(MOMENTUM, replicas=2)
    report = judge(with_setting(reference, 0.5), with_setting(distributed, theirs))
    assert report.verdict == verdict
    found = [(finding.cause, finding.variable) for finding in report.findings]
    assert found == [("changed-after-last-step", "SGD.momentum")] * (verdict == "fail")


def evaluated(record, total):
    """The record of a program that watches the total of a metric and evaluates when its loop has ended."""
    ranks = []
    index = len(record.variables)
    for rank in record.ranks:
        metric = VariableRecord(index, "error/total", VariableKind.METRIC, (), "float64")
        steps = tuple(replace(step, snapshot={**step.snapshot, index: (np.zeros(()),)}) for step in rank.steps)
        initial = {**rank.initial, index: (np.zeros(()),)}
        final = {index: (np.asarray(total),)}
        variables = (*rank.variables, metric)
        ranks.append(replace(rank, variables=variables, initial=initial, steps=steps, final=final))
    return replace(record, ranks=tuple(ranks))


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (1.0 + 2e-15, "pass"), (2.0, "fail")])
def test_the_state_of_a_metric_after_an_evaluation_is_compared(factor, verdict):
    reference, distributed = pair(MOMENTUM, replicas=2)
    report = judge(evaluated(reference, 7.0), evaluated(distributed, 7.0 * factor))
    assert report.verdict == verdict, str(report)
    assert [(found.check, found.cause) for found in report.findings] == [("METRIC-EQ", "metric-wrong")] * (factor > 1.5)


def watched_late(record, kind, first, last):
    """The record of a program that watches one more variable when its loop has ended, and then changes it."""
    ranks = []
    index = len(record.variables)
    for rank in record.ranks:
        value = VariableRecord(index, "late", kind, (), "float64", since=rank.num_steps)
        number = {index: (np.asarray(first),) * len(rank.replicas)}
        final = {index: (np.asarray(last),) * len(rank.replicas)}
        variables = (*rank.variables, value)
        ranks.append(replace(rank, variables=variables, initial={**rank.initial, **number}, final=final))
    return replace(record, ranks=tuple(ranks))


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (1.0 + 2e-15, "pass"), (2.0, "fail")])
@pytest.mark.parametrize(
    ("kind", "check"),
    [(VariableKind.TRAINABLE, "STEP-EQ"), (VariableKind.STATE, "STATE-EQ"), (VariableKind.SLOT, "OPT-STATE")],
)
def test_what_is_first_watched_after_the_last_step_is_compared_at_the_end(kind, check, factor, verdict):
    reference, distributed = pair(MOMENTUM, replicas=2)
    report = judge(watched_late(reference, kind, 1.0, 7.0), watched_late(distributed, kind, 1.0, 7.0 * factor))
    assert report.verdict == verdict, str(report)
    assert [(found.check, found.cause) for found in report.findings] == (
        [(check, "changed-after-last-step")] if verdict == "fail" else []
    )
    assert all("first watched after step" in found.message for found in report.findings)
    assert report.findings or any(entry.name == "late" and entry.at_end for entry in report.ledger.entries)


def test_a_bound_that_decides_nothing_about_a_variable_that_no_step_has_is_a_doubt():
    reference, distributed = pair(MOMENTUM, replicas=2)
    noisy = watched_late(reference, VariableKind.TRAINABLE, 1.0, 8.0)
    records = [
        watched_late(record, VariableKind.TRAINABLE, 1.0, last)
        for record, last in ((reference, 7.0), (distributed, 14.0))
    ]
    (doubt,) = judge(*records, perturbed=[noisy]).doubts
    assert "late" in doubt.reason


def test_nothing_more_is_run_for_a_verdict_about_final_values():
    report = judge(*runs(KERNEL, 1.0, 2.0))
    assert needs_noise(report)
    assert not slices_to_recompute(report)
    assert not stale_probe.wanted(report, ())
    assert not is_of_single_precision(report)


def test_a_final_value_that_is_off_by_the_rounding_of_float32_is_compared_in_its_own_precision():
    records = [
        replace(record, ranks=tuple(replace(rank, facts={**rank.facts, "single": (1, ())}) for rank in record.ranks))
        for record in runs(KERNEL, 1.0, 1.0 + 2.0**-24)
    ]
    assert is_of_single_precision(judge(*records))
    assert not is_of_single_precision(judge(*runs(KERNEL, 1.0, 1.0 + 2.0**-24)))
