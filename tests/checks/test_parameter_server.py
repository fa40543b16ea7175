"""PS: asynchronous training that loses nothing passes; lost and repeated updates are counted and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.diagnosis.summed_updates import lost_from_weights
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Outcome
from pytest_ddl.equivalence.verdict.judge import judge
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import GradientRecord, GradientStage, TrainingRecord, VariableKind, VariableRecord
from pytest_ddl.strategies.spec import Capabilities

COUNTER, STEPS = 6, 8


def with_counter(record: TrainingRecord, kind: VariableKind, counts: list[float], name: str = "seen") -> TrainingRecord:
    """The record with a counter of the program, after each step; before the first it is 0."""
    (rank,) = record.ranks
    variable = VariableRecord(COUNTER, name, kind, (), "int64")
    steps = tuple(
        replace(step, snapshot={**step.snapshot, COUNTER: (np.asarray(count),)}) if step.snapshot else step
        for step, count in zip(rank.steps, counts, strict=True)
    )
    initial = {**rank.initial, COUNTER: (np.asarray(0),)}
    return replace(record, ranks=(replace(rank, variables=(*rank.variables, variable), initial=initial, steps=steps),))


def asynchronous(final: float, kind: VariableKind = VariableKind.STATE, name: str = "seen", **sins: Any) -> Report:
    """A report on steps that ran concurrently: only the last has a snapshot, and weights are other ones."""
    reference, distributed = pair(Program(batches=(12,) * STEPS, observe=False), **sins)
    reference = with_counter(reference, kind, [2.0 * step for step in range(1, STEPS + 1)], name)
    (rank,) = distributed.ranks
    steps = tuple(replace(step, snapshot=step.snapshot if step.index == STEPS else {}) for step in rank.steps)
    rank = replace(rank, steps=steps, asynchronous=True)
    distributed = replace(
        distributed,
        strategy="parameter_server[workers=2,ps=1]",
        capabilities=Capabilities(coordinator=True),
        ranks=(rank,),
    )
    return judge(reference, with_counter(distributed, kind, [final] * STEPS, name))


def outcome(report: Report, check: str = "PS") -> Outcome:
    return next(result.outcome for result in report.results if result.check == check)


def test_updates_that_all_arrive_pass_whatever_the_weights_are() -> None:
    report = asynchronous(2.0 * STEPS, learning_rate=0.05)
    assert report.passed, str(report)
    assert outcome(report) is Outcome.PASS
    for check in ("STEP-EQ", "LOSS-EQ", "OPT-STATE", "METRIC-EQ"):
        assert outcome(report, check) is Outcome.NOT_APPLICABLE


@pytest.mark.parametrize(("final", "cause"), [(2.0 * STEPS - 4, "lost-update"), (4.0 * STEPS, "duplicate-update")])
def test_counters_that_miss_or_repeat_are_named(final: float, cause: str) -> None:
    report = asynchronous(final)
    assert [(f.check, f.cause) for f in report.findings] == [("PS", cause)], str(report)


def test_what_keras_loses_by_itself_is_tolerated_and_reported() -> None:
    report = asynchronous(2.0 * STEPS - 2, VariableKind.METRIC)
    assert report.passed
    assert [f.cause for f in report.approximations] == ["lost-update"]
    assert "assign(value + 1)" in str(report.approximations[0].evidence)
    assert "because: Keras 3 writes its own counters as assign(value + 1)" in " ".join(str(report).split())
    assert asynchronous(2.0 * STEPS + 2, VariableKind.METRIC).findings[0].cause == "duplicate-update"


@pytest.mark.parametrize(
    ("unfinished", "moved", "finding"),
    [
        (True, True, ("PS", "closures-not-awaited")),
        (False, True, None),  # closures that the program schedules after its last record
        (False, False, ("MOVES", "variable-did-not-move")),
    ],
)
def test_weights_that_change_after_the_last_record_are_named_only_if_closures_ran(
    unfinished: bool, moved: bool, finding: tuple[str, str] | None
) -> None:
    reference, distributed = pair(Program(batches=(12,) * STEPS, observe=False))
    (rank,) = distributed.ranks
    facts = {**rank.facts, "own_schedule": True, "scheduled": STEPS, "unfinished": unfinished}
    still = {**rank.steps[0].snapshot, **rank.initial}
    steps = (replace(rank.steps[0], snapshot=still),)
    final = {**rank.steps[-1].snapshot, **({} if moved else rank.initial)}
    rank = replace(rank, steps=steps, final=final, asynchronous=True, facts=facts)
    capabilities = Capabilities(coordinator=True)
    report = judge(reference, replace(distributed, capabilities=capabilities, ranks=(rank,)))
    found = [(one.check, one.cause) for one in report.findings]
    assert found[:1] == ([finding] if finding else []), str(report)
    assert len(found) == 1 or not unfinished


@pytest.mark.parametrize(
    ("name", "index", "read", "found"),
    [
        ("dense/kernel:0", 0, (), True),
        ("scale:0", -1, ({"scale:0": (np.ones(()),)},), True),
        ("epoch:0", -1, ({"scale:0": (np.ones(()),)},), False),  # no closure uses it
        ("steps:0", COUNTER, (), False),  # the program watches its own count
        ("steps:0", COUNTER, ({"steps:0": (np.ones(()),)},), True),
    ],
)
def test_what_the_program_assigns_while_closures_run_is_found(
    name: str, index: int, read: tuple[Any, ...], found: bool
) -> None:
    counts = [float(step) for step in range(1, STEPS + 1)]
    reference, distributed = (
        with_counter(record, VariableKind.STATE, counts)
        for record in pair(Program(batches=(12,) * STEPS, observe=False))
    )
    (rank,) = distributed.ranks
    facts = {**rank.facts, "scheduled": STEPS, "reads": read, "meanwhile": {name: (index, "train.py:7")}}
    rank = replace(rank, asynchronous=True, facts=facts)
    report = judge(reference, replace(distributed, capabilities=Capabilities(coordinator=True), ranks=(rank,)))
    causes = [one.cause for one in report.findings]
    assert ("closures-not-awaited" in causes) == found, str(report)
    assert ("train.py:7" in str(report)) == found


def test_a_difference_before_training_is_found() -> None:
    assert asynchronous(2.0 * STEPS, initial_shift=0.1).findings[0].cause == "initial-weights-differ"


def test_weights_that_are_not_finite_are_found() -> None:
    report = asynchronous(2.0 * STEPS, nan_at=3)
    assert "not finite" in report.findings[0].message


def test_synchronous_steps_are_compared_step_by_step() -> None:
    report = judge(*pair(Program()))
    assert outcome(report) is Outcome.NOT_APPLICABLE
    assert outcome(report, "STEP-EQ") is Outcome.PASS


@pytest.mark.parametrize(("moved", "cause"), [(1.0, None), (0.75, "lost-update"), (1.25, "duplicate-update")])
def test_weights_move_by_the_sum_of_all_gradients(moved: float, cause: str | None) -> None:
    reference, distributed = pair(Program(batches=(12,) * STEPS, observe=False))
    index = next(variable.index for variable in reference.variables if variable.kind is VariableKind.TRAINABLE)
    (rank,) = reference.ranks
    start = rank.initial[index][0]
    gradient = np.ones_like(start)
    given = (GradientRecord(0, GradientStage.COMPUTED, 0, {index: gradient}),)
    steps = tuple(
        replace(s, gradients=given, snapshot={**s.snapshot, index: (start - 0.1 * s.index * gradient,)})
        for s in rank.steps
    )
    reference = replace(reference, ranks=(replace(rank, steps=steps),))
    (other,) = distributed.ranks
    last = {index: (start - 0.1 * moved * STEPS * gradient,)}
    steps = tuple(replace(s, gradients=given, snapshot=last if s.index == STEPS else {}) for s in other.steps)
    distributed = replace(distributed, ranks=(replace(other, steps=steps, initial=rank.initial, asynchronous=True),))
    found, right = lost_from_weights(Comparison(reference, distributed, Tolerance(reference)), STEPS)
    assert [finding.cause for finding in found] == ([cause] if cause else [])
    assert bool(right) is (cause is None)


def recorded_once(record: TrainingRecord, gradients: list[float], moved: float, **facts: Any) -> TrainingRecord:
    """The record of a program that runs all its steps and then records once."""
    (rank,) = record.ranks
    start = rank.initial[0][0]
    directions = [np.roll(np.arange(start.size, dtype=float), shift).reshape(start.shape) for shift in range(STEPS)]
    given = tuple(
        GradientRecord(0, GradientStage.COMPUTED, call, {0: size * direction})
        for call, (size, direction) in enumerate(zip(gradients, directions, strict=True))
    )
    total = sum(size * direction for size, direction in zip(gradients, directions, strict=True))
    snapshot = {index: parts for index, parts in rank.initial.items() if index in (0, 4)}
    snapshot |= {0: (start - 0.1 * moved * total,), 4: (np.asarray(STEPS),)}
    step = replace(rank.steps[0], gradients=given, snapshot=snapshot)
    rank = replace(rank, steps=(step,), initial={0: (start,), 4: (np.asarray(0),)}, facts=facts)
    return replace(record, ranks=(replace(rank, asynchronous=bool(facts)),))


OWN = {"own_schedule": True, "scheduled": STEPS, "workers": 2}


def own_loops(
    moved: float,
    counted: int = STEPS,
    watched: tuple[int, ...] = (0, 4),
    seen: tuple[float, float] | None = None,
    **facts: Any,
) -> Report:
    """A report on a program that records once; ``seen`` is its own counter on one device and here."""
    reference, distributed = pair(Program(observe=False))
    reference = recorded_once(reference, [1.0] * STEPS, 1.0)
    distributed = recorded_once(distributed, [2.0] * STEPS, moved, **{**OWN, **facts})
    (rank,) = distributed.ranks
    counts = {**rank.steps[0].snapshot, 4: (np.asarray(counted),)}
    kept = {index: parts for index, parts in counts.items() if index in watched}
    distributed = replace(distributed, ranks=(replace(rank, steps=(replace(rank.steps[0], snapshot=kept),)),))
    if seen is not None:
        reference, distributed = (
            with_counter(record, VariableKind.STATE, [count])
            for record, count in zip((reference, distributed), seen, strict=True)
        )
    return judge(reference, distributed)


def test_a_whole_number_that_ends_elsewhere_is_no_pass() -> None:
    report = own_loops(1.0, seen=(480.0, 336.0))
    assert outcome(report) is Outcome.INCONCLUSIVE
    assert "seen ends at 336 instead of 480" in str(report.inconclusive)
    assert own_loops(1.0, seen=(480.0, 480.0)).passed
    assert own_loops(1 / 3, seen=(480.0, 336.0)).findings[0].cause == "lost-update"


def test_a_loop_of_its_own_that_records_once_is_judged_by_the_sum_of_its_updates() -> None:
    report = own_loops(1.0)
    assert report.passed, str(report)
    assert "applies its updates" in str(report)
    assert "matches one device" not in str(report)
    reason = next(result.reason for result in report.results if result.check == "PS")
    assert "iterations counts 8 updates" in reason
    assert "dense/kernel moved by the sum of its updates" in reason
    assert own_loops(1 / 3).findings[0].cause == "lost-update"
    assert own_loops(2.0).findings[0].cause == "duplicate-update"


def test_closures_that_evaluate_are_no_lost_updates() -> None:
    assert own_loops(1.0, scheduled=2 * STEPS, watched=(4,)).passed
    assert own_loops(1.0, counted=STEPS + 1, scheduled=STEPS, watched=(4,)).findings[0].cause == "duplicate-update"


def test_nothing_compared_is_no_pass() -> None:
    report = own_loops(1.0, watched=())
    assert report.verdict == "inconclusive"
    assert "run.watch(optimizer=...)" in report.inconclusive[0]


@pytest.mark.parametrize("steps", [1, 3])
def test_data_of_a_loop_of_its_own_is_not_compared(steps: int) -> None:
    """Every worker reads the whole data, again and again; the program may record as it likes."""
    reference, distributed = pair(Program(), duplicate=True, replicas=2)
    (rank,) = distributed.ranks
    rank = replace(rank, steps=rank.steps[:steps], asynchronous=True, facts=OWN)
    report = judge(reference, replace(distributed, ranks=(rank,)))
    assert not {finding.check for finding in report.findings} & {"BATCH", "DATA-COVER"}


@pytest.mark.parametrize(("moved", "watched"), [(1.0, (4,)), (1.0, (0, 4))])
def test_weights_that_closures_overwrite_must_be_summed(moved: float, watched: tuple[int, ...]) -> None:
    lines = {"lines": {"overwrite 0": ("train.py:7",)}}
    report = own_loops(moved, watched=watched, **lines)
    assert (outcome(report) is Outcome.PASS) == (0 in watched), str(report)
    assert 0 in watched or "is overwritten by assign(...) in closures (train.py:7)" in str(report.inconclusive)
