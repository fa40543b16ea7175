"""A float64 comparison that differs by the rounding of float32 is made again in the program's own precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.own_precision import (
    has_cause_below_rounding,
    is_of_single_precision,
    named_in_own_precision,
)

ONE_THIRD_IN_SINGLE = 1.0 + 2.0**-25
CASTS = (1, ())


def noting(ours, theirs, **sin):
    """A pair of records with these casts to float32, and constants in it."""
    batches = sin.pop("batches", None)
    records = pair(Program(replicas=2, **({"batches": batches} if batches else {})), **sin)
    return [
        replace(record, ranks=tuple(replace(rank, facts={**rank.facts, "single": single}) for rank in record.ranks))
        for record, single in zip(records, (ours, theirs), strict=True)
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "may_round"),
    [
        (CASTS, CASTS, True),
        ((0, ()), (0, (3,)), True),
        ((0, (3,)), (0, (3,)), False),
        ((0, ()), (0, ()), False),
    ],
    ids=["casts", "a constant of one run", "a constant of both runs", "none"],
)
def test_a_factor_that_was_rounded_to_float32_is_a_matter_of_precision_if_there_are_casts(ours, theirs, may_round):
    report = judge(*noting(ours, theirs, scale=ONE_THIRD_IN_SINGLE))
    assert report.verdict == "fail"
    assert is_of_single_precision(report) is may_round


@pytest.mark.parametrize(
    "sin", [{"scale": 2.0}, {"scale": 0.5}, {"scale": 1.0 + 1e-4}, {"batches": (13, 13), "mean_of_means": True}]
)
def test_a_defect_is_not(sin):
    assert not is_of_single_precision(judge(*noting(CASTS, CASTS, **sin)))


def test_a_small_difference_with_a_recomputed_cause_is_not():
    report = judge(*noting(CASTS, CASTS, scale=ONE_THIRD_IN_SINGLE))
    assert is_of_single_precision(report)
    recomputed = [replace(finding, grounds=Grounds.RECOMPUTED) for finding in report.findings]
    assert not is_of_single_precision(replace(report, findings=tuple(recomputed)))


def test_a_pass_is_not_run_again():
    assert not is_of_single_precision(judge(*noting(CASTS, CASTS)))


@pytest.mark.parametrize(("error", "may_round"), [(2.0**-24, True), (1e-5, False)], ids=["rounding", "a defect"])
@pytest.mark.parametrize("kind", ["a named value", "a value of each replica", "state"])
def test_so_is_a_reported_number_or_a_state(kind, error, may_round):
    reference, distributed = noting(CASTS, CASTS)
    average = next(variable.index for variable in distributed.variables if variable.name == "ema/average")

    def valued(rank, factor):
        return replace(rank, steps=tuple(_changed(step, factor) for step in rank.steps))

    def _changed(step, factor):
        if kind == "state":
            values = tuple(value * factor for value in step.snapshot[average])
            return replace(step, snapshot={**step.snapshot, average: values})
        return replace(step, values={"error": 3.1 * step.index * factor})

    records = (
        replace(record, ranks=tuple(valued(rank, factor) for rank in record.ranks))
        for record, factor in ((reference, 1.0), (distributed, (1.0 + error) * (2 if "each" in kind else 1)))
    )
    report = judge(*records)
    assert report.verdict == "fail"
    assert is_of_single_precision(report) is may_round


def narrowing(narrowed, **sin):
    """A pair of records whose steps cast to float32."""
    return [
        replace(record, ranks=tuple(replace(rank, facts={**rank.facts, "narrowed": narrowed}) for rank in record.ranks))
        for record in pair(Program(replicas=2), **sin)
    ]


HALF = 0.5 + 2.0**-25
"""A factor that no cause reproduces in float64."""


@pytest.mark.parametrize(
    ("narrowed", "scale", "may_be_named"),
    [(True, HALF, True), (False, HALF, False), (True, 0.5, False), (True, 1.0, False)],
)
def test_a_cause_is_looked_for_in_the_own_precision_if_a_step_rounds_and_none_is_recomputed(
    narrowed, scale, may_be_named
):
    report = judge(*narrowing(narrowed, scale=scale))
    assert has_cause_below_rounding(report) is may_be_named


def test_the_own_precision_counts_if_it_names_the_cause_of_the_same_difference():
    report, named = (judge(*narrowing(True, scale=scale)) for scale in (HALF, 0.5))
    assert named_in_own_precision(report, named).findings == named.findings
    assert "own precision" in named_in_own_precision(report, named).notes[0]
    assert named_in_own_precision(report, report) is report
    later = replace(named, findings=tuple(replace(finding, step=3) for finding in named.findings))
    assert named_in_own_precision(report, later) is report
    assert named_in_own_precision(report, judge(*narrowing(True))) is report
