"""A quantity that lacks a record under the strategy, or is wrong before the first step, never passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.checks.batch import check_batch
from pytest_ddl.equivalence.checks.collective_value import check_collective_value
from pytest_ddl.equivalence.checks.data_cover import check_data_cover
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.records import ReductionRecord, StepRecord, TrainingRecord, VariableKind, VariableRecord

KERNEL, STATE, ITERATIONS, RATE, SLOT, METRIC = 0, 3, 4, 5, 6, 8
CHECKS = {KERNEL: "STEP-EQ", STATE: "STATE-EQ", ITERATIONS: "OPT-STATE", RATE: "OPT-STATE", SLOT: "OPT-STATE"}
MOMENTUM = Program(momentum=0.9)


def on_rank(record: TrainingRecord, **changes: Any) -> TrainingRecord:
    return replace(record, ranks=(replace(record.ranks[0], **changes), *record.ranks[1:]))


def on_step(record: TrainingRecord, step: int, **changes: Any) -> TrainingRecord:
    steps = list(record.ranks[0].steps)
    steps[step - 1] = replace(steps[step - 1], **changes)
    return on_rank(record, steps=tuple(steps))


@pytest.mark.parametrize("index", CHECKS)
def test_an_initial_value_that_is_missing_is_a_doubt(index: int) -> None:
    reference, distributed = pair(MOMENTUM, replicas=2)
    initial = {key: value for key, value in distributed.ranks[0].initial.items() if key != index}
    report = judge(reference, on_rank(distributed, initial=initial))
    assert [doubt.check for doubt in report.doubts] == [CHECKS[index]]


@pytest.mark.parametrize("index", CHECKS)
@pytest.mark.parametrize("step", [0, 2])
def test_a_component_that_is_missing_is_a_doubt(index: int, step: int) -> None:
    reference, distributed = pair(MOMENTUM, replicas=2)
    rank = distributed.ranks[0]
    snapshot = dict(rank.initial if step == 0 else rank.steps[step - 1].snapshot)
    snapshot[index] = snapshot[index][:1]
    changed = on_step(distributed, step, snapshot=snapshot) if step else on_rank(distributed, initial=snapshot)
    report = judge(reference, changed)
    assert CHECKS[index] in [doubt.check for doubt in report.doubts]


@pytest.mark.parametrize(
    ("index", "cause"),
    [
        (ITERATIONS, "iteration-count-wrong"),
        (RATE, "learning-rate-differs"),
        (SLOT, "optimizer-state-mismatch"),
    ],
)
def test_a_wrong_state_of_the_optimizer_before_the_first_step_is_a_finding(index: int, cause: str) -> None:
    reference, distributed = pair(MOMENTUM, replicas=2)
    initial = dict(distributed.ranks[0].initial)
    initial[index] = tuple(value + value.dtype.type(1) for value in initial[index])
    (finding,) = judge(reference, on_rank(distributed, initial=initial)).findings
    assert (finding.check, finding.cause, finding.step) == ("OPT-STATE", cause, 0)


def with_metric(record: TrainingRecord, initial: float) -> TrainingRecord:
    (rank,) = record.ranks
    variable = VariableRecord(METRIC, "mean/total", VariableKind.METRIC, (), "float64")
    steps = [
        replace(step, snapshot={**step.snapshot, METRIC: (np.float64(step.index) * np.ones(()),)})
        for step in rank.steps
    ]
    values = {**rank.initial, METRIC: (np.asarray(initial),)}
    return on_rank(record, variables=(*rank.variables, variable), steps=tuple(steps), initial=values)


@pytest.mark.parametrize(("initial", "causes"), [(0.0, []), (3.0, ["metric-wrong"])])
def test_a_metric_is_compared_before_the_first_step(initial: float, causes: list[str]) -> None:
    reference, distributed = pair(MOMENTUM, replicas=2)
    report = judge(with_metric(reference, 0.0), with_metric(distributed, initial))
    assert [(finding.cause, finding.step) for finding in report.findings] == [(cause, 0) for cause in causes]


@pytest.mark.parametrize(("final", "doubts"), [({}, []), (None, ["STEP-EQ", "STATE-EQ"])])
def test_values_at_the_end_of_the_program_that_are_missing_are_a_doubt(final: Any, doubts: list[str]) -> None:
    reference, distributed = pair(Program(), replicas=2)
    report = judge(on_rank(reference, final={}), on_rank(distributed, final=final))
    assert [doubt.check for doubt in report.doubts] == doubts


def with_reductions(record: TrainingRecord, replicas: int) -> TrainingRecord:
    """The record of a program that reduces two numbers in each step."""

    def reduced(step: StepRecord) -> StepRecord:
        given = [np.asarray(float(step.index + replica)) for replica in range(replicas)]
        made = [
            ReductionRecord(replica, position, "SUM", "float64", given[replica], np.asarray(sum(given)))
            for position in range(2)
            for replica in range(replicas)
        ]
        return replace(step, reductions=tuple(made))

    return on_rank(record, steps=tuple(map(reduced, record.ranks[0].steps)))


def judged(check: Any, reference: TrainingRecord, distributed: TrainingRecord) -> CheckResult:
    return check(Comparison(reference, distributed, Tolerance(reference)))


def test_a_reduction_of_some_replicas_only_is_a_doubt() -> None:
    reference, distributed = pair(Program(), replicas=2)
    reference, distributed = with_reductions(reference, 1), with_reductions(distributed, 2)
    assert judged(check_collective_value, reference, distributed).outcome is Outcome.PASS
    less = on_step(distributed, 2, reductions=distributed.ranks[0].steps[1].reductions[:-1])
    assert judged(check_collective_value, reference, less).outcome is Outcome.INCONCLUSIVE


def test_reductions_of_one_step_that_are_missing_are_a_doubt() -> None:
    reference, distributed = pair(Program(), replicas=2)
    reference, distributed = with_reductions(reference, 1), with_reductions(distributed, 2)
    less = on_step(distributed, 2, reductions=())
    assert judged(check_collective_value, reference, less).outcome is Outcome.INCONCLUSIVE
    never = with_reductions(distributed, 0)
    assert judged(check_collective_value, reference, never).outcome is Outcome.NOT_APPLICABLE


def test_a_wrong_reduction_of_a_single_replica_is_a_finding() -> None:
    reference, distributed = pair(Program(), replicas=1)
    reference, distributed = with_reductions(reference, 1), with_reductions(distributed, 1)
    assert judged(check_collective_value, reference, distributed).outcome is Outcome.PASS
    wrong = [replace(item, received=item.received + 1) for item in distributed.ranks[0].steps[0].reductions]
    distributed = on_step(distributed, 1, reductions=tuple(wrong))
    assert judged(check_collective_value, reference, distributed).outcome is Outcome.FAIL


@pytest.mark.parametrize("check", [check_batch, check_data_cover])
def test_batches_of_one_step_that_are_missing_are_a_doubt(check: Any) -> None:
    reference, distributed = pair(Program(), replicas=2)
    assert judged(check, reference, distributed).outcome is Outcome.PASS
    result = judged(check, reference, on_step(distributed, 2, batches=()))
    assert result.outcome is Outcome.INCONCLUSIVE


def test_examples_of_one_step_that_are_missing_are_a_doubt() -> None:
    reference, distributed = pair(Program(), replicas=2)
    nameless = tuple(replace(batch, example_ids=None) for batch in distributed.ranks[0].steps[1].batches)
    result = judged(check_data_cover, reference, on_step(distributed, 2, batches=nameless))
    assert result.outcome is Outcome.INCONCLUSIVE


def test_examples_of_one_replica_that_are_missing_are_a_doubt() -> None:
    reference, distributed = pair(Program(batches=(12,)), replicas=2)
    first, second = distributed.ranks[0].steps[0].batches
    batches = (first, replace(second, example_ids=None))
    result = judged(check_data_cover, reference, on_step(distributed, 1, batches=batches))
    assert result.outcome is Outcome.INCONCLUSIVE
