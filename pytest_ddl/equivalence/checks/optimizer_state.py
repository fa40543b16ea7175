"""OPT-STATE: slots, update count and learning rate of the optimizer equal those of one device."""

from __future__ import annotations

import numpy as np

from pytest_ddl.equivalence.diagnosis.afterwards import CAUSE as CHANGED_AFTERWARDS
from pytest_ddl.equivalence.diagnosis.afterwards import changed_afterwards
from pytest_ddl.equivalence.diagnosis.candidates.case import Case
from pytest_ddl.equivalence.diagnosis.candidates.shared import adds_up
from pytest_ddl.equivalence.diagnosis.diagnose import diagnose
from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, magnitude
from pytest_ddl.equivalence.evidence.comparison import Comparison, Place
from pytest_ddl.equivalence.evidence.effective import first_moment, momentum_of, settings_of
from pytest_ddl.equivalence.evidence.gradients import by_replica, total
from pytest_ddl.equivalence.evidence.observe import of_kind, update
from pytest_ddl.equivalence.evidence.one_sided import lone_variables
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Diagnosis, Finding, Grounds
from pytest_ddl.equivalence.outcomes import (
    failed,
    finding_at,
    inconclusive,
    no_steps,
    not_applicable,
    passed,
    unmatched,
    wide,
)
from pytest_ddl.hints import Hint
from pytest_ddl.records import GradientStage, TrainingRecord, VariableKind, VariableRecord

CHECK = "OPT-STATE"

_KINDS = (VariableKind.ITERATIONS, VariableKind.LEARNING_RATE, VariableKind.SLOT)
_CAUSES = {
    VariableKind.ITERATIONS: "iteration-count-wrong",
    VariableKind.LEARNING_RATE: "learning-rate-differs",
}
_STARTED_ANEW = "resume-lost-state"
_EPSILON = 1e-7
_NOT_RECOMPUTED = (
    *("weight_decay", "clipnorm", "clipvalue", "global_clipnorm"),
    *("use_ema", "amsgrad", "gradient_accumulation_steps"),
)
"""Settings that add something to an update besides the rate and the direction."""


def check_optimizer_state(comparison: Comparison) -> CheckResult:
    """Compare the optimizer's variables up to the first step in which one of them, or a weight, differs."""
    reference, distributed = comparison.records
    steps = comparison.steps
    if steps == 0:
        return no_steps(CHECK, distributed, reference)
    structure = unmatched(CHECK, reference, distributed, _KINDS, "optimizer-state-mismatch")
    if structure:
        return failed(CHECK, structure)
    diverged = comparison.differences().step
    last = steps if diverged is None else diverged
    findings, compared, reasons = [], 0, []
    for kind in _KINDS:
        # Counters do not depend on the weights. So different weights do not excuse a different counter.
        limit = last if kind is VariableKind.SLOT else steps
        found = comparison.differences((kind,), 1, limit)
        before = comparison.differences((kind,), 0, 0)
        compared += found.compared + before.compared
        if found.undecided is not None:
            reasons.append(wide(found.undecided))
        if before.first and not found.first:
            findings.append(_initial(before.first[0], kind))
        elif found.first and kind is VariableKind.SLOT:
            findings.append(_slot(comparison, found.first[0], found.step == diverged))
        elif found.first:
            findings.append(_counter(comparison, found.first[0], kind))
    findings = findings or _outdated_rate(comparison) or _changed_settings(comparison)
    if findings:
        return failed(CHECK, findings)
    if reasons:
        return inconclusive(CHECK, reasons[0])
    unread = lone_variables(reference, distributed, _KINDS)
    if unread is not None:
        return inconclusive(CHECK, unread)
    afterwards = None if diverged else changed_afterwards(CHECK, comparison, _KINDS)
    if afterwards is not None:
        return afterwards
    if compared == 0:
        return not_applicable(CHECK, "no optimizer was watched, or it has no state", Hint.AN_OPTIMIZER())
    return passed(CHECK, f"{compared} components of slots and counters, up to step {last}")


