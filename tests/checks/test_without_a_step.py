"""Simulated records of calls that the limit of steps left without a step: no pass, and no doubt in repeated runs."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.runs.resuming import joined
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import CallSite, TrainingRecord

Ends = tuple[int, ...]
HERE = os.path.join(os.getcwd(), "train.py")
FIRST = CallSite("run.steps", "train.py:3", ((HERE, 20, 8), (HERE, 39, 2)), 3)
SECOND = CallSite("run.steps", "train.py:9", ((HERE, 20, 8), (HERE, 40, 2)), 3)


def limited(record: TrainingRecord, ran: dict[CallSite, bool]) -> TrainingRecord:
    ranks = (replace(rank, facts={**rank.facts, "call_sites": ran}) for rank in record.ranks)
    return replace(record, ranks=tuple(ranks))


def records(ran: dict[CallSite, bool], **sins: object) -> tuple[TrainingRecord, TrainingRecord]:
    reference, distributed = pair(Program(replicas=2), **sins)
    return limited(reference, ran), limited(distributed, ran)


def test_a_call_without_a_step_is_no_pass_and_lies_in_the_program() -> None:
    report = judge(*records({FIRST: True, SECOND: False}))
    told = (
        "RUN: steps=3 was used up before run.steps at train.py:20, called from train.py:40 began, so "
        "it was not compared: raise steps= or leave it out"
    )
    assert (report.verdict, report.inconclusive, report.program_reasons) == ("inconclusive", (told,), (told,))


def test_it_is_reported_whatever_checks_were_named() -> None:
    assert judge(*records({FIRST: True, SECOND: False}), checks=["LOSS-EQ"]).verdict == "inconclusive"


@pytest.mark.parametrize("fact", ["cut", "cut_fits"])
@pytest.mark.parametrize(("ours", "theirs"), [((100,), (50,)), ((), (50,)), ((100,), ()), ((4, 8), (4, 8, 12))])
def test_loops_of_another_length_that_the_limit_ended_are_no_pass(fact: str, ours: Ends, theirs: Ends) -> None:
    reference, distributed = pair(Program(replicas=2))
    report = judge(with_fact(reference, fact, ours), with_fact(distributed, fact, theirs))
    assert (report.verdict, [doubt.check for doubt in report.doubts]) == ("inconclusive", ["RUN"])
    assert judge(with_fact(reference, fact, ours), with_fact(distributed, fact, ours)).passed
    # A repeated comparison has a limit of its own.
    assert judge(with_fact(reference, fact, ours), with_fact(distributed, fact, theirs), repeated=True).passed


def test_a_run_that_was_interrupted_counts_from_another_step() -> None:
    reference, distributed = pair(Program(replicas=2))
    resumed = with_fact(distributed, "cut", (150,))
    rank = replace(resumed.ranks[0], resumed={1: distributed.ranks[0].steps[0].snapshot})
    assert judge(with_fact(reference, "cut", (100,)), replace(resumed, ranks=(rank,))).passed


def with_fact(record: TrainingRecord, name: str, ends: Ends) -> TrainingRecord:
    return replace(record, ranks=tuple(replace(rank, facts={**rank.facts, name: ends}) for rank in record.ranks))


def test_calls_that_all_ran_pass() -> None:
    assert judge(*records({FIRST: True, SECOND: True})).passed


def test_a_difference_that_was_found_is_a_failure_all_the_same() -> None:
    assert judge(*records({FIRST: True, SECOND: False}, scale=2.0)).verdict == "fail"


def test_runs_that_repeat_others_are_not_doubted_for_it() -> None:
    assert judge(*records({FIRST: True, SECOND: False}), repeated=True).passed


def test_a_call_that_ran_before_an_interruption_need_not_run_after_it() -> None:
    _reference, distributed = pair(Program(replicas=2))
    (rank,) = distributed.ranks
    before, after = (replace(rank, facts={"call_sites": {FIRST: ran, SECOND: not ran}}) for ran in (True, False))
    both = joined(before, after, rank.num_steps).facts["call_sites"]
    assert both == {FIRST: True, SECOND: True}
