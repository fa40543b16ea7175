"""Recognize optimizers of Keras 3 that square the replicas' parts of a sparse gradient one by one.

TensorFlow adds up ``tf.IndexedSlices`` by joining their rows. If all replicas have a row of the same index, for example
one of positions, Keras squares each row and then adds up. So the second moment is ``sum(g ** 2)``, not ``sum(g) ** 2``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_ddl.equivalence.checks.optimizer_state import CHECK as OPT_STATE
from pytest_ddl.equivalence.checks.step_equality import CHECK as STEP_EQ
from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.arrays import Float, difference, magnitude
from pytest_ddl.equivalence.evidence.bounds import Decision
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.effective import rate_of, settings_of
from pytest_ddl.equivalence.evidence.gradients import by_replica
from pytest_ddl.equivalence.evidence.observe import of_kind
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.records import GradientStage, TrainingRecord, VariableKind, VariableRecord

CAUSES = ("optimizer-state-mismatch", "sparse-gradient-mismatch")
_DECAY = {"Adam": "beta_2", "RMSprop": "rho"}
_CHANGES = ("clipnorm", "clipvalue", "global_clipnorm", "use_ema", "amsgrad", "weight_decay", "momentum", "centered")
"""Settings with which the recomputation is another one."""
_ROUNDINGS = 1e3
"""Number of roundings in one update, at most. A defect is many orders of magnitude larger."""


def is_squares_of_parts(finding: Finding, comparison: Comparison) -> bool:
    """Return whether all weights and slots that differ in a step are those that sums of squares give."""
    reference, distributed = comparison.records
    tolerance = comparison.tolerance
    step = finding.step
    kind, settings = settings_of(distributed)
    if finding.check not in (STEP_EQ, OPT_STATE) or finding.cause not in CAUSES or not step or kind not in _DECAY:
        return False
    if any(settings.get(name) for name in _CHANGES) or step > min(reference.num_steps, distributed.num_steps):
        return False
    explained: set[int] = set()
    for weight in _sparse(distributed, step):
        slots, decay = _slots(distributed, weight), settings[_DECAY[kind]]
        # Later steps begin with other weights, but they must use the same rule.
        if all(
            _is_of_squares(distributed, weight, slots, at, decay)
            and _follows(distributed, weight, slots, at, kind, settings)
            for at in range(step, distributed.num_steps + 1)
        ):
            explained |= {weight.index, slots["velocity"].index}
    watched = (*of_kind(distributed, VariableKind.TRAINABLE), *of_kind(distributed, VariableKind.SLOT))
    apart = {variable.index for variable in watched if _is_beyond(reference, distributed, variable, step, tolerance)}
    return bool(apart) and apart <= explained


def _sparse(record: TrainingRecord, step: int) -> list[VariableRecord]:
    """Return the weights whose gradient was sparse on every replica."""
    found = [g for rank in record.ranks for g in rank.steps[step - 1].gradients if g.stage is GradientStage.APPLIED]
    shared = set.intersection(*(set(gradient.sparse) for gradient in found)) if found else set()
    return [weight for weight in of_kind(record, VariableKind.TRAINABLE) if weight.index in shared]


def _slots(record: TrainingRecord, weight: VariableRecord) -> dict[str, VariableRecord]:
    """Return the slots of a weight by the last word of their names."""
    slots = [slot for slot in of_kind(record, VariableKind.SLOT) if slot.slot_of == weight.index]
    return {slot.name.replace("_", "/").rsplit("/", 1)[-1]: slot for slot in slots if slot.shape == weight.shape}


def _is_of_squares(
    record: TrainingRecord, weight: VariableRecord, slots: Mapping[str, VariableRecord], step: int, decay: object
) -> bool:
    velocity = slots.get("velocity")
    parts = [part.get(weight.index) for part in by_replica(record, step, GradientStage.APPLIED).values()]
    if velocity is None or not isinstance(decay, float) or not parts or any(part is None for part in parts):
        return False
    before, after = (record.value(velocity.index, at) for at in (step - 1, step))
    if before is None or after is None:
        return False
    squares = sum(np.square(np.asarray(part, np.float64)) for part in parts)
    return _is_close(after, decay * np.asarray(before, np.float64) + (1 - decay) * squares, velocity.dtype)


def _follows(
    record: TrainingRecord,
    weight: VariableRecord,
    slots: Mapping[str, VariableRecord],
    step: int,
    kind: str,
    settings: Mapping[str, object],
) -> bool:
    """Return whether the weight moved as the optimizer's rule says, with the squares that it used."""
    values = [record.value(weight.index, at) for at in (step - 1, step)]
    before, after = values
    rate, velocity = rate_of(record, step), record.value(slots["velocity"].index, step)
    epsilon = settings.get("epsilon", 1e-7)
    if before is None or after is None or rate is None or velocity is None or not isinstance(epsilon, float):
        return False
    square = np.asarray(velocity, np.float64)
    if kind == "RMSprop":
        parts = [part[weight.index] for part in by_replica(record, step, GradientStage.APPLIED).values()]
        moved: Float = rate * sum(np.asarray(part, np.float64) for part in parts) / np.sqrt(square + epsilon)
    else:
        counters, mean = of_kind(record, VariableKind.ITERATIONS), slots.get("momentum")
        count = record.value(counters[0].index, step) if len(counters) == 1 else None
        first, second = settings.get("beta_1"), settings.get("beta_2")
        moment = record.value(mean.index, step) if mean is not None else None
        if count is None or moment is None or not isinstance(first, float) or not isinstance(second, float):
            return False
        scale = rate * np.sqrt(1 - second ** int(count)) / (1 - first ** int(count))
        moved = np.asarray(moment, np.float64) * scale / (np.sqrt(square) + epsilon)
    change = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    # Keras keeps the learning rate and the constants of Adam in float32.
    slack = _ROUNDINGS * (unit_roundoff("float32") * magnitude(moved) + unit_roundoff(weight.dtype) * magnitude(after))
    return difference(change, -moved).error <= slack


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
