"""Accumulators that each replica keeps for itself: find the micro-batches that make up an update.

The update is solved for the gradients of every micro-batch on every replica. Right weights are equal for all replicas.
If one replica counts in full and another does not count at all, one of them has lost what it accumulated, or has kept
it after an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, magnitude
from pytest_ddl.equivalence.evidence.combination import solve
from pytest_ddl.equivalence.evidence.gradients import calls
from pytest_ddl.equivalence.evidence.tolerance import Tolerance, unit_roundoff
from pytest_ddl.records import GradientStage, TrainingRecord, VariableRecord

Parts = list[tuple[int, int, dict[int, Float]]]
"""``(step, replica, gradients)`` of every call of the tape."""


def unequal_replicas(
    record: TrainingRecord,
    variables: Sequence[VariableRecord],
    updates: Sequence[int],
    handed: dict[int, dict[int, Float]],
    tolerance: Tolerance,
) -> tuple[int, str, str] | None:
    """Return ``(step, message, evidence)`` of the first update in which replicas count differently, or ``None``."""
    parts = _parts(record, [variable.index for variable in variables])
    for before, step in pairwise([0, *updates]):
        older = [part for part in parts if part[0] <= before]
        window = [part for part in parts if before < part[0] <= step]
        if len({at for at, _replica, _values in window}) < 2:
            continue
        for units in (window, [*older, *window]) if older else (window,):
            told = _judged(record, variables, units, before, handed[step], step, tolerance)
            if told is not None:
                return told
    return None


def _parts(record: TrainingRecord, indices: Sequence[int]) -> Parts:
    found: Parts = []
    for step in range(1, record.num_steps + 1):
        for call in calls(record, step, GradientStage.COMPUTED):
            values = {i: np.asarray(call.values[i], np.float64) for i in indices if call.values.get(i) is not None}
            if values and all(map(all_finite, values.values())):
                found.append((step, call.replica, values))
    return found


def _judged(
    record: TrainingRecord,
    variables: Sequence[VariableRecord],
    units: Parts,
    before: int,
    handed: dict[int, Float],
    step: int,
    tolerance: Tolerance,
) -> tuple[int, str, str] | None:
    slack = {}
    for variable in variables:
        roundoff = max(unit_roundoff(variable.dtype), tolerance.compute_roundoff)
        scale = sum(magnitude(values.get(variable.index)) for _step, _replica, values in units)
        stored = unit_roundoff(variable.dtype) * magnitude(record.value(variable.index, step))
        slack[variable.index] = 2 * tolerance.gamma(len(units), roundoff) * scale + 4 * stored
    solved = solve(handed, [values for _step, _replica, values in units], slack)
    if solved is None:
        return None
    error = max(solved.slack)
    largest = max(map(abs, solved.values))
    replicas = sorted({replica for _step, replica, _values in units})

    def weights(replica: int, stale: bool) -> list[float]:
        pairs = zip(solved.values, units, strict=True)
        return [weight for weight, (at, owner, _v) in pairs if owner == replica and (at <= before) is stale]

    def whole(values: Sequence[float]) -> bool:
        return bool(values) and all(abs(value - largest) <= 2 * error for value in values)

    def nothing(values: Sequence[float]) -> bool:
        return all(abs(value) <= 2 * error for value in values)

    told = ", ".join(f"{weight:.3g}" for weight in solved.values)
    evidence = f"the update is the sum of each micro-batch's gradients on each replica weighted by ({told})"
    current, stale = ({r: weights(r, which) for r in replicas} for which in (False, True))
    if not all(whole(current[r]) or nothing(current[r]) for r in replicas):
        return None
    lost = [replica for replica in replicas if nothing(current[replica])]
    kept = [replica for replica in replicas if whole(stale[replica])]
    if lost and len(lost) < len(replicas) and all(nothing(values) for values in stale.values()):
        return step, f"the update in step {step} leaves out what replica {_listed(lost)} accumulated", evidence
    rest = [replica for replica in replicas if replica not in kept]
    if kept and rest and not lost and all(nothing(stale[replica]) for replica in rest):
        message = f"the update in step {step} adds gradients from before step {before} again on replica {_listed(kept)}"
        return step, f"{message}: its accumulators are not reset", evidence
    return None


def _listed(replicas: Sequence[int]) -> str:
    return ", ".join(map(str, replicas))
