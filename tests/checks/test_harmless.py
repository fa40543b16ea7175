"""Each reason that hides no defect, both ways: the program that it excuses passes, and a defect beside it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.findings import Reason
from pytest_ddl.equivalence.ledger import HARMLESS
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import RankRecord, StepRecord, TrainingRecord, VariableKind

NAN, INF = float("nan"), float("inf")


def on_ranks(record: TrainingRecord, change: Callable[[RankRecord], RankRecord]) -> TrainingRecord:
    return replace(record, ranks=tuple(map(change, record.ranks)))


def in_steps(record: TrainingRecord, change: Callable[[StepRecord], StepRecord]) -> TrainingRecord:
    return on_ranks(record, lambda rank: replace(rank, steps=tuple(map(change, rank.steps))))


def with_value(record: TrainingRecord, name: str, number: float) -> TrainingRecord:
    return in_steps(record, lambda step: replace(step, values={name: number}))


def of_values(name: str, ours: float, theirs: float) -> Report:
    reference, distributed = pair(Program(replicas=2, workers=2))
    return judge(with_value(reference, name, ours), with_value(distributed, name, theirs))


def reasons(report: Report) -> set[Reason | None]:
    """Return why entries of the ledger were not compared, and what the checks name themselves."""
    named = {item.reason for result in report.results for item in result.unjudged}
    return {entry.reason for entry in report.ledger.entries} | named


@pytest.mark.parametrize("number", [NAN, INF, -INF])
def test_a_value_that_is_not_finite_in_both_runs_is_harmless(number: float) -> None:
    report = of_values("score", number, number)
    assert report.passed, str(report)
    assert Reason.NOT_FINITE in reasons(report)


@pytest.mark.parametrize(("ours", "theirs"), [(1.0, NAN), (NAN, 1.0), (INF, -INF), (INF, NAN), (1.0, INF)])
def test_a_value_that_is_not_finite_in_another_way_is_a_finding(ours: float, theirs: float) -> None:
    assert [finding.variable for finding in of_values("score", ours, theirs).findings] == ["score"]


def test_a_result_that_is_finite_in_part_is_compared() -> None:
    def predicted(record: TrainingRecord, last: float) -> TrainingRecord:
        rows = np.asarray([[NAN], [last]])
        return on_ranks(record, lambda rank: replace(rank, results={"predict": rows}, result_steps={"predict": 3}))

    reference, distributed = pair(Program(replicas=2))
    assert judge(predicted(reference, 1.0), predicted(distributed, 1.0)).passed
    assert judge(predicted(reference, 1.0), predicted(distributed, 2.0)).verdict == "fail"


def of_noise(ours: Sequence[float], theirs: float, again: float) -> Report:
    """Judge a value with a measured noise, and its value in a second run of one device."""
    reference, distributed = pair(Program(replicas=2))
    first, *noisy = (with_value(reference, "seconds", number) for number in ours)
    return judge(
        first, with_value(distributed, "seconds", theirs), noisy, again=with_value(reference, "seconds", again)
    )


def test_a_value_that_one_device_does_not_repeat_is_harmless() -> None:
    report = of_noise([1.0, 1.2, 0.9, 1.1], 3.0, 1.3)
    assert report.passed, str(report)
    assert Reason.NOT_REPRODUCIBLE in reasons(report)


@pytest.mark.parametrize(
    ("ours", "theirs", "again", "verdict"),
    [
        ([1.0, 1.2, 0.9, 1.1], 1e6, 1.0, "fail"),
        ([1.0, 1.2, 0.9, 1.1], 1.3, 1.0, "inconclusive"),
        ([1.0, 1.2, 0.9, 1.1], INF, 1.3, "fail"),
        ([1.0, 1.0, 1.0, 1.0], 3.0, 1.3, "fail"),
    ],
    ids=["repeated", "repeated within the noise", "not finite", "without noise"],
)
def test_noise_does_not_excuse_what_one_device_repeats(
    ours: Sequence[float], theirs: float, again: float, verdict: str
) -> None:
    assert of_noise(ours, theirs, again).verdict == verdict


@pytest.mark.parametrize(("name", "ours", "theirs"), [("num_replicas", 1, 2), ("numWorkers", 1, 2), ("rank", 0, 1)])
def test_a_number_of_ranks_is_harmless(name: str, ours: float, theirs: float) -> None:
    if name == "rank":
        reference, distributed = pair(Program(replicas=2, workers=2))
        ranked = on_ranks(
            distributed,
            lambda rank: replace(rank, steps=tuple(replace(s, values={name: rank.rank}) for s in rank.steps)),
        )
        report = judge(with_value(reference, name, ours), ranked)
    else:
        report = of_values(name, ours, theirs)
    assert report.passed, str(report)
    assert Reason.OF_A_PLACE in reasons(report)


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [
        *(("num_replicas", 1, 3), ("num_replicas", 3, 2), ("accuracy", 1, 2), ("rank", 0, 5)),
        *(("multitask_loss", 1, 2), ("task_recall", 1, 2), ("devices_found_again", 1, 2)),
    ],
)
def test_another_number_under_such_a_name_is_a_finding(name: str, ours: float, theirs: float) -> None:
    assert [finding.variable for finding in of_values(name, ours, theirs).findings] == [name]


@pytest.mark.parametrize(
    ("names", "verdict"),
    [(["loss[1]"], "pass"), (["replica 1 loss"], "pass"), (["replica 1 loss#2"], "pass"), (["other"], "inconclusive")],
)
def test_a_value_of_one_replica_has_no_counterpart(names: Sequence[str], verdict: str) -> None:
    reference, distributed = pair(Program(replicas=2))
    local = in_steps(distributed, lambda step: replace(step, values=dict.fromkeys(names, 0.5)))
    assert judge(reference, local).verdict == verdict


def idle(record: TrainingRecord, index: int, moves_at: int | None = None) -> TrainingRecord:
    """The record of a program that watches an optimizer and does not use it, and a weight that stands still."""
    (counter,) = (v.index for v in record.variables if v.kind is VariableKind.ITERATIONS)

    def still(rank: RankRecord, step: StepRecord) -> StepRecord:
        parts = rank.initial[index]
        moved = moves_at is not None and step.index >= moves_at
        value = tuple(part + 1.0 for part in parts) if moved else parts
        return replace(step, snapshot={**step.snapshot, index: value, counter: rank.initial[counter]})

    return on_ranks(record, lambda rank: replace(rank, steps=tuple(still(rank, step) for step in rank.steps)))


def test_a_weight_that_stands_still_while_an_optimizer_is_idle_is_harmless() -> None:
    reference, distributed = pair(Program(replicas=2))
    report = judge(idle(reference, 1), idle(distributed, 1))
    assert report.passed, str(report)
    assert Reason.NO_UPDATE in reasons(report)


@pytest.mark.parametrize("moves_at", [1, 3])
def test_a_weight_that_moves_only_under_the_strategy_is_a_finding(moves_at: int) -> None:
    reference, distributed = pair(Program(replicas=2))
    report = judge(idle(reference, 1), idle(distributed, 1, moves_at))
    assert [(finding.check, finding.step) for finding in report.findings] == [("STEP-EQ", moves_at)]


@pytest.mark.parametrize(("resumed", "verdict"), [(True, "pass"), (False, "inconclusive")])
def test_only_an_interrupted_run_has_a_shorter_history(resumed: bool, verdict: str) -> None:
    def fitted(record: TrainingRecord, entries: int, **more: Any) -> TrainingRecord:
        history = {"fit": {"loss": [0.5] * entries}}
        return on_ranks(record, lambda rank: replace(rank, results=history, result_steps={"fit": 3}, **more))

    reference, distributed = pair(Program(replicas=2))
    values = distributed.ranks[0].steps[0].snapshot
    more = {"resumed": {1: values}} if resumed else {}
    report = judge(fitted(reference, 3), fitted(distributed, 2, **more))
    assert report.verdict == verdict, str(report)
    assert (Reason.OF_AN_ATTEMPT in reasons(report)) is resumed


def test_an_excused_finding_accounts_only_for_itself() -> None:
    reference, distributed = pair(Program(replicas=2), loss="first")
    report = judge(reference, distributed, expect=["reported-loss-wrong"])
    assert report.passed
    assert Reason.FINDING in reasons(report)
    wrong = with_value(distributed, "score", 2.0)
    assert judge(with_value(reference, "score", 1.0), wrong, expect=["reported-loss-wrong"]).verdict == "fail"


def test_these_tests_cover_all_harmless_reasons() -> None:
    assert {reason.name for reason in HARMLESS} == {
        "NOT_FINITE",
        "NOT_REPRODUCIBLE",
        "OF_A_PLACE",
        "NO_UPDATE",
        "OF_AN_ATTEMPT",
        "FINDING",
    }
