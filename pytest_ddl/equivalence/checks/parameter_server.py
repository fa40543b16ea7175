"""PS: after asynchronous steps every update was applied once, and weights are finite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.summed_updates import all_steps, lost_from_weights, numbers_of_updates
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, difference, is_numeric, show
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import WEIGHTS, built_late, is_asynchronous, is_seed, of_kind, unwatched
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, inconclusive, not_applicable, passed
from pytest_ddl.hints import Hint
from pytest_ddl.notes import NoteKind
from pytest_ddl.records import Array, RankRecord, TrainingRecord, VariableKind, VariableRecord

CHECK = "PS"
_BY_KERAS = (VariableKind.ITERATIONS, VariableKind.METRIC)
_NOTHING_COMPARED = (
    "steps ran concurrently, so that no weight can be compared with one device, and no variable counts the updates; "
    f"{Hint.WATCH_UPDATES}"
)


@dataclass(frozen=True)
class _Counter:
    """A variable that every step on one device changes by the same amount."""

    variable: VariableRecord
    first: Float
    growth: Float


def schedules_itself(record: TrainingRecord) -> bool:
    """Return whether the program scheduled several steps at a time by itself.

    Its records belong to no single step, and the program chooses how often it records.
    """
    return any(rank.facts.get("own_schedule") for rank in record.ranks)


def check_parameter_server(comparison: Comparison) -> CheckResult:
    """Count the updates by the variables that grow equally in every step of one device."""
    reference, distributed = comparison.records
    if not is_asynchronous(distributed):
        return not_applicable(CHECK, "no steps ran concurrently")
    if distributed.errors or reference.errors:
        return not_applicable(CHECK, "the run failed, see RUN")
    rank = distributed.ranks[0]
    if rank.facts.get("epochs_as_steps") and rank.facts.get("limit") is not None:
        return inconclusive(
            CHECK,
            "Model.fit ran whole epochs here, and ended with the limit of steps on one device: nothing can be "
            f"compared; {Hint.LEAVE_STEPS_OUT}",
        )
    if not rank.steps or not reference.num_steps:
        return inconclusive(CHECK, "no step was recorded", in_program=True)
    early = _read_too_early(distributed) or _assigned_meanwhile(distributed)
    if early is not None:
        return failed(CHECK, [early])
    findings = [*_initial(comparison), *_not_finite(reference, rank), *_other_number(reference, distributed)]
    counters = [] if findings else _counters(reference)
    compared = []
    for counter in counters:
        actual = final_value(rank, counter.variable.index)
        if actual is not None and actual.shape == counter.first.shape:
            steps = _expected_steps(reference, distributed, counter)
            findings += _judge(counter, actual, steps)
            compared.append(f"{counter.variable.name} counts {_shown(steps)} updates")
    # Only Keras knows how many closures an epoch has.
    summed: list[str] = []
    if all(finding.approximation for finding in findings) and not rank.facts.get("epochs_as_steps"):
        lost, summed = lost_from_weights(comparison, _closures(distributed))
        findings += lost
        compared += [f"{name} moved by the sum of its updates" for name in summed]
    findings += [*_taken_back(rank), *_stale(rank)]
    undecided = _other_whole_number(reference, distributed, counters) or _overwritten(distributed, summed)
    if undecided is not None and all(finding.approximation for finding in findings):
        return inconclusive(CHECK, undecided, in_program=True)
    if findings:
        return failed(CHECK, sorted(findings, key=lambda finding: finding.approximation))
    left_out = unwatched(reference, distributed)
    if left_out is not None or not compared:
        return inconclusive(CHECK, left_out or _NOTHING_COMPARED, in_program=True)
    more = f"; and {len(compared) - 3} more" if len(compared) > 3 else ""
    return passed(CHECK, f"{'; '.join(compared[:3])}{more}")


def reads_too_early(record: TrainingRecord) -> bool:
    """Return whether closures of the program itself changed weights after it had recorded its last step."""
    return _changed_later(record) is not None


def _changed_later(record: TrainingRecord) -> tuple[VariableRecord, Array, Array] | None:
    """Return a weight that unfinished closures changed, with its value in the last step and its final value."""
    for rank in record.ranks:
        final = rank.final or {}
        last = rank.steps[-1].snapshot if rank.steps else {}
        for variable in of_kind(record, *WEIGHTS):
            if rank.facts.get("unfinished") and final.get(variable.index) and last.get(variable.index):
                return variable, last[variable.index][0], final[variable.index][0]
    return None


def _read_too_early(distributed: TrainingRecord) -> Finding | None:
    changed = _changed_later(distributed)
    if changed is None:
        return None
    variable, then, final = changed
    apart = difference(np.asarray(then), np.asarray(final))
    step, cause = distributed.ranks[0].num_steps, "closures-not-awaited"
    return Finding(
        CHECK,
        f"closures were still running when step {step} was recorded, and the program had not waited for them",
        cause=cause,
        step=step,
        variable=variable.name,
        error=apart.error,
        tolerance=0.0,
        observed=f"{apart.actual} when the step was recorded",
        expected=f"{apart.desired} after all {_closures(distributed)} closures",
        origin="a weight that nothing changes stays the same",
    )


def _assigned_meanwhile(distributed: TrainingRecord) -> Finding | None:
    """Report a variable that the program itself assigns while closures run, which may read the old or the new value.

    A state that no closure reads is the program's own: its values depend on no closure.
    """
    rank = distributed.ranks[0]
    read = {key for of in rank.facts.get("reads", ()) for key in of}
    for name, (index, line) in rank.facts.get("meanwhile", {}).items():
        kinds = [one.kind for one in distributed.variables if one.index == index]
        if name in read or (kinds and kinds[0] not in (VariableKind.METRIC, VariableKind.STATE)):
            name = name.removesuffix(":0")
            return Finding(
                CHECK,
                f"the program assigned {name} while closures were still running ({line}): it depends on time which of "
                "them compute with the new value",
                cause="closures-not-awaited",
                step=rank.num_steps,
                variable=name,
            )
    return None


def _initial(comparison: Comparison) -> list[Finding]:
    reference, distributed = comparison.records
    for variable in of_kind(reference, *WEIGHTS):
        if built_late(reference, variable.index):
            continue
        ours, theirs = reference.value(variable.index, 0), distributed.value(variable.index, 0)
        bound = comparison.tolerance.variable(variable.index, 0)
        if ours is not None and theirs is not None and difference(theirs, ours).error > bound.value:
            apart = difference(theirs, ours)
            return [
                Finding(
                    CHECK,
                    f"{variable.name} differs from one device before the first step",
                    cause="initial-weights-differ",
                    step=0,
                    variable=variable.name,
                    error=apart.error,
                    tolerance=bound.value,
                    origin=bound.origin,
                    a_priori=bound.a_priori,
                    observed=apart.actual,
                    expected=apart.desired,
                )
            ]
    return []


def _not_finite(reference: TrainingRecord, rank: RankRecord) -> list[Finding]:
    last = reference.num_steps
    for variable in of_kind(reference, *WEIGHTS):
        ours, theirs = reference.value(variable.index, last), final_value(rank, variable.index)
        if ours is not None and all_finite(ours) and theirs is not None and not all_finite(theirs):
            message = f"{variable.name} is not finite after asynchronous training, and is on one device"
            return [Finding(CHECK, message, step=rank.num_steps, variable=variable.name)]
    return []


def _other_number(reference: TrainingRecord, distributed: TrainingRecord) -> list[Finding]:
    """Compare the numbers of updates, if the program chooses them by itself and does not train on equal examples."""
    numbers = numbers_of_updates(reference, distributed) if schedules_itself(distributed) else None
    notes = [note for rank in distributed.ranks for note in rank.notes]
    if numbers is None or numbers[0] == numbers[1] or any(note.kind is NoteKind.GRADIENTS for note in notes):
        return []
    ours, theirs = (
        sum(batch.size for step in all_steps(record) for batch in step.batches) for record in (reference, distributed)
    )
    if ours == theirs:
        return []  # the same examples in batches of another size
    return [
        Finding(
            CHECK,
            f"the scheduled closures computed {numbers[1]} updates, and one device {numbers[0]}",
            cause="unequal-steps",
            step=min(numbers),
            error=abs(numbers[1] - numbers[0]),
            tolerance=0.0,
            fix=SPECIAL["closures-per-step"],
            observed=f"{numbers[1]} updates from {theirs} examples",
            expected=f"{numbers[0]} updates from {ours} examples",
            origin="updates are counted",
        )
    ]


def counted_updates(reference: TrainingRecord, record: TrainingRecord) -> dict[str, tuple[float, bool]]:
    """Return how many updates each variable counts at the end that grows equally in every step of one device.

    The flag is True if Keras counts. Its counters may lose an update of workers that read at the same time.
    """
    updates = {}
    for counter in _counters(reference):
        actual = final_value(record.ranks[0], counter.variable.index)
        if actual is not None and actual.shape == counter.first.shape:
            moving = counter.growth != 0
            applied = float(np.max((actual - counter.first)[moving] / counter.growth[moving]))
            updates[counter.variable.name] = applied, counter.variable.kind in _BY_KERAS
    return updates


def _counters(reference: TrainingRecord) -> list[_Counter]:
    """Find variables whose change is exactly the same in each of at least two steps."""
    counters = []
    for variable in reference.variables:
        if variable.kind is VariableKind.LEARNING_RATE:
            continue
        values = [reference.value(variable.index, step) for step in range(reference.num_steps + 1)]
        known = [value for value in values if value is not None and is_numeric(value) and all_finite(value)]
        if len(known) != len(values) or len({value.shape for value in known}) != 1:
            continue
        numbers = [np.asarray(value, np.float64) for value in known]
        if len(known) < 3:
            if variable.kind is VariableKind.ITERATIONS and not variable.since and np.any(numbers[-1] != numbers[0]):
                counters.append(_Counter(variable, numbers[0], np.ones_like(numbers[0])))
            continue
        growth = numbers[-1] - numbers[-2]
        whole = all(np.array_equal(number, np.round(number * 1024) / 1024) for number in numbers)
        # A variable that a step built has no initial value. Its value at the start is that of step 1.
        late = np.array_equal(numbers[0], numbers[1])
        first = numbers[1] - growth if late else numbers[0]
        steady = all(np.array_equal(first + growth * at, number) for at, number in enumerate(numbers) if at or not late)
        if np.any(growth) and whole and steady:
            counters.append(_Counter(variable, first, growth))
    return counters


def _other_whole_number(
    reference: TrainingRecord, distributed: TrainingRecord, counters: Sequence[_Counter]
) -> str | None:
    """Describe a whole number of the program that ends at another value than on one device, or return ``None``.

    Too few records show how it grows in a step. So it may have lost updates, or depend on the order of the closures.
    """
    judged = {counter.variable.index for counter in counters}
    for variable in of_kind(reference, VariableKind.STATE) if schedules_itself(distributed) else ():
        start, last = (reference.value(variable.index, step) for step in (0, reference.num_steps))
        actual = final_value(distributed.ranks[0], variable.index)
        whole = variable.dtype in ("int16", "int32", "int64") and variable.index not in judged
        whole = whole and not is_seed(variable)  # Keras writes the state of its generators back, as its counters
        if not whole or start is None or last is None or actual is None or np.array_equal(start, last):
            continue
        if actual.shape == last.shape and np.any(actual != last):
            place = np.argmax(np.abs(np.ravel(actual) - np.ravel(last)))
            return (
                f"{variable.name} ends at {np.ravel(actual)[place]:g} instead of {np.ravel(last)[place]:g}, and the "
                "program records too few steps to tell a lost update from the order of the closures: add to it with "
                f"assign_add, or record{Hint.OF_RUN_RECORD} several times, each time after coordinator.join()"
            )
    return None


def _taken_back(rank: RankRecord) -> list[Finding]:
    """Report state of which two closures have read the same value, and have both replaced it.

    If no closure takes back what another has changed, each reads the first value or one that another has assigned, and
    nobody reads the last one.
    """
    facts = rank.facts
    if any(note.kind is NoteKind.GRADIENTS for note in rank.notes):
        return []  # not all that closures have read is recorded
    findings = []
    for name in facts.get("rewritten", {}):
        calls = zip(facts.get("reads", ()), facts.get("assigned", ()), strict=False)
        pairs = [(of[name][0], given[name][-1]) for of, given in calls if name in of and name in given]
        read = Counter(value.tobytes() for value, _assigned in pairs)
        assigned = Counter(value.tobytes() for _read, value in pairs)
        lost = (read - assigned).total() - 1
        if lost > 0:
            findings.append(_lost_from_state(rank, name, lost, len(pairs)))
    return findings


def _lost_from_state(rank: RankRecord, name: str, lost: int, closures: int) -> Finding:
    name = name.removesuffix(":0")
    return Finding(
        CHECK,
        f"{name} lost the changes of {lost} of {closures} closures: another closure had read the same value, and "
        "replaced it",
        cause="lost-update",
        step=rank.num_steps,
        variable=name,
        error=float(lost),
        tolerance=0.0,
        fix=SPECIAL["lost-by-closures"],
        observed=f"{closures - lost} changes",
        expected=f"{closures} changes",
        origin="what each closure reads and assigns is recorded",
    )


def _overwritten(distributed: TrainingRecord, summed: Sequence[str]) -> str | None:
    """Name a variable that closures overwrite, if it is not known whether they lose updates; else ``None``.

    A closure that has read it before takes back what other closures have added meanwhile.
    """
    lines = distributed.ranks[0].facts.get("lines", {})
    for variable in of_kind(distributed, VariableKind.TRAINABLE):
        line = next(iter(lines.get(f"overwrite {variable.index}", ())), None)
        if line is not None and variable.name not in summed:
            return (
                f"{variable.name} is overwritten by assign(...) in closures ({line}), and it is not known whether "
                "updates of other closures were lost: use assign_add, assign_sub or an optimizer"
            )
    for name, line in distributed.ranks[0].facts.get("rewritten", {}).items():
        name = name.removesuffix(":0")
        return (
            f"closures compute {name} from its old value and replace it by assign(...) ({line}). None took back what "
            "another had changed in this run, but that depends on their order: use assign_add or assign_sub"
        )
    return None


def _closures(distributed: TrainingRecord) -> int:
    """Return the number of closures that ran: the recorded steps, or those that the program scheduled by itself."""
    rank = distributed.ranks[0]
    return int(rank.facts["scheduled"]) if schedules_itself(distributed) else rank.num_steps


def _expected_steps(reference: TrainingRecord, distributed: TrainingRecord, counter: _Counter) -> tuple[int, int]:
    """Return the smallest and the largest correct number of updates.

    A program that schedules its own steps may record any number of them, and may also schedule evaluations. So the
    correct number lies between the number of updates on one device and the number of closures.
    """
    if schedules_itself(distributed):
        last = reference.value(counter.variable.index, reference.num_steps)
        grown = (np.asarray(last, np.float64) - counter.first)[counter.growth != 0]
        updates = round(float(np.max(grown / counter.growth[counter.growth != 0])))
        return min(updates, _closures(distributed)), max(updates, _closures(distributed))
    steps = _recorded_steps(reference, distributed)
    return steps, steps


def _shown(expected: tuple[int, int]) -> str:
    return str(expected[0]) if expected[0] == expected[1] else f"{expected[0]} to {expected[1]}"


def _recorded_steps(reference: TrainingRecord, distributed: TrainingRecord) -> int:
    rank = distributed.ranks[0]
    if rank.facts.get("epochs_as_steps") or rank.facts.get("scheduled") == reference.num_steps:
        ended_early = any(note.kind is NoteKind.DATA_ENDED for note in rank.notes)
        return rank.num_steps if ended_early else reference.num_steps
    return rank.num_steps


def final_value(rank: RankRecord, index: int) -> Float | None:
    """Return the value of a variable after all closures."""
    last = rank.steps[-1].snapshot if rank.steps else {}
    # An evaluation after the last step counts its own examples in a metric.
    evaluated = rank.results and rank.variables[index].kind is VariableKind.METRIC
    final = {} if evaluated else rank.final or {}
    parts = final.get(index, last.get(index, ()))
    return np.asarray(parts[0], np.float64) if parts and is_numeric(np.asarray(parts[0])) else None


def _judge(counter: _Counter, actual: Float, expected: tuple[int, int]) -> list[Finding]:
    moving = counter.growth != 0
    applied = (actual - counter.first)[moving] / counter.growth[moving]
    fewest, most = float(np.min(applied)), float(np.max(applied))
    if expected[0] <= fewest <= most <= expected[1]:
        return []
    lost = fewest < expected[0]
    steps = expected[0] if lost else expected[1]
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
            fix=SPECIAL["counter-of-keras"] if by_keras else SPECIAL["lost-by-closures"] if lost else None,
            observed=count,
            expected=str(steps),
            origin="every step adds the same amount: counts are exact",
            evidence=SPECIAL["counter-of-keras"]
            if by_keras
            else f"each step adds {show(counter.growth[moving][0])} on one device",
            approximation=by_keras,
        )
    ]


def _stale(rank: RankRecord) -> list[Finding]:
    """Report a staleness that the program records, if it exceeds the number of closures in flight.

    TensorFlow promises no bound, because a worker may be delayed for any time. So the finding is only an approximation.
    """
    workers = int(rank.facts.get("workers", 0))
    exceeding = [
        (value, step.index, name)
        for step in rank.steps
        for name, value in step.values.items()
        if "stale" in name.lower() and workers and value > workers
    ]
    if not exceeding:
        return []
    value, step, name = max(exceeding)
    return [
        Finding(
            check=CHECK,
            message=f"{name} is {show(value)} in step {step}, with {workers} steps in flight at most",
            cause="staleness-exceeded",
            step=step,
            variable=name,
            error=value,
            tolerance=float(workers),
            approximation=True,
        )
    ]
