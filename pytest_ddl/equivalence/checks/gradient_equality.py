"""GRAD-EQ: the recorded gradients of the replicas combine to those of one device, also if the weights hide it.

Equal weights do not show equal gradients: an optimizer may ignore their scale, a limit may cut it off, and a program
may not apply them. The gradients of a step are compared if it began and ended with equal weights. Otherwise the
diagnosis of the weights reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, difference, magnitude
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.effective import settings_of
from pytest_ddl.equivalence.evidence.observe import has_lost_details, replicas_of
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Finding, Grounds
from pytest_ddl.equivalence.outcomes import failed, inconclusive, no_steps, not_applicable, passed
from pytest_ddl.notes import NoteKind
from pytest_ddl.records import GradientStage, TrainingRecord, VariableKind

CHECK = "GRAD-EQ"
_SHOWN = {GradientStage.COMPUTED: "computed by the tape", GradientStage.APPLIED: "handed to the optimizer"}

_LIMITS = ("clipnorm", "global_clipnorm", "clipvalue")


@dataclass(frozen=True)
class Gradients:
    """Gradients of one stage in one step, of one device and of every replica."""

    index: int
    stage: GradientStage
    own: Mapping[int, Float]
    parts: Mapping[int, Mapping[int, Float]]
    bounds: Mapping[int, float]
    """Variable -> largest difference that rounding explains in the sum over the replicas."""

    paired: bool = True
    """True if one device and every replica that took part recorded them."""

    def is_right(self, shows_scale: bool) -> bool:
        """Return whether the gradients of the replicas are parts of those of one device, or equal them.

        A program may take means of its replicas' examples and then the mean of all replicas. For gradients that it
        hands to the optimizer, this is right only if the update shows it.
        """
        if self.factor(1.0) <= 1.0 or self.each() <= 1.0:
            return True
        may_be_mean = self.stage is GradientStage.COMPUTED or shows_scale
        return may_be_mean and self.factor(1 / len(self.parts)) <= 1.0

    def factor(self, scale: float) -> float:
        """Return the largest difference of the scaled sum from one device, in units of its bound."""
        total = gradients.total(self.parts)
        return self._worst({index: scale * value for index, value in total.items()})

    def each(self) -> float:
        """Return the largest difference of the gradient of a replica from one device, in units of its bound."""
        return max(self._worst(part) for part in self.parts.values())

    def _worst(self, values: Mapping[int, Float]) -> float:
        return max((self._excess(values, index) for index in self.bounds), default=0.0)

    def _excess(self, values: Mapping[int, Float], index: int) -> float:
        actual, desired = values.get(index), self.own.get(index)
        # A variable without a gradient does not move, like one whose gradient is zero.
        left = np.zeros_like(desired) if actual is None and desired is not None else actual
        right = np.zeros_like(actual) if desired is None and actual is not None else desired
        assert left is not None
        assert right is not None
        error = difference(left, right).error
        return 0.0 if error == 0.0 else error / self.bounds[index] if self.bounds[index] else np.inf


def check_gradient_equality(comparison: Comparison) -> CheckResult:
    """Add up the gradients of the replicas in each step with equal weights, and compare the sum with one device."""
    reference, distributed = comparison.records
    tolerance = comparison.tolerance
    if comparison.steps == 0:
        return no_steps(CHECK, distributed, reference)
    if not (gradients.observed(reference) and gradients.observed(distributed)):
        return not_applicable(CHECK, "gradients were not recorded in both runs")
    diverged = comparison.differences().step
    last = comparison.steps if diverged is None else diverged - 1
    failed_early = bool(reference.errors or distributed.errors)
    scale_is_shown = shows_scale(comparison, last)
    compared = 0
    for step in recorded(comparison, last):
        if not step.paired:
            if failed_early or has_lost_details(distributed, step.index) or _unrecorded(distributed):
                continue
            where = f"on replica(s) {', '.join(map(str, sorted(step.parts)))}" if step.parts else "on one device"
            reason = f"the gradients {_SHOWN[step.stage]} in step {step.index} were recorded only {where}"
            return inconclusive(CHECK, reason)
        compared += len(step.bounds)
        if not step.is_right(scale_is_shown):
            return _wrong(step, tolerance)
    if not compared:
        return not_applicable(CHECK, "the weights differ from the first step with gradients on: see STEP-EQ")
    return passed(CHECK, f"{compared} gradients of {distributed.num_replicas} replica(s), up to step {last}")


def recorded(comparison: Comparison, last: int) -> Iterator[Gradients]:
    """Yield the gradients of each step up to ``last`` and of each stage, as far as they can be compared.

    Steps after which one device took over the strategy's values are left out, because the values differ there. A
    variable is left out of a step in which its gradient is not finite in both runs: check NONFINITE judges it.
    """
    reference, distributed = comparison.records
    for index in range(1, last + 1):
        for stage in GradientStage if index not in reference.taken_over else ():
            ours, theirs = (gradients.by_replica(record, index, stage) for record in (reference, distributed))
            if not ours and not theirs:
                continue
            if list(ours) != [0] or sorted(theirs) != replicas_of(distributed, index):
                yield Gradients(index, stage, ours.get(0, {}), theirs, {}, paired=False)
                continue
            broken = [_not_finite([ours[0]]), _not_finite(theirs.values())]
            own, *parts = (_without(part, broken[0] & broken[1]) for part in (ours[0], *theirs.values()))
            others = dict(zip(theirs, parts, strict=True))
            bounds = dict(_bounds(comparison.tolerance, index, own, others))
            bounds |= dict.fromkeys(broken[0] ^ broken[1], 0.0)  # equal weights cannot follow from both
            if bounds:
                yield Gradients(index, stage, own, others, bounds)


def _not_finite(parts: Iterable[Mapping[int, Float]]) -> set[int]:
    return {index for part in parts for index, value in part.items() if not all_finite(value)}


def _without(part: Mapping[int, Float], left_out: set[int]) -> dict[int, Float]:
    return {index: value for index, value in part.items() if index not in left_out}


def _unrecorded(record: TrainingRecord) -> bool:
    """Return whether a rank says that it did not record all gradients, for example because they are too large."""
    return any(note.kind is NoteKind.GRADIENTS for rank in record.ranks for note in rank.notes)


def _bounds(
    tolerance: Tolerance, step: int, own: Mapping[int, Float], parts: Mapping[int, Mapping[int, Float]]
) -> Iterator[tuple[int, float]]:
    """Yield each variable with the bound on the sum of its gradients over the replicas."""
    every = [own, *parts.values()]
    for index in sorted({index for part in every for index in part}):
        scale = max(magnitude(part[index]) for part in every if index in part)
        yield index, len(parts) * gradients.slack(tolerance, index, step, scale)


def shows_scale(comparison: Comparison, last: int) -> bool:
    """Return whether equal weights and slots show that the optimizer got gradients of the same scale.

    The updates of SGD show it, and so do slots. A limit may cut the scale off before.
    """
    kind, settings = settings_of(comparison.reference)
    if any(settings.get(limit) for limit in _LIMITS):
        return False
    slots = comparison.differences((VariableKind.SLOT,), 1, last)
    return kind == "SGD" or (slots.compared > 0 and not slots.first)


def _wrong(step: Gradients, tolerance: Tolerance) -> CheckResult:
    """Report a factor as a defect. A difference without one is a doubt, once the rounding noise is known."""
    number = len(step.parts)
    what = f"the gradients {_SHOWN[step.stage]} in step {step.index}"
    message = f"{what} do not add up to those of one device, although the weights are equal"
    finding = Finding(CHECK, message, step=step.index, a_priori=not tolerance.perturbed)
    causes = {number: "gradient-scaled-by-replica-count", 1 / number: "gradient-scaled-by-inverse-replica-count"}
    for factor, cause in causes.items():
        if step.stage is GradientStage.APPLIED and step.factor(1 / factor) <= max(1.0, 1 / factor):
            evidence = f"their sum is {factor:g} x the gradient of one device, and the update hides it"
            named = replace(finding, cause=cause, evidence=evidence, grounds=Grounds.RECOMPUTED)
            return failed(CHECK, [named])
    return inconclusive(CHECK, message) if tolerance.perturbed else failed(CHECK, [finding])
