"""Gradient behind an update, computed back from the state of the optimizer.

Adam and similar optimizers hide the scale of a gradient in the change of the weights, but not in their first moments.
With momentum, a change depends on earlier steps, but it can be solved for the gradient. So if the rule of an optimizer
can be inverted, each of its steps can be compared like the first step of plain SGD:

* SGD: ``g = -dW / lr``; with momentum ``g = (mu * m_before - m_after) / lr`` (Keras 3 and tf_keras alike);
* Adam, AdamW, Nadam, Adamax, Lion: ``g = m_before + (m_after - m_before) / (1 - beta)``.

If the rule is not known, the change of the weight is used in place of the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Float
from pytest_ddl.equivalence.evidence.observe import component_updates, of_kind, update
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord

_MOMENTS = {"Adam": "beta_1", "AdamW": "beta_1", "Nadam": "beta_1", "Adamax": "beta_1", "Lion": "beta_2"}
_ROUNDED = ("Nadam", "Lion")
"""Optimizers that round beta to float32, also for weights in float64, as SGD rounds its momentum (seen in Keras 3.15.1
and tf_keras 2.21)."""
_FIRST_MOMENTS = ("momentum", "m")


@dataclass(frozen=True)
class UpdateRule:
    """Formula that computes a gradient back: ``g = (after - keep * before) / gain``."""

    source: VariableRecord
    keep: float
    gain: float
    how: str
    is_gradient: bool = True
    """False if the unit is unknown. The change of the weight is then used in place of its gradient."""

    def read(self, before: Float, after: Float) -> Float:
        return (np.asarray(after, np.float64) - self.keep * np.asarray(before, np.float64)) / self.gain

    def slack(self, tolerance: Tolerance, step: int) -> float:
        """Return the contribution of rounding to the difference of two gradients that were computed back."""
        after, before = (tolerance.variable(self.source.index, at).value for at in (step, step - 1))
        return (after + abs(self.keep) * before) / abs(self.gain)


def settings_of(record: TrainingRecord) -> tuple[str, Mapping[str, Any]]:
    """Return type and settings of the only watched optimizer, also inside a loss scaling wrapper; empty otherwise."""
    optimizers = record.ranks[0].optimizers if record.ranks else ()
    if len(optimizers) != 1:
        return "", {}
    settings: Mapping[str, Any] = optimizers[0].settings
    inner = settings.get("inner")
    return (str(inner.get("type")), inner) if inner else (optimizers[0].type, settings)


def momentum_of(settings: Mapping[str, Any]) -> float:
    """Return the momentum that SGD computes with; 0 without one."""
    return float(np.float32(settings.get("momentum") or 0.0))


def used_decay(kind: str, beta: float) -> float:
    """Return the decay that an optimizer of a type computes with, for a setting such as ``beta_2``."""
    return float(np.float32(beta)) if kind in _ROUNDED else beta


def rate_of(record: TrainingRecord, step: int) -> float | None:
    """Return the learning rate that a step used: the set value, or the value of a schedule before the update."""
    found = of_kind(record, VariableKind.LEARNING_RATE)
    _type, settings = settings_of(record)
    value = record.value(found[0].index, step - 1 if "schedule" in settings else step) if len(found) == 1 else None
    if value is None:
        value = settings.get("learning_rate")
    return float(value) if value is not None and np.ndim(value) == 0 else None


def rule_for(record: TrainingRecord, variable: VariableRecord, step: int) -> UpdateRule:
    """Return the formula that computes the gradient of a weight back from a run."""
    kind, settings = settings_of(record)
    change = UpdateRule(variable, 1.0, 1.0, "the change of the weight", is_gradient=False)
    rate = rate_of(record, step)
    if settings.get("use_ema") or settings.get("gradient_accumulation_steps"):
        return change
    if kind == "SGD" and rate:
        momentum = momentum_of(settings)
        if not momentum:
            return UpdateRule(variable, 1.0, -rate, "-dW / lr")
        slot = first_moment(record, variable)
        return UpdateRule(slot, momentum, -rate, f"the momentum {slot.name}") if slot else change
    beta = settings.get(_MOMENTS.get(kind, ""))
    slot = first_moment(record, variable) if isinstance(beta, float) else None
    if slot is None or not isinstance(beta, float) or beta >= 1.0:
        return change
    beta = used_decay(kind, beta)
    return UpdateRule(slot, beta, 1.0 - beta, f"the first moment {slot.name}")


def first_moment(record: TrainingRecord, variable: VariableRecord) -> VariableRecord | None:
    """Return the slot of a weight that holds its momentum or its mean gradient."""
    slots = [slot for slot in of_kind(record, VariableKind.SLOT) if slot.slot_of == variable.index]
    if len(slots) == 1 and "velocity" not in slots[0].name:
        return slots[0] if slots[0].shape == variable.shape else None
    for slot in slots:
        words = slot.name.replace("_", "/").split("/")
        if slot.shape == variable.shape and any(word in _FIRST_MOMENTS for word in words):
            return slot
    return None


def effective(record: TrainingRecord, rule: UpdateRule, step: int) -> list[Float]:
    """Return the gradient behind the update of each component, ordered by rank and then by replica."""
    before = {(rank.rank, replica): value for rank, replica, value in record.components(rule.source.index, step - 1)}
    return [
        rule.read(before[rank.rank, replica], value)
        for rank, replica, value in record.components(rule.source.index, step)
        if (rank.rank, replica) in before and before[rank.rank, replica].shape == value.shape
    ]


def moved(record: TrainingRecord, variable: VariableRecord, step: int) -> bool:
    """Return whether any component of a variable changed in a step."""
    return any(np.any(change != 0) for _rank, _replica, change in component_updates(record, variable.index, step))


def stands_still(record: TrainingRecord, variable: VariableRecord) -> bool:
    """Return whether the first component never changed."""
    found = [update(record, variable.index, step) for step in range(1, record.num_steps + 1)]
    known = [change for change in found if change is not None]
    return bool(known) and not any(np.any(change) for change in known)


def counted_updates(record: TrainingRecord, step: int) -> int:
    """Return the number of updates that the optimizer counted in a step; 0 unless exactly one counter is watched."""
    counters = of_kind(record, VariableKind.ITERATIONS)
    values = [record.value(counters[0].index, at) for at in (step - 1, step)] if len(counters) == 1 else []
    before, after = values or (None, None)
    return int(after) - int(before) if before is not None and after is not None else 0
