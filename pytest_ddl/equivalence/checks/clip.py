"""CLIP: clipping acts on the whole gradient, and the update obeys the limit.

Each run is judged by itself. The gradients handed to the optimizer are recorded, and the gradient behind the update is
computed back from the optimizer's state. So the check also works on one device, and at steps after the weights began to
differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, difference, magnitude
from pytest_ddl.equivalence.evidence.combination import Clip, clips_between, close_by, global_norm
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.effective import counted_updates, effective, rule_for, settings_of
from pytest_ddl.equivalence.evidence.gradients import by_replica, observed, total
from pytest_ddl.equivalence.evidence.observe import of_kind
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, not_applicable, passed
from pytest_ddl.records import GradientStage, TrainingRecord, VariableKind

CHECK = "CLIP"
_KINDS = ("clipnorm", "global_clipnorm", "clipvalue")


@dataclass(frozen=True)
class _Step:
    """Gradients that the replicas handed over in a step, and the gradients behind their updates."""

    parts: list[dict[int, Float]]
    moved_by: Mapping[int, list[Float]]
    slack: Mapping[int, float]

    @property
    def whole(self) -> dict[int, Float]:
        return total(dict(enumerate(self.parts)))

    def is_moved_by(self, gradients: Mapping[int, Float]) -> bool:
        return all(
            difference(component, gradients[index]).error <= self.slack[index]
            for index, components in self.moved_by.items()
            for component in components
        )


@dataclass(frozen=True)
class _Violation:
    cause: str
    step: int
    message: str
    evidence: str
    size: float
    limit: float
    also: tuple[str, ...] = ()


def check_clip(comparison: Comparison) -> CheckResult:
    """Recompute every clipped update of both runs from the gradients that were handed over."""
    reference, distributed = comparison.records
    tolerance = comparison.tolerance
    judged = 0
    for record, where in ((distributed, ""), (reference, " on one device")):
        clip = _configured(record)
        for step in range(1, record.num_steps + 1):
            violation = (_by_the_program(record, step, tolerance) if record.num_replicas > 1 else None) or (
                _by_the_optimizer(record, step, clip, tolerance) if clip else None
            )
            if isinstance(violation, _Violation):
                return failed(CHECK, [_finding(violation, where)])
            judged += violation is True
    if judged:
        return passed(CHECK, f"{judged} clipped update(s) recomputed from the gradients handed over")
    if not any(_configured(record) for record in (reference, distributed)):
        return not_applicable(CHECK, "no optimizer with clipnorm, global_clipnorm or clipvalue, no clipped gradient")
    if not (observed(distributed) or observed(reference)):
        return not_applicable(CHECK, "gradients were not recorded; STEP-EQ compares the clipped updates")
    return not_applicable(CHECK, "no clipped update could be read back; STEP-EQ compares the weights")


def _configured(record: TrainingRecord) -> Clip | None:
    _kind, settings = settings_of(record)
    for name in _KINDS:
        limit = settings.get(name)
        if isinstance(limit, (int, float)) and limit:
            return Clip(name, float(limit))
    return None


def _by_the_optimizer(record: TrainingRecord, step: int, clip: Clip, tolerance: Tolerance) -> _Violation | bool | None:
    """Return ``True`` if the limit acted correctly, or a violation; ``None`` if that cannot be decided."""
    seen = _read(record, step, tolerance)
    if seen is None:
        return None
    whole = seen.whole
    if not clip.active(whole) and not any(clip.active(part) for part in seen.parts):
        return None
    if seen.is_moved_by(clip.apply(whole)):
        return True
    size = clip.size({index: components[0] for index, components in seen.moved_by.items()})
    lost = clip.active(whole) and seen.is_moved_by(whole)
    sizes = ", ".join(f"{clip.size(part):.4g}" for part in seen.parts)
    if len(seen.parts) > 1 and seen.is_moved_by(total({r: clip.apply(part) for r, part in enumerate(seen.parts)})):
        return _Violation(
            "gradient-clipped-before-aggregation",
            step,
            f"the optimizer's {clip} was applied on each replica, before the gradients were summed",
            f"the sum of the gradients handed over (sizes {sizes}), each cut by {clip}, reproduces the update; "
            f"its size is {size:.4g}, that of the clipped sum {clip.size(clip.apply(whole)):.4g}",
            size,
            clip.limit,
            ("clipping-lost",) if lost else (),
        )
    if lost:
        return _Violation(
            "clipping-lost",
            step,
            f"the update has a size of {size:.4g} and exceeds the optimizer's {clip}",
            "the gradient that was handed over, without the limit, reproduces the update",
            size,
            clip.limit,
        )
    return None


def _by_the_program(record: TrainingRecord, step: int, tolerance: Tolerance) -> _Violation | None:
    """Find a limit by which each replica cut its own gradient between the tape and the optimizer."""
    computed = by_replica(record, step, GradientStage.COMPUTED)
    applied = by_replica(record, step, GradientStage.APPLIED)
    if set(computed) != set(applied) or len(computed) != record.num_replicas:
        return None
    slack = {index: _rounding(record, index, tolerance, computed) for part in computed.values() for index in part}
    close = close_by(slack)
    limits: list[set[tuple[str, str]]] = []
    clips: dict[tuple[str, str], Clip] = {}
    for replica, part in computed.items():
        both = {index for index in part if index in applied[replica]}
        before = {index: part[index] for index in both}
        after = {index: applied[replica][index] for index in both}
        if not all(all_finite(value) for value in (*before.values(), *after.values())):
            return None
        found = {(clip.kind, f"{clip.limit:.5g}"): clip for clip in clips_between(before, after, close)}
        clips |= found
        if found:
            limits.append(set(found))
        elif not all(close(index, after[index], before[index]) for index in both):
            return None  # this replica changed its gradient in another way
    # Several limits may explain the gradient of one replica. Only the true limit explains those of all replicas.
    common = set.intersection(*limits) if limits and not _scaled_alike(computed, applied) else set()
    whole = total(computed)
    given = total(applied)
    for key in sorted(common):
        clip = clips[key]
        right = clip.apply({index: whole[index] for index in given if index in whole})
        if all(difference(given[i], right[i]).error <= len(computed) * slack[i] for i in right):
            continue
        size = clip.size(given)
        return _Violation(
            "gradient-clipped-before-aggregation",
            step,
            f"each replica clipped its own gradient (to {clip.words}) before the gradients were summed",
            f"each replica handed the gradient that it computed to the optimizer, clipped to {clip.words}; their sum "
            f"has a size of {size:.4g}, but the sum of the whole gradients, clipped once, would have "
            f"{clip.size(right):.4g}",
            size,
            clip.limit,
        )
    return None


def _scaled_alike(computed: Mapping[int, Mapping[int, Float]], applied: Mapping[int, Mapping[int, Float]]) -> bool:
    """Return whether replicas scaled their gradients by one factor, as a mean or a loss scale does."""
    ratios = [
        global_norm(applied[replica]) / size for replica, part in computed.items() if (size := global_norm(part)) > 0
    ]
    return bool(ratios) and max(ratios) - min(ratios) <= 64 * unit_roundoff("float32") * max(ratios)


def _read(record: TrainingRecord, step: int, tolerance: Tolerance) -> _Step | None:
    applied = by_replica(record, step, GradientStage.APPLIED)
    if sorted(applied) != list(range(record.num_replicas)) or counted_updates(record, step) != 1:
        return None
    _kind, settings = settings_of(record)
    optimizers = record.ranks[0].optimizers
    if len(optimizers) != 1 or optimizers[0].settings.get("inner") or settings.get("weight_decay"):
        return None
    moved_by, slack = {}, {}
    for variable in of_kind(record, VariableKind.TRAINABLE):
        if not any(variable.index in part for part in applied.values()):
            continue
        rule = rule_for(record, variable, step)
        components = effective(record, rule, step) if rule.is_gradient else []
        if not components or not all(map(all_finite, components)):
            return None
        moved_by[variable.index] = components
        values = [record.value(rule.source.index, at) for at in (step - 1, step)]
        stored = unit_roundoff(rule.source.dtype) * max(magnitude(value) for value in values)
        # To compute the gradient back, a difference of stored numbers is divided by the gain. An update is only a few
        # operations.
        slack[variable.index] = 8 * stored / abs(rule.gain) + _rounding(record, variable.index, tolerance, applied)
    return _Step([applied[replica] for replica in sorted(applied)], moved_by, slack) if moved_by else None


def _rounding(
    record: TrainingRecord, index: int, tolerance: Tolerance, parts: Mapping[int, Mapping[int, Float]]
) -> float:
    """Return the rounding error of the norm of a gradient, and of a sum over replicas."""
    length = sum(math.prod(variable.shape) for variable in of_kind(record, VariableKind.TRAINABLE)) + len(parts)
    dtype = next((variable.dtype for variable in record.variables if variable.index == index), "float64")
    scale = float(np.sum([magnitude(part[index]) for part in parts.values() if index in part]))
    return 2 * tolerance.gamma(length, max(unit_roundoff(dtype), tolerance.compute_roundoff)) * scale


def _finding(violation: _Violation, where: str) -> Finding:
    return Finding(
        check=CHECK,
        message=f"{violation.message}{where}, in step {violation.step}",
        cause=violation.cause,
        step=violation.step,
        error=violation.size,
        tolerance=violation.limit,
        observed=f"{violation.size:.6g}",
        expected=f"at most {violation.limit:.6g}",
        origin="the limit itself",
        evidence=violation.evidence,
        also=violation.also,
    )
