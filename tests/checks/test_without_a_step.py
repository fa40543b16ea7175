"""Simulated records of calls that the limit of steps left without a step: no pass, and no doubt in repeated runs."""

from __future__ import annotations

import os
from dataclasses import replace

from simulated_training import Program, pair

from pytest_ddl.equivalence.runs.resuming import joined
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import CallSite, TrainingRecord

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


def test_it_is_told_whatever_checks_were_named() -> None:
    assert judge(*records({FIRST: True, SECOND: False}), checks=["LOSS-EQ"]).verdict == "inconclusive"


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
