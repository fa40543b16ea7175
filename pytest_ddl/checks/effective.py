"""The gradient that an update amounts to, read back from what the optimizer did with it.

Adam and its like hide a scale in the change of the weights; their first moments do not. Momentum makes
a change depend on earlier steps; solved for the gradient it does not. So every step of every optimizer
whose rule can be inverted is comparable like the first step of plain SGD:

* SGD: ``g = -dW / lr``; with momentum ``g = (mu * m_before - m_after) / lr`` (Keras 3 and tf_keras alike);
* Adam, AdamW, Nadam, Adamax, Lion: ``g = m_before + (m_after - m_before) / (1 - beta)``.

Where the rule is not known, the change of the weight itself stands for the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ddl.checks.arrays import Float
from pytest_ddl.checks.observe import component_updates, of_kind, update
from pytest_ddl.checks.tolerance import Tolerance
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord

_MOMENTS = {"Adam": "beta_1", "AdamW": "beta_1", "Nadam": "beta_1", "Adamax": "beta_1", "Lion": "beta_2"}
_FIRST_MOMENTS = ("momentum", "m")


@dataclass(frozen=True)
class Rule:
    """How a gradient is read back: ``g = (after - keep * before) / gain``."""

    source: VariableRecord
    keep: float
    gain: float
    how: str
    is_gradient: bool = True
    """False where the unit is unknown: the change of the weight stands for its gradient."""

    def read(self, before: Float, after: Float) -> Float:
        return (np.asarray(after, np.float64) - self.keep * np.asarray(before, np.float64)) / self.gain

    def slack(self, tolerance: Tolerance, step: int) -> float:
        """What rounding contributes to the difference of two gradients that were read back."""
        after, before = (tolerance.variable(self.source.index, at).value for at in (step, step - 1))
        return (after + abs(self.keep) * before) / abs(self.gain)


def settings_of(record: TrainingRecord) -> tuple[str, Mapping[str, Any]]:
    """Type and settings of the watched optimizer (inside a loss scaling wrapper), empty unless there is just one."""
    optimizers = record.ranks[0].optimizers if record.ranks else ()
    if len(optimizers) != 1:
        return "", {}
    settings: Mapping[str, Any] = optimizers[0].settings
    inner = settings.get("inner")
    return (str(inner.get("type")), inner) if inner else (optimizers[0].type, settings)


def rate_of(record: TrainingRecord, step: int) -> float | None:
    """The learning rate that a step used: of a schedule the value before its update, else the value that was set."""
    found = of_kind(record, VariableKind.LEARNING_RATE)
    _type, settings = settings_of(record)
    value = record.value(found[0].index, step - 1 if "schedule" in settings else step) if len(found) == 1 else None
    if value is None:
        value = settings.get("learning_rate")
    return float(value) if value is not None and np.ndim(value) == 0 else None


def rule_for(record: TrainingRecord, variable: VariableRecord, step: int) -> Rule:
    """How the gradient of a weight is read back from a run."""
    kind, settings = settings_of(record)
    change = Rule(variable, 1.0, 1.0, "the change of the weight", is_gradient=False)
    rate = rate_of(record, step)
    if settings.get("use_ema") or settings.get("gradient_accumulation_steps"):
        return change
    if kind == "SGD" and rate:
        momentum = settings.get("momentum") or 0.0
        if not momentum:
            return Rule(variable, 1.0, -rate, "-dW / lr")
        slot = first_moment(record, variable)
        return Rule(slot, float(momentum), -rate, f"the momentum {slot.name}") if slot else change
    beta = settings.get(_MOMENTS.get(kind, ""))
    slot = first_moment(record, variable) if isinstance(beta, float) else None
    if slot is None or not isinstance(beta, float) or beta >= 1.0:
        return change
    return Rule(slot, beta, 1.0 - beta, f"the first moment {slot.name}")


def first_moment(record: TrainingRecord, variable: VariableRecord) -> VariableRecord | None:
    """The slot of a weight that holds its momentum, or its mean gradient."""
    slots = [slot for slot in of_kind(record, VariableKind.SLOT) if slot.slot_of == variable.index]
    if len(slots) == 1 and "velocity" not in slots[0].name:
        return slots[0] if slots[0].shape == variable.shape else None
    for slot in slots:
        words = slot.name.replace("_", "/").split("/")
        if slot.shape == variable.shape and any(word in _FIRST_MOMENTS for word in words):
            return slot
    return None


def effective(record: TrainingRecord, rule: Rule, step: int) -> list[Float]:
    """The gradient that each component of a variable was moved by, ranks in order, replicas in order."""
    before = {(rank.rank, replica): value for rank, replica, value in record.components(rule.source.index, step - 1)}
    return [
        rule.read(before[rank.rank, replica], value)
        for rank, replica, value in record.components(rule.source.index, step)
        if (rank.rank, replica) in before and before[rank.rank, replica].shape == value.shape
    ]


def changes(record: TrainingRecord, variable: VariableRecord, step: int) -> list[Float]:
    """The plain change of each component."""
    return [change for _rank, _replica, change in component_updates(record, variable.index, step)]


def moved(record: TrainingRecord, variable: VariableRecord, step: int) -> bool:
    """Say whether any component of a variable changed in a step."""
    return any(np.any(change != 0) for change in changes(record, variable, step))


def stands_still(record: TrainingRecord, variable: VariableRecord) -> bool:
    """Say whether the first component never changed."""
    found = [update(record, variable.index, step) for step in range(1, record.num_steps + 1)]
    known = [change for change in found if change is not None]
    return bool(known) and not any(np.any(change) for change in known)