def _outdated_rate(comparison: Comparison) -> list[Finding]:
    """Find a learning rate that does not follow its schedule, in each run by itself.

    One device makes the same mistake, so a comparison does not show it.
    """
    for record, where in ((comparison.distributed, ""), (comparison.reference, " on one device")):
        found = _outdated(record, comparison.tolerance)
        if found is not None:
            step, used, shown, since = found
            cause = "learning-rate-differs"
            message = (
                f"step {step} uses the learning rate {used:.6g}{where}, and the optimizer shows {shown:.6g}: "
                f"the rate of step {since + 1} was built into the graph"
            )
            evidence = f"{used:.6g} times the optimizer's direction reproduces the update of every weight"
            return [
                Finding(
                    CHECK,
                    message,
                    cause=cause,
                    step=step,
                    observed=f"{used:.6g}",
                    expected=f"{shown:.6g}",
                    evidence=evidence,
                )
            ]
    return []


def _changed_settings(comparison: Comparison) -> list[Finding]:
    """Find a setting that the programs change while they run, and that differs when they end."""
    reference, distributed = comparison.records
    for rank in distributed.ranks if not (reference.errors or distributed.errors) else ():
        for ours, theirs in zip(reference.ranks[0].optimizers, rank.optimizers, strict=False):
            for name in (*ours.changed, *theirs.changed):
                desired, actual = ({**one.settings, **one.changed}.get(name) for one in (ours, theirs))
                if actual != desired:
                    message = f"{name} of {theirs.type} is {actual} when the program ends, and {desired} on one device"
                    return [
                        Finding(
                            CHECK,
                            message,
                            cause=CHANGED_AFTERWARDS,
                            step=comparison.steps,
                            variable=f"{theirs.type}.{name}",
                            worker=rank.rank,
                            observed=str(actual),
                            expected=str(desired),
                        )
                    ]
    return []


def _initial(place: Place, kind: VariableKind) -> Finding:
    message = f"the optimizer's {place.variable.name} differs from one device before the first step"
    return finding_at(CHECK, place, message, _CAUSES.get(kind, "optimizer-state-mismatch"))


def _counter(comparison: Comparison, place: Place, kind: VariableKind) -> Finding:
    what = "update count" if kind is VariableKind.ITERATIONS else "learning rate"
    message = f"the {what} ({place.variable.name}) differs from one device after step {place.step}"
    before, after = (comparison.distributed.value(place.variable.index, at) for at in (place.step - 1, place.step))
    if kind is VariableKind.ITERATIONS and before is not None and after is not None and np.all(after < before):
        evidence = f"it falls from {before} to {after}: the optimizer was made or restored anew"
        return finding_at(
            CHECK, place, message, _STARTED_ANEW, Diagnosis(_STARTED_ANEW, evidence, grounds=Grounds.PATTERN)
        )
    return finding_at(CHECK, place, message, _CAUSES[kind])


def _slot(comparison: Comparison, place: Place, weights_too: bool) -> Finding:
    case = Case.at(comparison, place.step)
    diagnosis: Diagnosis | None = diagnose(case)
    assert diagnosis is not None
    cause = diagnosis.cause
    # With SGD, a wrong gradient shows in the weight as much as in its momentum. Other optimizers may hide its scale.
    slot_alone = not weights_too and settings_of(comparison.reference)[0] == "SGD"
    if cause is None and weights_too and any(not adds_up(case, source) for source in case.sources):
        pass  # the optimizer got wrong gradients, so its slots say nothing about itself
    elif cause is None or slot_alone or not (diagnosis.exact or weights_too):
        cause, diagnosis = "optimizer-state-mismatch", None
    ratio = ""
    before, after = (
        comparison.reference.value(place.variable.index, place.step),
        comparison.distributed.value(place.variable.index, place.step),
    )
    if before is not None and after is not None and np.any(before) and before.shape == after.shape:
        ratio = f" ({np.linalg.norm(after) / np.linalg.norm(before):.4g}x)"
    message = f"the optimizer's {place.variable.name} differs from one device after step {place.step}{ratio}"
    return finding_at(CHECK, place, message, cause, diagnosis)


