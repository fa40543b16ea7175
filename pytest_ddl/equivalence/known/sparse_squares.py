"""Recognize optimizers of Keras 3 that square the replicas' parts of a sparse gradient one by one.

TensorFlow adds up ``tf.IndexedSlices`` by joining their rows. If all replicas have a row of the same index, for example
one of positions, Keras squares each row and then adds up. So the second moment is ``sum(g ** 2)``, not ``sum(g) ** 2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pytest_ddl.equivalence.checks.optimizer_state import CHECK as OPT_STATE
from pytest_ddl.equivalence.checks.step_equality import CHECK as STEP_EQ
from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.arrays import Float, difference, magnitude
from pytest_ddl.equivalence.evidence.bounds import Decision
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.effective import rate_of, settings_of, used_decay
from pytest_ddl.equivalence.evidence.gradients import by_replica
from pytest_ddl.equivalence.evidence.observe import of_kind
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.records import GradientStage, TrainingRecord, VariableKind, VariableRecord

_SQUARES: Mapping[str, tuple[str, str]] = {
    "Adam": ("velocity", "beta_2"),
    "AdamW": ("velocity", "beta_2"),
    "Nadam": ("velocity", "beta_2"),
    "Lamb": ("velocity", "beta_2"),
    "RMSprop": ("velocity", "rho"),
    "Adagrad": ("accumulator", ""),
}
"""Type of an optimizer -> last word of the slot that holds squares, and the setting with its decay; empty for a sum."""
_CHANGES = ("clipnorm", "clipvalue", "global_clipnorm", "use_ema", "momentum", "centered")
"""Settings with which the recomputation is another one."""
_ROUNDINGS = 1e3
"""Number of roundings in one update, at most. A defect is many orders of magnitude larger."""


def is_squares_of_parts(finding: Finding, comparison: Comparison) -> bool:
    """Return whether all weights and slots that differ in a step are those that sums of squares give."""
    reference, distributed = comparison.records
    tolerance = comparison.tolerance
    step = finding.step
    kind, settings = settings_of(distributed)
    if finding.check not in (STEP_EQ, OPT_STATE) or not step or kind not in _SQUARES:
        return False
    if any(settings.get(name) for name in _CHANGES) or step > min(reference.num_steps, distributed.num_steps):
        return False
    explained: set[int] = set()
    for weight in _sparse(distributed, step):
        ours, theirs = (_Update(record, weight, kind, settings) for record in comparison.records[::-1])
        decay = theirs.decay(step)
        # Later steps begin with other weights, but they must use the same rule.
        if decay is not None and all(
            ours.has_squares_of_parts(at) and ours.moves(at, decay) for at in range(step, distributed.num_steps + 1)
        ):
            explained |= {weight.index, *ours.squares}
    watched = (*of_kind(distributed, VariableKind.TRAINABLE), *of_kind(distributed, VariableKind.SLOT))
    apart = {variable.index for variable in watched if _is_beyond(reference, distributed, variable, step, tolerance)}
    return bool(apart) and apart <= explained


def _sparse(record: TrainingRecord, step: int) -> list[VariableRecord]:
    """Return the weights whose gradient was sparse on every replica."""
    found = [g for rank in record.ranks for g in rank.steps[step - 1].gradients if g.stage is GradientStage.APPLIED]
    shared = set.intersection(*(set(gradient.sparse) for gradient in found)) if found else set()
    return [weight for weight in of_kind(record, VariableKind.TRAINABLE) if weight.index in shared]


@dataclass(frozen=True)
class _Update:
    """Rule by which an optimizer of Keras 3 updates one weight in a run."""

    record: TrainingRecord
    weight: VariableRecord
    kind: str
    settings: Mapping[str, Any]

    @cached_property
    def _slots(self) -> dict[str, VariableRecord]:
        """The slots of the weight, by the last word of their names."""
        slots = [slot for slot in of_kind(self.record, VariableKind.SLOT) if slot.slot_of == self.weight.index]
        shape = self.weight.shape
        return {slot.name.replace("_", "/").rsplit("/", 1)[-1]: slot for slot in slots if slot.shape == shape}

    @property
    def squares(self) -> tuple[int, ...]:
        """The slots that hold squares, which are two with ``amsgrad``."""
        names = (_SQUARES[self.kind][0], *(("hat",) if self.settings.get("amsgrad") else ()))
        return tuple(self._slots[name].index for name in names if name in self._slots)

    def has_squares_of_parts(self, step: int) -> bool:
        """Return whether the slot holds the sum of the squares of the replicas' parts."""
        slot, (_name, decay) = self._slots.get(_SQUARES[self.kind][0]), _SQUARES[self.kind]
        parts, given = self._parts(step), self.settings.get(decay) if decay else 1.0
        values = self._around(slot, step)
        if slot is None or not isinstance(given, float) or not parts or values is None:
            return False
        keep = used_decay(self.kind, given)
        squares = sum(np.square(part) for part in parts)
        expected = keep * values[0] + ((1 - keep) if decay else 1.0) * squares
        if not _is_close(values[1], expected, slot.dtype):
            return False
        largest = self._around(self._slots.get("hat"), step) if self.settings.get("amsgrad") else None
        return largest is None or bool(np.all(largest[1] == np.maximum(largest[0], values[1])))

    def decay(self, step: int) -> float | None:
        """Return the share of the weight that decayed in a step; ``None`` if the update follows no rule."""
        share = float(self.settings.get("weight_decay") or 0.0)
        # A weight may be excluded from the decay, which the settings do not say.
        return next((one for one in dict.fromkeys((share, 0.0)) if self.moves(step, one)), None)

    def moves(self, step: int, decay: float) -> bool:
        """Return whether the weight moved as the optimizer's rule says, with the squares that it used."""
        values, rate, moved = self._around(self.weight, step), rate_of(self.record, step), self._movement(step)
        if values is None or rate is None or moved is None:
            return False
        before, after = values
        moved = moved + decay * rate * before
        # Keras keeps the learning rate and the constants of Adam in float32.
        rounding = unit_roundoff("float32") * magnitude(moved) + unit_roundoff(self.weight.dtype) * magnitude(after)
        return difference(after - before, -moved).error <= _ROUNDINGS * rounding

    def _movement(self, step: int) -> Float | None:
        rate, epsilon = rate_of(self.record, step), self.settings.get("epsilon", 1e-7)
        square = self._after("hat" if self.settings.get("amsgrad") else _SQUARES[self.kind][0], step)
        if rate is None or square is None or not isinstance(epsilon, float):
            return None
        if self.kind in ("RMSprop", "Adagrad"):
            parts = self._parts(step)
            return rate * np.sum(parts, axis=0, dtype=np.float64) / np.sqrt(square + epsilon) if parts else None
        counters, mean = of_kind(self.record, VariableKind.ITERATIONS), self._after("momentum", step)
        count = self.record.value(counters[0].index, step) if len(counters) == 1 else None
        first, second = self.settings.get("beta_1"), self.settings.get("beta_2")
        if count is None or mean is None or not isinstance(first, float) or not isinstance(second, float):
            return None
        return rate * self._direction(step, int(count), mean, square, first, second, epsilon)

    def _direction(
        self, step: int, count: int, mean: Float, square: Float, first: float, second: float, epsilon: float
    ) -> Float:
        """Return the update of an optimizer like Adam, divided by the learning rate.

        Source of the formulas: ``update_step`` of these optimizers in Keras 3.15.1.
        """
        corrected = square / (1 - second**count)
        if self.kind == "Nadam":
            shares = [first * (1 - 0.5 * 0.96**at) for at in range(1, count + 2)]
            so_far, with_next = float(np.prod(shares[:-1])), float(np.prod(shares))
            gradient = np.sum(self._parts(step), axis=0, dtype=np.float64)
            ahead = shares[-1] * mean / (1 - with_next) + (1 - shares[-2]) * gradient / (1 - so_far)
            return np.asarray(ahead / (np.sqrt(corrected) + epsilon), np.float64)
        if self.kind == "Lamb":
            update = mean / (1 - first**count) / (np.sqrt(corrected) + epsilon)
            values = self._around(self.weight, step)
            sizes = [float(np.linalg.norm(one)) for one in (update, *(values or ())[:1])]
            return update * (sizes[1] / sizes[0] if len(sizes) == 2 and all(sizes) else 1.0)
        scale = np.sqrt(1 - second**count) / (1 - first**count)
        return np.asarray(mean * scale / (np.sqrt(square) + epsilon), np.float64)

    def _parts(self, step: int) -> list[Float]:
        """Return the replicas' gradients of the weight; none if one of them is not known."""
        parts = [part.get(self.weight.index) for part in by_replica(self.record, step, GradientStage.APPLIED).values()]
        known = [np.asarray(part, np.float64) for part in parts if part is not None]
        return known if len(known) == len(parts) else []

    def _around(self, variable: VariableRecord | None, step: int) -> tuple[Float, Float] | None:
        """Return the values of a variable before and after a step."""
        if variable is None:
            return None
        before, after = (self.record.value(variable.index, at) for at in (step - 1, step))
        if before is None or after is None:
            return None
        return np.asarray(before, np.float64), np.asarray(after, np.float64)

    def _after(self, slot: str, step: int) -> Float | None:
        values = self._around(self._slots.get(slot), step)
        return None if values is None else values[1]


def _is_beyond(
    reference: TrainingRecord, distributed: TrainingRecord, variable: VariableRecord, step: int, tolerance: Tolerance
) -> bool:
    """Return whether a variable differs from one device by more than rounding explains, as STEP-EQ judges it."""
    desired, bound = reference.value(variable.index, step), tolerance.variable(variable.index, step)
    values = [np.asarray(value) for _rank, _replica, value in distributed.components(variable.index, step)]
    return desired is None or any(bound.judge(difference(value, desired).error) is Decision.BEYOND for value in values)


def _is_close(actual: Float, desired: Float, dtype: str) -> bool:
    slack = _ROUNDINGS * unit_roundoff(dtype) * magnitude(desired)
    return actual.shape == desired.shape and difference(np.asarray(actual), np.asarray(desired)).error <= slack
