"""Compare the gradients that reach the update, if equal weights do not prove that they are equal.

Some updates hide the scale of a gradient: those of a sign, of a normalized or clipped gradient, and of Adam with a tiny
epsilon. So equal weights prove the scale only if each change of a weight is a fixed multiple of its gradients, or if
the optimizer keeps a multiple of the gradient in a slot. OPT-STATE compares slots.

GRAD-EQ compares gradients too, and stays apart. It judges all gradients of a step together. It does not know what the
program does with them, so it accepts each way in which those of the replicas may add up to those of one device. Here it
is known for each variable whether the update shows its scale, and a mean that GRAD-EQ accepts may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, magnitude
from pytest_ddl.equivalence.evidence.combination import solve
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.effective import settings_of
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, of_kind, sizes, update
from pytest_ddl.records import (
    GradientRecord,
    GradientStage,
    GradientSum,
    TrainingRecord,
    VariableKind,
    VariableRecord,
)

_CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")


class Certainty(Enum):
    """Certainty that an update uses a gradient as it was recorded."""

    CERTAIN = auto()
    AMBIGUOUS = auto()
    """The program may still change it before the update."""


@dataclass(frozen=True)
class HiddenScale:
    """Gradient that differs from that of one device, although the weights do not."""

    variable: VariableRecord
    step: int
    factor: float | None
    """Gradient of the strategy / gradient of one device; ``None`` if no factor makes them equal."""
    slack: float
    """Rounding error of the factor."""
    error: float
    bound: float
    certainty: Certainty

    def is_factor(self, wanted: float) -> bool:
        return self.factor is not None and abs(self.factor - wanted) <= self.slack


def hidden_scale(comparison: Comparison) -> HiddenScale | None:
    """Return the first gradient that differs while all weights agree; one that is certain comes before others."""
    reference, distributed = comparison.records
    if distributed.num_replicas < 2 or is_asynchronous(distributed):
        return None
    ambiguous = None
    pairs = zip(reference.variables, distributed.variables, strict=False)
    for variable in (ours for ours, theirs in pairs if ours.kind is theirs.kind is VariableKind.TRAINABLE):
        different = next(_handed(comparison, variable), None) if _may_hide(comparison, variable) else None
        if different is not None and different.certainty is Certainty.CERTAIN:
            return different
        if different is None and _is_limited(reference, variable, comparison):
            different = next(_reduced(comparison, variable), None)
        ambiguous = ambiguous or different
    return ambiguous


def _handed(comparison: Comparison, variable: VariableRecord) -> Iterator[HiddenScale]:
    """Yield what differs at the last place before the update at which gradients were recorded."""
    for step in range(1, comparison.steps + 1):
        applied = _paired(comparison, step, GradientStage.APPLIED)
        if applied is None:
            yield from _reduced(comparison, variable, range(step, step + 1))
        for ours, theirs in applied or ():
            yield from _compared(comparison, variable, step, ours, theirs)


def _reduced(comparison: Comparison, variable: VariableRecord, steps: range | None = None) -> Iterator[HiddenScale]:
    """Yield what differs after the program's own reduction of a gradient, or else in the sum of the replicas."""
    for step in range(1, comparison.steps + 1) if steps is None else steps:
        both = _received(comparison, variable, step)
        if both is None:
            ours, theirs = (
                gradients.total(gradients.by_replica(record, step, GradientStage.COMPUTED)).get(variable.index)
                for record in comparison.records
            )
            both = None if ours is None or theirs is None else (ours, theirs)
        if both is not None:
            yield from _unlike(comparison, variable, step, *both, Certainty.AMBIGUOUS)


def _may_hide(comparison: Comparison, variable: VariableRecord) -> bool:
    return not _is_proven_by_slots(comparison, variable) and not _moves_by_multiples(comparison, variable)


def _is_limited(reference: TrainingRecord, variable: VariableRecord, comparison: Comparison) -> bool:
    """Return whether the program itself limits the size of a gradient before it passes it to the optimizer.

    The gradient is then another multiple of the computed one in each step, or has one size in all its elements.
    """
    factors: list[float] = []
    for step in range(1, reference.num_steps + 1):
        ours, given = (
            gradients.by_replica(reference, step, stage).get(0, {}).get(variable.index)
            for stage in (GradientStage.COMPUTED, GradientStage.APPLIED)
        )
        if ours is None or given is None or ours.shape != given.shape or not (all_finite(ours) and all_finite(given)):
            continue
        if given.size > 1 and magnitude(given) and np.all(np.isin(np.abs(given), (0.0, magnitude(given)))):
            return True
        factor = coefficient(given, ours)
        bound = _slack(comparison, variable, step, [ours, given])
        if factor is None or difference(given, factor * ours).error > bound:
            return False
        factors.append(factor)
        if abs(factor - factors[0]) * magnitude(ours) > 2 * bound:
            return True
    return False


def _paired(
    comparison: Comparison, step: int, stage: GradientStage
) -> list[tuple[GradientRecord, list[GradientRecord]]] | None:
    """Return each call of one device with the same call of each replica; ``None`` if their numbers differ."""
    ours, theirs = (gradients.calls(record, step, stage) for record in comparison.records)
    by_call: dict[int, list[GradientRecord]] = {}
    for item in theirs:
        by_call.setdefault(item.call, []).append(item)
    replicas = comparison.distributed.num_replicas
    if not ours or len(ours) != len(by_call) or any(len(items) != replicas for items in by_call.values()):
        return None
    return [(item, by_call[item.call]) for item in ours if item.call in by_call]