def _outdated(record: TrainingRecord, tolerance: Tolerance) -> tuple[int, float, float, int] | None:
    """Find the first update with an outdated rate: ``(step, rate used, rate shown, step to which the rate belongs)``.

    A rate may be set before or after a step, and a schedule counts from the update before. So the rates shown before
    and after a step are both right. A rate is outdated only if it was shown earlier and is not shown any more.
    """
    rates = of_kind(record, VariableKind.LEARNING_RATE)
    shown = [record.value(rates[0].index, step) for step in range(record.num_steps + 1)] if len(rates) == 1 else []
    known = [float(value) for value in shown if value is not None]
    if len(known) != record.num_steps + 1 or len(set(known)) == 1:
        return None
    for step in range(2, record.num_steps + 1):
        found = _used(record, step, tolerance)
        if found is None:
            return None
        rate, slack = found
        # The optimizer shows its rate in its own precision.
        slack += unit_roundoff("float32") * abs(rate) * _sensitivity(record)
        if any(abs(rate - known[at]) <= slack for at in (step - 1, step)):
            continue
        past = [at for at in range(step - 1) if abs(rate - known[at]) <= slack]
        if not past:
            return None
        return step, rate, known[step - 1], past[0]
    return None


def _sensitivity(record: TrainingRecord) -> float:
    """Return by how much Keras' rounding of the optimizer's constants to float32 changes its bias corrections."""
    _kind, settings = settings_of(record)
    betas = [settings.get(name) for name in ("beta_1", "beta_2")]
    return 1.0 + sum(1.0 / (1.0 - beta) for beta in betas if isinstance(beta, float) and beta < 1)


def _used(record: TrainingRecord, step: int, tolerance: Tolerance) -> tuple[float, float] | None:
    """Return the rate of a step and its rounding error; ``None`` if no single rate explains all weights."""
    kind, settings = settings_of(record)
    if any(settings.get(name) for name in _NOT_RECOMPUTED):
        return None
    changes, directions, slacks = [], [], []
    handed = total(by_replica(record, step, GradientStage.APPLIED))
    for variable in of_kind(record, VariableKind.TRAINABLE):
        change = _change(record, variable, step, momentum_of(settings) if kind == "SGD" else 0.0)
        direction = handed.get(variable.index) if kind == "SGD" else _of_adam(record, variable, step, kind)
        if change is None or direction is None or not np.any(direction):
            continue
        if change.shape != direction.shape or not (all_finite(change) and all_finite(direction)):
            return None
        roundoff = max(unit_roundoff(variable.dtype), tolerance.compute_roundoff)
        stored = 4 * unit_roundoff(variable.dtype) * magnitude(record.value(variable.index, step))
        slacks.append(stored + 8 * (record.num_replicas + 4) * roundoff * magnitude(change))
        changes.append(-change)
        directions.append(direction)
    if not changes:
        return None
    left, right = (np.concatenate([np.ravel(value) for value in values]) for values in (changes, directions))
    rate = coefficient(left, right)
    if not rate or any(
        difference(change, rate * direction).error > slack
        for change, direction, slack in zip(changes, directions, slacks, strict=True)
    ):
        return None
    return rate, max(slacks) / magnitude(right)


def _change(record: TrainingRecord, variable: VariableRecord, step: int, momentum: float) -> Float | None:
    """Return the change of a weight, or of its momentum, in a step: the learning rate times the direction."""
    if not momentum:
        return update(record, variable.index, step)
    slot = first_moment(record, variable)
    if slot is None:
        return None
    before, after = (record.value(slot.index, at) for at in (step - 1, step))
    if before is None or after is None:
        return None
    change: Float = np.asarray(after, np.float64) - momentum * np.asarray(before, np.float64)
    return change


def _of_adam(record: TrainingRecord, variable: VariableRecord, step: int, kind: str) -> Float | None:
    """Compute ``m_hat / (sqrt(v_hat) + epsilon)`` after a step, as Keras 3 and tf_keras do."""
    _kind, settings = settings_of(record)
    counters = of_kind(record, VariableKind.ITERATIONS)
    slots = [slot for slot in of_kind(record, VariableKind.SLOT) if slot.slot_of == variable.index]
    count = record.value(counters[0].index, step) if len(counters) == 1 else None
    if kind != "Adam" or len(slots) != 2 or count is None:
        return None
    m, v = (record.value(slot.index, step) for slot in slots)
    first, second = settings.get("beta_1"), settings.get("beta_2")
    if m is None or v is None or np.any(v < 0) or not isinstance(first, float) or not isinstance(second, float):
        return None
    epsilon = float(settings.get("epsilon", _EPSILON))
    times = int(count)
    scale = np.sqrt(1 - second**times) / (1 - first**times)
    change: Float = np.asarray(m, np.float64) * scale / (np.sqrt(np.asarray(v, np.float64)) + epsilon)
    return change
