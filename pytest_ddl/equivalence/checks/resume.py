"""RESUME: interrupted training continues with the values, the counters and the examples that it had reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.checks.resumed_draws import repeated_numbers
from pytest_ddl.equivalence.evidence.arrays import difference, same
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.coverage import contents_by_step
from pytest_ddl.equivalence.evidence.observe import is_seed, read_locally, shared_steps
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, inconclusive, not_applicable, passed
from pytest_ddl.hints import Hint
from pytest_ddl.messages import listed
from pytest_ddl.records import Array, RankRecord, TrainingRecord, VariableKind, VariableRecord

CHECK = "RESUME"
_WEIGHTS = (VariableKind.TRAINABLE, VariableKind.FROZEN, VariableKind.STATE, VariableKind.SLOT)


@dataclass(frozen=True)
class _Loss:
    """Component of a variable that differs from its value at the interruption."""

    variable: VariableRecord
    rank: RankRecord
    position: int
    saved: Array
    found: Array
    counts: bool
    """True for a counter of steps or updates, and for a learning rate that depends on it."""

    @property
    def error(self) -> float:
        return difference(self.found, self.saved).error


def check_resume(comparison: Comparison) -> CheckResult:
    """Compare the values with which training continued, bit for bit, with those before the interruption."""
    reference, distributed = comparison.records
    tolerance = comparison.tolerance
    steps = [step for rank in distributed.ranks for step in rank.resumed]
    if not steps:
        return not_applicable(CHECK, f"the program does not interrupt itself{Hint.WITH_RESTART}", Hint.RESTART())
    step = steps[0]
    compared, lost = 0, []
    for rank in distributed.ranks:
        for found in _compared(rank, step):
            compared += 1
            if found is not None and _matters(found, reference, tolerance, step):
                lost.append(found)
    shift = data_shift(reference, distributed)
    findings = _findings(distributed, lost, shift, step)
    findings += [] if findings else repeated_numbers(comparison)
    if findings:
        return failed(CHECK, findings)
    if not compared:
        why = f"training continued without {Hint.LOOPS}, which record the values at its start"
        return not_applicable(CHECK, why)
    if shared_steps(reference, distributed) <= step:
        why = f"no step was recorded after the interruption that followed step {step}"
        if not _has_ended(reference, distributed, step):
            return inconclusive(CHECK, why)
        if uncompared := sorted({name for rank in distributed.ranks for name in _uncompared(rank, step)}):
            return inconclusive(CHECK, f"{why}, so {', '.join(uncompared[:4])} cannot be compared")
    return passed(CHECK, f"{compared} components have the values that they had at the interruption after step {step}")


def _before(rank: RankRecord, step: int) -> dict[int, tuple[Array, ...]]:
    return dict(rank.initial if step == 0 else rank.steps[step - 1].snapshot if step <= len(rank.steps) else {})


def _compared(rank: RankRecord, step: int) -> Iterator[_Loss | None]:
    """Yield the loss of each compared component, or ``None`` if it is equal."""
    saved = _before(rank, step)
    for variable in rank.variables:
        if variable.kind is VariableKind.METRIC or read_locally(variable):
            continue  # a metric begins anew, and components that are summed when read are saved as their sum
        pairs = zip(saved.get(variable.index, ()), rank.resumed[step].get(variable.index, ()), strict=False)
        for position, (left, right) in enumerate(pairs):
            counts = variable.kind not in _WEIGHTS or (not variable.shape and np.asarray(left).dtype.kind in "iu")
            yield None if same(left, right) else _Loss(variable, rank, position, left, right, counts)


def _has_ended(reference: TrainingRecord, distributed: TrainingRecord, step: int) -> bool:
    """Return whether a program that was started again after a fault had nothing left to do after the step."""
    # This fact is recorded after faults only. A program that calls run.restart() can make a further step, which shows
    # whether its data continues at the right place.
    after_fault = all("no_loop" in rank.facts for rank in distributed.ranks)
    return after_fault and step == reference.num_steps == distributed.num_steps


def _uncompared(rank: RankRecord, step: int) -> Iterator[str]:
    """Yield the names of variables that had a value at the interruption, and whose loss only a further step shows."""
    saved, found = _before(rank, step), rank.resumed.get(step, {})
    for variable in rank.variables:
        if variable.kind is VariableKind.METRIC or is_seed(variable) or not saved.get(variable.index):
            continue
        if read_locally(variable) or not found.get(variable.index):
            yield variable.name


def _unmade_slots(rank: RankRecord, step: int) -> Iterator[str]:
    """Yield the names of slots that had a value at the interruption, and that only a further step makes."""
    saved, found = _before(rank, step), rank.resumed.get(step, {})
    for variable in rank.variables:
        if variable.kind is VariableKind.SLOT and saved.get(variable.index) and not found.get(variable.index):
            yield variable.name


def _matters(loss: _Loss, reference: TrainingRecord, tolerance: Tolerance, step: int) -> bool:
    """Return whether a loss still shows after a further step.

    If it does not, the program may only have restored late, or sets the rate before each step.
    """
    if loss.variable.kind is VariableKind.STATE and not loss.counts:
        return True
    for later, record in enumerate(loss.rank.steps[step:], step + 1):
        values = record.snapshot.get(loss.variable.index, ())
        desired = reference.value(loss.variable.index, later) if later <= reference.num_steps else None
        if desired is None or loss.position >= len(values) or not record.snapshot:
            continue
        bound = tolerance.variable(loss.variable.index, later).value
        return difference(values[loss.position], desired).error > bound
    return True


def _findings(distributed: TrainingRecord, lost: list[_Loss], shift: int | None, step: int) -> list[Finding]:
    state = [loss for loss in lost if not loss.counts]
    counters = [loss for loss in lost if loss.counts]
    if state:
        same_as = _step_with(state, step)
        if same_as is not None:
            words = f"training continues with the values after step {same_as}, but was interrupted after step {step}"
            return [_finding("resume-step-wrong", state[0], step, words)]
        return [_lost(distributed, state, step)]
    if counters:
        worst = counters[0]
        begins_anew = [item for item in counters if item.variable.kind is VariableKind.ITERATIONS and _is_initial(item)]
        if begins_anew and shift is None:
            return [_lost(distributed, begins_anew, step)]
        words = (
            f"{worst.variable.name} is {worst.found} when training continues, but was {worst.saved} after step {step}"
        )
        also = ("resume-data-wrong",) if shift not in (None, -1, 1) else ()
        return [_finding("resume-step-wrong", worst, step, words, also)]
    if shift is not None:
        return [_wrong_data(shift, step)]
    return []


def _step_with(lost: list[_Loss], step: int) -> int | None:
    """Return the earlier step after which all differing variables had the values with which training continues.

    Initial values are those of no step: the variables were made anew, even if the first step does not change them.
    """
    if _have_values_after(lost, 0):
        return None
    return next((at for at in range(step - 1, 0, -1) if _have_values_after(lost, at)), None)


def _have_values_after(lost: list[_Loss], step: int) -> bool:
    values = [_before(loss.rank, step).get(loss.variable.index, ()) for loss in lost]
    pairs = zip(lost, values, strict=True)
    return all(loss.position < len(parts) and same(parts[loss.position], loss.found) for loss, parts in pairs)


def _is_initial(loss: _Loss) -> bool:
    return not np.any(loss.found)


def _lost(distributed: TrainingRecord, lost: list[_Loss], step: int) -> Finding:
    worst = max(lost, key=lambda loss: (loss.variable.kind is VariableKind.TRAINABLE, loss.error))
    names = list(dict.fromkeys(loss.variable.name for loss in lost))
    concerned = {loss.rank.rank for loss in lost}
    begins_anew = any(loss.variable.kind is VariableKind.ITERATIONS and _is_initial(loss) for loss in lost)
    unmade = [name for name in _unmade_slots(worst.rank, step) if begins_anew and name not in names]
    words = f"{len(names)} variable(s) differ from their values after step {step}: {', '.join(names[:4])}"
    if unmade:
        words += f"; the optimizer begins anew, without {listed(unmade, 4)}"
    if len(concerned) < len(distributed.ranks):
        words += f"; only on rank {', '.join(map(str, sorted(concerned)))}"
        return _finding("workers-diverged", worst, step, words, ("resume-lost-state",))
    return _finding("resume-lost-state", worst, step, words)


def _finding(cause: str, loss: _Loss, step: int, words: str, also: tuple[str, ...] = ()) -> Finding:
    rank, position = loss.rank, loss.position
    return Finding(
        check=CHECK,
        message=f"after the interruption, {words}",
        cause=cause,
        step=step,
        variable=loss.variable.name,
        worker=rank.rank,
        replica=rank.replicas[position] if position < len(rank.replicas) else None,
        error=loss.error,
        tolerance=0.0,
        origin="a restored value is the saved one, bit for bit",
        fix=fix_of("resume-lost-state") if "resume-lost-state" in also else None,
        observed=_short(loss.found),
        expected=_short(loss.saved),
        evidence="compared: values before the first step after the interruption, and after the last step before it",
        also=also,
    )


def _short(value: Array) -> str:
    flat = np.asarray(value).reshape(-1)
    shown = ", ".join(f"{item:.6g}" for item in flat[:3].tolist())
    return shown + (", …" if flat.size > 3 else "")


def _wrong_data(shift: int, step: int) -> Finding:
    what = {
        0: "examples that were consumed before the interruption are consumed again",
        -step: "the data starts again from its beginning",
    }.get(shift, f"the data continues {abs(shift)} step(s) too {'early' if shift < 0 else 'late'}")
    # If the counter of a checkpoint is one behind its weights, the data of its last step comes again.
    behind = shift == -1 and step > 1
    cause = "resume-step-wrong" if behind else "resume-data-wrong"
    return Finding(
        check=CHECK,
        message=f"after the interruption, which followed step {step}, {what}",
        cause=cause,
        step=step,
        observed=f"step {step + 1} consumes the examples of step {step + 1 + shift}" if shift else what,
        expected=f"step {step + 1} consumes the same examples as on one device",
        also=("resume-data-wrong",) if behind else ("resume-step-wrong",) if shift == 1 else (),
        evidence="compared: the examples of the steps after the interruption, and those of one device",
    )


def data_shift(reference: TrainingRecord, distributed: TrainingRecord) -> int | None:
    """Return by how many steps the data is shifted after an interruption.

    Return 0 if examples only repeat, and ``None`` if the data is right.
    """
    steps = [step for rank in distributed.ranks for step in rank.resumed]
    ours, theirs = contents_by_step(reference), contents_by_step(distributed)
    if not steps or ours is None or theirs is None:
        return None
    step, expected, found = steps[0], [Counter(names) for names in ours], [Counter(names) for names in theirs]
    after = found[step:]
    if not after or found[step:] == expected[step : len(found)]:
        return None
    if found[:step] != expected[:step]:
        # The strategy uses another order from the start. Only examples that repeat within a pass are an error then.
        expected = found[:step]
        passes = any(names & other for at, names in enumerate(expected) for other in expected[:at])
        repeated = any(names & before for names in after[:1] for before in expected)
        if passes or not repeated:
            return None
    shifts = [at - step for at, names in enumerate(expected) if names == after[0] and at != step]
    return min(shifts, key=abs) if shifts else 0