def _compared(
    comparison: Comparison, variable: VariableRecord, step: int, ours: GradientRecord, theirs: list[GradientRecord]
) -> Iterator[HiddenScale]:
    """Compare what one call passes to the optimizer on one device and on the replicas."""
    wanted = ours.values.get(variable.index)
    given = [item.values.get(variable.index) for item in theirs]
    parts = [np.asarray(part, np.float64) for part in given if part is not None]
    if wanted is None or len(parts) != len(given):
        return
    desired, total = np.asarray(wanted, np.float64), np.sum(parts, axis=0)
    summed = {item.summed for item in theirs}
    if summed == {GradientSum.ADDED}:
        yield from _unlike(comparison, variable, step, desired, total, Certainty.CERTAIN, parts)
    elif summed == {GradientSum.TAKEN}:
        for part in parts:
            yield from _unlike(comparison, variable, step, desired, part, Certainty.CERTAIN, parts)
    elif not any(
        all(
            next(_unlike(comparison, variable, step, desired, item, Certainty.AMBIGUOUS, parts), None) is None
            for item in either
        )
        for either in ([total], parts)
    ):
        yield from _unlike(comparison, variable, step, desired, total, Certainty.AMBIGUOUS, parts)


def _received(comparison: Comparison, variable: VariableRecord, step: int) -> tuple[Float, Float] | None:
    """Return the last result of the program's own reduction of this gradient, on one device and on a replica."""
    own = gradients.by_replica(comparison.reference, step, GradientStage.COMPUTED).get(0, {}).get(variable.index)
    ours, theirs = (
        {(item.position, item.replica): item for rank in record.ranks for item in rank.steps[step - 1].reductions}
        for record in comparison.records
    )
    received = None
    for (position, replica), item in sorted(ours.items()):
        other = theirs.get((position, replica))
        if own is not None and other is not None and item.given.shape == own.shape == other.received.shape:
            multiple = coefficient(np.asarray(item.given, np.float64), own)
            if multiple and difference(np.asarray(item.given, np.float64), multiple * own).error <= _slack(
                comparison, variable, step, [own, multiple * own]
            ):
                received = np.asarray(item.received, np.float64), np.asarray(other.received, np.float64)
    return received


def _unlike(
    comparison: Comparison,
    variable: VariableRecord,
    step: int,
    desired: Float,
    actual: Float,
    certainty: Certainty,
    parts: Sequence[Float] = (),
) -> Iterator[HiddenScale]:
    """Yield the difference of two gradients if it is beyond rounding."""
    if desired.shape != actual.shape or not (all_finite(desired) and all_finite(actual)):
        return
    slack = _slack(comparison, variable, step, [desired, actual, *parts])
    error = difference(actual, desired).error
    # Training that amplifies rounding has no bound here. It stays below the effect of one example on the gradient.
    examples = sum(sizes(comparison.reference, step).values())
    bound = max(slack, magnitude(desired) / examples if examples else 0.0)
    if error <= bound:
        return
    factor = coefficient(actual, desired)
    allowed = (1 + abs(factor or 0.0)) * slack
    if factor is not None and difference(actual, factor * desired).error > allowed:
        factor = None
    yield HiddenScale(variable, step, factor, allowed / (magnitude(desired) or 1.0), error, bound, certainty)


def _slack(comparison: Comparison, variable: VariableRecord, step: int, values: Sequence[Float]) -> float:
    scale = max(map(magnitude, values), default=0.0)
    slack = gradients.slack(comparison.tolerance, variable.index, step, scale)
    return comparison.distributed.num_replicas * slack


def _is_proven_by_slots(comparison: Comparison, variable: VariableRecord) -> bool:
    """Return whether OPT-STATE compares a multiple of the gradient, or plain gradient descent is known to be used."""
    kind, settings = settings_of(comparison.reference)
    if not kind or any(settings.get(name) for name in _CLIPS):
        return False
    slots = [
        any(slot.slot_of == variable.index for slot in of_kind(record, VariableKind.SLOT))
        for record in comparison.records
    ]
    return all(slots) or kind == "SGD"


def _moves_by_multiples(comparison: Comparison, variable: VariableRecord) -> bool:
    """Return whether the changes of a weight on one device are fixed multiples of this and of earlier gradients."""
    reference, tolerance = comparison.reference, comparison.tolerance
    seen: list[Mapping[int, Float]] = []
    factors: list[tuple[float, float]] = []
    for step in range(1, min(reference.num_steps, 4) + 1):
        change, used = update(reference, variable.index, step), _used(reference, variable.index, step)
        if change is None or used is None or used.shape != change.shape or not all_finite(change):
            return False
        seen.append({variable.index: used})
        slack = 2 * tolerance.variable(variable.index, step).value
        rate = coefficient(change, used)
        if rate and difference(change, rate * used).error <= slack and slack < abs(rate) * magnitude(used):
            factors.append((rate, slack / magnitude(used)))
            continue
        if change.size <= len(seen):
            break  # more gradients than elements explain everything
        solved = solve({variable.index: change}, seen, {variable.index: slack})
        if solved is None:
            return False
        factors.append((solved.values[-1], solved.slack[-1]))
    if len(factors) < 2:
        return False
    (first, error), *others = factors
    return all(abs(value - first) <= error + more for value, more in others)


def _used(record: TrainingRecord, index: int, step: int) -> Float | None:
    """Return the gradient of one device at the last place before the update."""
    for stage in (GradientStage.APPLIED, GradientStage.COMPUTED):
        used = gradients.by_replica(record, step, stage).get(0, {}).get(index)
        if used is not None:
            return used
    return None
