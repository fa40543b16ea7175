"""A value that only one side recorded, or that is another kind of number there, is never ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import RankRecord, StepRecord, TrainingRecord, VariableKind, VariableRecord

NAN, INF = float("nan"), float("inf")
STATE, SLOT, LAST = 3, 6, 6
Records = tuple[TrainingRecord, TrainingRecord]


def each_step(record: TrainingRecord, change: Callable[[RankRecord, StepRecord], StepRecord]) -> TrainingRecord:
    """The record with every step of every rank changed."""
    ranks = tuple(replace(rank, steps=tuple(change(rank, step) for step in rank.steps)) for rank in record.ranks)
    return replace(record, ranks=ranks)


def with_values(record: TrainingRecord, values: Callable[[int, int], Mapping[str, float]]) -> TrainingRecord:
    return each_step(record, lambda rank, step: replace(step, values=values(rank.rank, step.index)))


def with_losses(record: TrainingRecord, keep: Callable[[int, int], bool]) -> TrainingRecord:
    """The record with losses only on the ranks and in the steps that ``keep`` allows."""
    return each_step(record, lambda rank, step: step if keep(rank.rank, step.index) else replace(step, loss=None))


def with_results(record: TrainingRecord, results: Mapping[str, Any], step: int = 3) -> TrainingRecord:
    ranks = tuple(replace(rank, results=results, result_steps=dict.fromkeys(results, step)) for rank in record.ranks)
    return replace(record, ranks=ranks)


def with_state(record: TrainingRecord, value: Callable[[int], float], index: int = STATE) -> TrainingRecord:
    """The record with another value of a variable after each step, the same on all replicas."""

    def change(_rank: RankRecord, step: StepRecord) -> StepRecord:
        parts = tuple(np.full_like(part, value(step.index)) for part in step.snapshot[index])
        return replace(step, snapshot={**step.snapshot, index: parts})

    return each_step(record, change)


def with_metric(record: TrainingRecord, count: int, ranks: tuple[int, ...] | None = None) -> TrainingRecord:
    """The record with some more watched metrics, on some ranks."""
    made = []
    for rank in record.ranks:
        number = count if ranks is None or rank.rank in ranks else 0
        places = range(LAST, LAST + number)
        names = tuple(VariableRecord(at, f"mean_{at}/total", VariableKind.METRIC, (), "float64") for at in places)
        held = {at: (np.asarray(4.0),) for at in places}
        steps = tuple(replace(step, snapshot={**step.snapshot, **held}) for step in rank.steps)
        made.append(replace(rank, variables=(*rank.variables, *names), steps=steps))
    return replace(record, ranks=tuple(made))


def reason(report: Report, check: str) -> str:
    (result,) = (result for result in report.results if result.check == check)
    assert result.outcome is Outcome.INCONCLUSIVE, str(report)
    assert report.verdict == "inconclusive"
    return result.reason


@pytest.fixture
def records() -> Records:
    return pair(Program(replicas=2))


@pytest.fixture
def workers() -> Records:
    return pair(Program(replicas=2, workers=2))


# -- losses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "told"),
    [
        (lambda step: step == 1, "on one device in steps 1 to 3, under the strategy (local) in step 1"),
        (lambda step: step != 2, "under the strategy (local) in steps 1, 3"),
        (lambda step: False, "under the strategy (local) never"),
    ],
)
def test_a_loss_in_some_steps_only_is_reported(records: Records, keep: Callable[[int], bool], told: str) -> None:
    reference, distributed = records
    partial = with_losses(distributed, lambda _rank, step: keep(step))
    assert told in reason(judge(reference, partial), "LOSS-EQ")
    reverse = with_losses(reference, lambda _rank, step: keep(step))
    assert "on one side only" in reason(judge(reverse, distributed), "LOSS-EQ")


def test_losses_every_second_step_on_both_sides_are_compared(records: Records) -> None:
    report = judge(*(with_losses(record, lambda _rank, step: step % 2 == 1) for record in records))
    assert report.passed, str(report)


def test_one_rank_may_record_the_loss_for_all(workers: Records) -> None:
    reference, distributed = workers
    report = judge(reference, with_losses(distributed, lambda rank, _step: rank == 0))
    assert report.passed, str(report)
    report = judge(reference, with_losses(distributed, lambda rank, step: rank == 0 or step == 1))
    assert "(worker:1) in step 1" in reason(report, "LOSS-EQ")


# -- named values and results ------------------------------------------------------------------------


def test_a_named_value_of_one_side_is_reported(records: Records) -> None:
    reference, distributed = records
    named = lambda _rank, _step: {"accuracy": 0.5}  # noqa: E731
    missing = reason(judge(with_values(reference, named), distributed), "METRIC-EQ")
    assert "accuracy (on one device in steps 1 to 3, under the strategy (local) never)" in missing
    assert "accuracy (on one device never" in reason(judge(reference, with_values(distributed, named)), "METRIC-EQ")
    other = with_values(distributed, lambda _rank, _step: {"accuracy": 0.5, "recall": 0.5})
    assert "recall" in reason(judge(with_values(reference, named), other), "METRIC-EQ")


def test_values_of_single_replicas_and_of_one_rank_need_no_counterpart(workers: Records) -> None:
    reference, distributed = workers
    ours = with_values(reference, lambda _rank, _step: {"loss/replica_0": 0.5, "accuracy": 0.5})
    theirs = with_values(
        distributed,
        lambda rank, _step: {"loss/replica_0": 0.5, "loss/replica_1": 0.7, **({} if rank else {"accuracy": 0.5})},
    )
    report = judge(ours, theirs)
    assert report.passed, str(report)


def test_a_value_after_weights_differ_needs_no_counterpart(records: Records) -> None:
    reference, _distributed = records
    reference, distributed = pair(Program(replicas=2), scale=2.0)
    report = judge(with_values(reference, lambda _rank, _step: {"accuracy": 0.5}), distributed)
    assert [finding.check for finding in report.findings] == ["STEP-EQ"]
    assert not report.inconclusive


@pytest.mark.parametrize("results", [{"evaluate": [0.3, 0.5]}, {"predict": np.ones((3, 2))}, {"fit": {"loss": [0.1]}}])
def test_a_call_of_one_side_is_reported(records: Records, results: Mapping[str, Any]) -> None:
    reference, distributed = records
    (name,) = results
    assert f"{name}" in reason(judge(with_results(reference, results), distributed), "METRIC-EQ")
    told = reason(judge(reference, with_results(distributed, results)), "METRIC-EQ")
    assert "(on one device never, under the strategy (local) after step 3)" in told


def test_a_history_of_another_length_is_reported(records: Records) -> None:
    ours, theirs = ({"fit": {"loss": [0.1] * number}} for number in (2, 3))
    report = judge(with_results(records[0], ours), with_results(records[1], theirs))
    assert "2 entries on one device, 3 under the strategy" in reason(report, "METRIC-EQ")


def test_one_rank_may_evaluate_for_all(workers: Records) -> None:
    reference, distributed = workers
    first, second = with_results(distributed, {"evaluate": [0.3]}).ranks[0], distributed.ranks[1]
    report = judge(with_results(reference, {"evaluate": [0.3]}), replace(distributed, ranks=(first, second)))
    assert report.passed, str(report)


@pytest.mark.parametrize("side", [0, 1])
def test_example_ids_of_one_side_are_reported(records: Records, side: int) -> None:
    """Contents decide if they were observed; here they were not."""

    def without(_rank: RankRecord, step: StepRecord) -> StepRecord:
        return replace(step, batches=tuple(replace(batch, example_ids=None) for batch in step.batches))

    changed = [each_step(record, without) if at == side else record for at, record in enumerate(records)]
    assert "example ids were reported on one side only" in reason(judge(*changed, checks=["DATA-COVER"]), "DATA-COVER")
    silent = [each_step(record, without) for record in records]
    assert not judge(*silent, checks=["DATA-COVER"]).inconclusive


# -- watched variables -------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [(1, 0), (0, 1), (1, 2)])
def test_a_metric_watched_on_one_side_is_a_finding(records: Records, ours: int, theirs: int) -> None:
    report = judge(with_metric(records[0], ours), with_metric(records[1], theirs))
    assert [(finding.check, finding.cause) for finding in report.findings] == [("METRIC-EQ", "metric-wrong")]
    assert report.findings[0].expected == f"{ours} metric"


def test_one_rank_may_watch_a_metric_for_all(workers: Records) -> None:
    report = judge(with_metric(workers[0], 1), with_metric(workers[1], 1, ranks=(0,)))
    assert report.passed, str(report)


def test_every_rank_must_watch_the_weights(workers: Records) -> None:
    reference, distributed = workers
    blind = replace(distributed.ranks[1], variables=(), initial={})
    blind = replace(blind, steps=tuple(replace(step, snapshot={}) for step in blind.steps))
    report = judge(reference, replace(distributed, ranks=(distributed.ranks[0], blind)), checks=["STEP-EQ"])
    assert report.findings[0].message == "0 weights are watched under the strategy (worker:1), 3 on one device"


def test_weights_that_are_watched_in_another_order_are_a_finding(records: Records) -> None:
    """Values are paired by the place at which a variable was watched."""
    reference, distributed = records
    (rank,) = distributed.ranks
    moved = tuple(
        replace(variable, index={0: 3, 3: 0}.get(variable.index, variable.index)) for variable in rank.variables
    )
    report = judge(reference, replace(distributed, ranks=(replace(rank, variables=moved),)), checks=["STEP-EQ"])
    assert report.findings[0].message.endswith("is watched in another order than on one device")


@pytest.mark.parametrize(("index", "check"), [(0, "STEP-EQ"), (STATE, "STATE-EQ"), (4, "OPT-STATE")])
@pytest.mark.parametrize("side", [0, 1])
def test_a_variable_that_one_side_stops_recording_is_named(records: Records, index: int, check: str, side: int) -> None:
    def without(_rank: RankRecord, step: StepRecord) -> StepRecord:
        kept = {at: value for at, value in step.snapshot.items() if at != index or step.index < 2}
        return replace(step, snapshot=kept)

    changed = [each_step(record, without) if at == side else record for at, record in enumerate(records)]
    told = reason(judge(*changed, checks=[check]), check)
    assert told.endswith("only after step 2")


# -- numbers of another kind -------------------------------------------------------------------------

KINDS = [(NAN, 0.7), (0.7, NAN), (INF, 0.7), (0.7, INF), (INF, -INF), (NAN, INF)]


@pytest.mark.parametrize(("ours", "theirs"), KINDS)
def test_a_value_of_another_kind_is_a_finding(records: Records, ours: float, theirs: float) -> None:
    left, right = (
        with_values(record, lambda _rank, _step, value=value: {"accuracy": value})
        for record, value in zip(records, (ours, theirs), strict=True)
    )
    report = judge(left, right)
    assert [(finding.check, finding.variable) for finding in report.findings] == [("METRIC-EQ", "accuracy")]


@pytest.mark.parametrize(("ours", "theirs"), KINDS)
def test_a_result_of_another_kind_is_a_finding(records: Records, ours: float, theirs: float) -> None:
    left, right = (
        with_results(record, {"predict": np.asarray([[0.5], [value]])})
        for record, value in zip(records, (ours, theirs), strict=True)
    )
    assert [finding.check for finding in judge(left, right).findings] == ["METRIC-EQ"]


@pytest.mark.parametrize(("ours", "theirs"), KINDS)
def test_state_of_another_kind_is_a_finding(records: Records, ours: float, theirs: float) -> None:
    left, right = (
        with_state(record, lambda step, value=value: value if step == 2 else 1.0)
        for record, value in zip(records, (ours, theirs), strict=True)
    )
    (finding,) = judge(left, right).findings
    assert (finding.check, finding.step) == ("STATE-EQ", 2)


@pytest.mark.parametrize(("ours", "theirs"), KINDS)
def test_a_loss_of_another_kind_is_a_finding(records: Records, ours: float, theirs: float) -> None:
    left, right = (
        each_step(record, lambda _rank, step, value=value: replace(step, loss=value))
        for record, value in zip(records, (ours, theirs), strict=True)
    )
    assert [finding.check for finding in judge(left, right).findings] == ["LOSS-EQ"]


def test_state_that_is_alike_not_finite_does_not_end_the_comparison(records: Records) -> None:
    """A best value starts at infinity."""
    best = [with_state(record, lambda step: INF if step == 1 else 1.0 / step) for record in records]
    assert judge(*best).passed
    wrong = with_state(records[1], lambda step: INF if step == 1 else 2.0 / step)
    assert [finding.step for finding in judge(best[0], wrong).findings] == [2]


def test_slots_that_are_alike_not_finite_do_not_hide_others() -> None:
    records = pair(Program(replicas=2, momentum=0.9))
    first, second = SLOT, SLOT + 1
    broken = [with_state(record, lambda _step: NAN, first) for record in records]
    assert judge(*broken, checks=["OPT-STATE"]).passed
    wrong = with_state(broken[1], lambda step: 7.0 if step == 3 else NAN, second)
    report = judge(with_state(broken[0], lambda step: 1.0 if step == 3 else NAN, second), wrong, checks=["OPT-STATE"])
    assert [finding.check for finding in report.findings] == ["OPT-STATE"]


def test_rounding_that_decides_whether_a_number_is_finite_is_no_finding(records: Records) -> None:
    """The logarithm of a probability that rounds to zero, on one device as well."""
    values = lambda number: lambda _rank, _step: {"log": number}  # noqa: E731
    noise = [with_values(records[0], values(-745.0)), with_values(records[0], values(-INF))]
    report = judge(with_values(records[0], values(-INF)), with_values(records[1], values(-745.0)), noise)
    assert not report.findings, str(report)
    shaky = [with_state(records[0], lambda _step: 1.0)]
    report = judge(
        with_state(records[0], lambda _step: NAN), with_state(records[1], lambda _step: 1.0), shaky, checks=["STATE-EQ"]
    )
    assert not report.findings, str(report)
    assert report.verdict == "inconclusive"
