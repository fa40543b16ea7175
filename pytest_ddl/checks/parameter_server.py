"""PS: after asynchronous steps every update was applied once, and weights are finite."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_ddl.checks.arrays import Float, all_finite, difference, is_numeric, show
from pytest_ddl.checks.build import failed, inconclusive, not_applicable, passed
from pytest_ddl.checks.causes import fix_of
from pytest_ddl.checks.findings import CheckResult, Finding
from pytest_ddl.checks.observe import WEIGHTS, built_late, of_kind
from pytest_ddl.checks.summed_updates import lost_from_weights
from pytest_ddl.checks.tolerance import Tolerance
from pytest_ddl.records import RankRecord, TrainingRecord, VariableKind, VariableRecord

CHECK = "PS"
ORDERED = ("STEP-EQ", "UNEVEN-EQ", "LOSS-EQ", "METRIC-EQ", "OPT-STATE", "STATE-EQ", "CLIP", "ACCUM", "NONFINITE")
"""Checks that compare state step by step, which asynchronous steps do not have."""

_BY_KERAS = (VariableKind.ITERATIONS, VariableKind.METRIC)
_READ_MODIFY_WRITE = (
    "Keras 3 writes its own counters as assign(value + 1), which loses updates of workers that read at the same time "
    "(seen up to Keras 3.15.1); its optimizers subtract from weights with assign_sub, which loses none"
)


@dataclass(frozen=True)
class _Counter:
    """A variable that every step on one device changes by the same amount."""

    variable: VariableRecord
    first: Float
    growth: Float


def is_asynchronous(record: TrainingRecord) -> bool:
    """Say whether steps ran concurrently, so that in between variables belong to no step."""
    return any(rank.asynchronous for rank in record.ranks)


def check_parameter_server(reference: TrainingRecord, distributed: TrainingRecord, tolerance: Tolerance) -> CheckResult:
    """Count the updates by the variables that grow alike in every step of one device."""
    if not is_asynchronous(distributed):
        return not_applicable(CHECK, "no steps ran concurrently")
    if distributed.errors or reference.errors:
        return not_applicable(CHECK, "the run failed, see RUN")
    rank = distributed.ranks[0]
    if rank.facts.get("epochs_as_steps") and rank.facts.get("limit") is not None:
        return not_applicable(CHECK, "Model.fit ran whole epochs here, and ended with the limit of steps on one device")
    if not rank.steps or not reference.num_steps:
        return inconclusive(CHECK, "no step was recorded", in_program=True)
    findings = [*_initial(reference, distributed), *_not_finite(reference, rank)]
    counters = [] if findings else _counters(reference)
    steps = _expected_steps(reference, distributed)
    for counter in counters:
        actual = _final(rank, counter.variable.index)
        if actual is not None and actual.shape == counter.first.shape:
            findings += _judge(counter, actual, steps)
    if all(finding.approximation for finding in findings):
        findings += lost_from_weights(reference, distributed, tolerance)
    findings += _stale(rank)
    if findings:
        return failed(CHECK, sorted(findings, key=lambda finding: finding.approximation))
    if not counters:
        return not_applicable(CHECK, "no variable grows by the same amount in every step on one device")
    names = ", ".join(counter.variable.name for counter in counters[:3])
    return passed(CHECK, f"{steps} updates counted by {len(counters)} variable(s): {names}")


def _initial(reference: TrainingRecord, distributed: TrainingRecord) -> list[Finding]:
    for variable in of_kind(reference, *WEIGHTS):
        if built_late(reference, variable.index):
            continue
        ours, theirs = reference.value(variable.index, 0), distributed.value(variable.index, 0)
        if ours is not None and theirs is not None and difference(theirs, ours).error > 0:
            found = difference(theirs, ours)
            return [
                Finding(
                    CHECK,
                    f"{variable.name} differs from one device before the first step",
                    cause="initial-weights-differ",
                    step=0,
                    variable=variable.name,
                    error=found.error,
                    tolerance=0.0,
                    fix=fix_of("initial-weights-differ"),
                    observed=found.actual,
                    expected=found.desired,
                )
            ]
    return []


def _not_finite(reference: TrainingRecord, rank: RankRecord) -> list[Finding]:
    last = reference.num_steps
    for variable in of_kind(reference, *WEIGHTS):
        ours, theirs = reference.value(variable.index, last), _final(rank, variable.index)
        if ours is not None and all_finite(ours) and theirs is not None and not all_finite(theirs):
            message = f"{variable.name} is not finite after asynchronous training, and is on one device"
            return [Finding(CHECK, message, step=rank.num_steps, variable=variable.name)]
    return []


def _counters(reference: TrainingRecord) -> list[_Counter]:
    """Variables whose change is the same, exactly, in each of at least two steps."""
    found = []
    for variable in reference.variables:
        if variable.kind is VariableKind.LEARNING_RATE:
            continue
        values = [reference.value(variable.index, step) for step in range(reference.num_steps + 1)]
        known = [value for value in values if value is not None and is_numeric(value) and all_finite(value)]
        if len(known) != len(values) or len(known) < 3 or len({value.shape for value in known}) != 1:
            continue
        numbers = [np.asarray(value, np.float64) for value in known]
        growth = numbers[-1] - numbers[-2]
        whole = all(np.array_equal(number, np.round(number * 1024) / 1024) for number in numbers)
        # A variable that a step built has no initial value: what it holds at the start is that of step 1.
        late = np.array_equal(numbers[0], numbers[1])
        first = numbers[1] - growth if late else numbers[0]
        steady = all(np.array_equal(first + growth * at, number) for at, number in enumerate(numbers) if at or not late)
        if np.any(growth) and whole and steady:
            found.append(_Counter(variable, first, growth))
    return found


def _expected_steps(reference: TrainingRecord, distributed: TrainingRecord) -> int:
    """How many updates there ought to be."""
    rank = distributed.ranks[0]
    if rank.facts.get("epochs_as_steps") or rank.facts.get("scheduled") == reference.num_steps:
        ended_early = any("data of a worker ended" in note for note in rank.notes)
        return rank.num_steps if ended_early else reference.num_steps
    return rank.num_steps


def _final(rank: RankRecord, index: int) -> Float | None:
    last = rank.steps[-1].snapshot if rank.steps else {}
    # An evaluation after the last step counts its own examples in a metric.
    evaluated = rank.results and rank.variables[index].kind is VariableKind.METRIC
    final = {} if evaluated else rank.final or {}
    parts = final.get(index, last.get(index, ()))
    return np.asarray(parts[0], np.float64) if parts and is_numeric(np.asarray(parts[0])) else None


def _judge(counter: _Counter, actual: Float, steps: int) -> list[Finding]:
    moving = counter.growth != 0
    applied = (actual - counter.first)[moving] / counter.growth[moving]
    fewest, most = float(np.min(applied)), float(np.max(applied))
    if fewest == most == steps:
        return []
    lost = fewest < steps
    cause = "lost-update" if lost else "duplicate-update"
    by_keras = lost and (counter.variable.kind in _BY_KERAS or "seed_generator" in counter.variable.name)
    count = show(fewest if lost else most)
    return [
        Finding(
            check=CHECK,
            message=f"{counter.variable.name} counts {count} of {steps} updates"
            if lost
            else f"{counter.variable.name} counts {count} updates, and there were {steps} steps",
            cause=cause,
            step=steps,
            variable=counter.variable.name,
            error=abs((fewest if lost else most) - steps),
            tolerance=0.0,
            fix=_READ_MODIFY_WRITE if by_keras else fix_of(cause),
            observed=count,
            expected=str(steps),
            origin="every step adds the same amount: counts are exact",
            evidence=_READ_MODIFY_WRITE
            if by_keras
            else f"each step adds {show(counter.growth[moving][0])} on one device",
            approximation=by_keras,
        )
    ]


def _stale(rank: RankRecord) -> list[Finding]:
    """A staleness that the program records itself, held against the number of closures in flight.

    TensorFlow promises no bound: a worker may be held up for as long as it likes. So it is told, and not judged.
    """
    workers = int(rank.facts.get("workers", 0))
    told = [
        (value, step.index, name)
        for step in rank.steps
        for name, value in step.values.items()
        if "stale" in name.lower() and workers and value > workers
    ]
    if not told:
        return []
    value, step, name = max(told)
    return [
        Finding(
            check=CHECK,
            message=f"{name} is {show(value)} in step {step}, with {workers} steps in flight at most",
            cause="staleness-exceeded",
            step=step,
            variable=name,
            error=value,
            tolerance=float(workers),
            fix=fix_of("staleness-exceeded"),
            approximation=True,
        )
    ]
