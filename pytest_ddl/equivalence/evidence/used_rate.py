"""Compare the learning rate computed back from the updates with the one that the optimizer shows."""

from __future__ import annotations

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, magnitude
from pytest_ddl.equivalence.evidence.effective import first_moment, momentum_of, settings_of
from pytest_ddl.equivalence.evidence.gradients import by_replica, total
from pytest_ddl.equivalence.evidence.observe import of_kind, update
from pytest_ddl.equivalence.evidence.tolerance import Tolerance, unit_roundoff
from pytest_ddl.records import GradientStage, TrainingRecord, VariableKind, VariableRecord

_EPSILON = 1e-7
_NOT_RECOMPUTED = (
    *("weight_decay", "clipnorm", "clipvalue", "global_clipnorm"),
    *("use_ema", "amsgrad", "gradient_accumulation_steps"),
)
"""Settings that add something to an update besides the rate and the direction."""


def outdated(record: TrainingRecord, tolerance: Tolerance) -> tuple[int, float, float, int] | None:
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
    found: Float = np.asarray(after, np.float64) - momentum * np.asarray(before, np.float64)
    return found


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
    found: Float = np.asarray(m, np.float64) * scale / (np.sqrt(np.asarray(v, np.float64)) + epsilon)
    return found
