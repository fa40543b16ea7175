"""Values that a program changes after its last step, on records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.probes import stale as stale_probe
from pytest_ddl.equivalence.runs.slices import slices_to_recompute
from pytest_ddl.equivalence.verdict.judge import judge, needs_noise
from pytest_ddl.equivalence.verdict.single_precision import is_of_single_precision

KERNEL, STATE, ITERATIONS = 0, 3, 4


def ended(record, index, factor, cut_off=()):
    """The record of a program that multiplies a variable when its loop has ended."""
    ranks = []
    for rank in record.ranks:
        parts = tuple(value * factor for value in rank.steps[-1].snapshot[index])
        ranks.append(replace(rank, final={index: parts}, cut_off=cut_off))
    return replace(record, ranks=tuple(ranks))


def runs(index, ours, theirs, cut_off=()):
    reference, distributed = pair(Program(), replicas=2)
    return ended(reference, index, ours, cut_off), ended(distributed, index, theirs, cut_off)


@pytest.mark.parametrize(("index", "check"), [(KERNEL, "STEP-EQ"), (STATE, "STATE-EQ")])
def test_another_change_after_the_last_step_is_a_finding(index, check):
    (found,) = judge(*runs(index, 1.0, 2.0)).findings
    assert (found.check, found.cause) == (check, "changed-after-last-step")


@pytest.mark.parametrize("index", [KERNEL, STATE])
def test_the_same_change_passes(index):
    assert judge(*runs(index, 2.0, 2.0)).passed


def test_what_a_step_changed_in_part_is_not_decided():
    report = judge(*runs(KERNEL, 1.0, 2.0, cut_off=(KERNEL,)))
    assert report.verdict == "inconclusive"
    assert "assert_cardinality" in report.inconclusive[0]
    assert judge(*runs(KERNEL, 2.0, 2.0, cut_off=(KERNEL,))).passed


def test_a_counter_that_a_cut_off_step_moves_leaves_the_verdict():
    assert judge(*runs(KERNEL, 1.0, 2.0, cut_off=(ITERATIONS,))).verdict == "fail"


def test_nothing_more_is_run_for_a_verdict_about_final_values():
    report = judge(*runs(KERNEL, 1.0, 2.0))
    assert needs_noise(report)
    assert not slices_to_recompute(report)
    assert not stale_probe.wanted(report, ())
    assert not is_of_single_precision(report)


def test_a_final_value_that_is_off_by_the_rounding_of_float32_is_compared_in_its_own_precision():
    assert is_of_single_precision(judge(*runs(KERNEL, 1.0, 1.0 + 2.0**-24)))
