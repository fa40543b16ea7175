"""Data of the first differing step, as the candidate causes use it, and the criteria for a fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, magnitude
from pytest_ddl.equivalence.evidence.combination import close_by
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.effective import UpdateRule, effective, rate_of, rule_for
from pytest_ddl.equivalence.evidence.observe import component_updates, of_kind, sizes, update
from pytest_ddl.equivalence.evidence.slices import Pairing
from pytest_ddl.equivalence.findings import RECOMPUTING, Grounds
from pytest_ddl.records import GradientStage, GradientSum, LayerRecord, TrainingRecord, VariableKind, VariableRecord


@dataclass(frozen=True)
class Motion:
    """Change of one variable in the suspected step, on one device and on every replica."""

    variable: VariableRecord
    before: Float
    """Value on one device before the step."""
    ours: Float
    """Change on one device."""
    theirs: tuple[Float, ...]
    """Change of each component under the strategy, ordered by rank and then by replica."""
    slack: float
    """Largest contribution of rounding to the difference of the two changes."""
    label: str = "update"
    """Short description of how the change was computed from the records."""

    # Cached, because several candidates ask this of the same large arrays.
    @cached_property
    def components_differ(self) -> bool:
        return any(difference(other, self.theirs[0]).error > self.slack for other in self.theirs[1:])

    @cached_property
    def is_right(self) -> bool:
        """True if every component changed as on one device."""
        return not any(difference(other, self.ours).error > self.slack for other in self.theirs)


@dataclass(frozen=True)
class Source:
    """Gradients of one stage on one device and on every replica, for the weights that are compared."""

    stage: GradientStage
    own: dict[int, Float]
    parts: list[dict[int, Float]]

    def __str__(self) -> str:
        return {"computed": "gradients computed on", "applied": "gradients handed to the optimizer on"}[
            self.stage.value
        ]


@dataclass(frozen=True)
class Fit:
    """Candidate cause that agrees with the records, with its evidence."""

    cause: str
    evidence: str
    grounds: Grounds = Grounds.RECOMPUTED
    approximation: bool = False
    also: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()
    """Causes that act at the same time."""
    fix: str | None = None
    """Fix that replaces the usual one of the cause."""
    is_grounded: bool = True
    """False if the gradients from which the update was recomputed are not those of one device, as the cause says."""

    @property
    def exact(self) -> bool:
        """True if recomputation reproduces the update. Otherwise the records are only consistent with the cause."""
        return self.grounds in RECOMPUTING


@dataclass(frozen=True)
class Case(Comparison):
    """Both runs at the first step that differs, as input for the candidates."""

    step: int
    slices: Mapping[int, TrainingRecord] = field(default_factory=dict)
    """For each replica, a reference run that got only that replica's examples in this step."""
    examples: Mapping[int, Mapping[int, TrainingRecord]] = field(default_factory=dict)
    """For some replicas and each of their examples, by row, a reference run that got only copies of that example."""
    pieces: Mapping[int, tuple[TrainingRecord, ...]] = field(default_factory=dict)
    """For each replica, reference runs that got only one of some equal parts of that replica's examples."""
    told: Mapping[int, tuple[TrainingRecord, ...]] = field(default_factory=dict)
    """For each replica, a reference run on its examples and one on each of some equal parts of them, which read the
    number of replicas as the replica does."""
    told_twice: Mapping[int, TrainingRecord] = field(default_factory=dict)
    """For each replica, a reference run on its examples, which read twice the number of replicas."""
    smaller: TrainingRecord | None = None
    """A reference run whose global batches have as many examples as the first replica's part."""
    pairings: Mapping[Pairing, TrainingRecord] = field(default_factory=dict)
    """Reference runs that got only one replica's examples, with one tensor in another order."""

    @classmethod
    def at(cls, comparison: Comparison, step: int) -> Case:
        """Return the case of a step, with the slices that the driver made for it."""
        slices = comparison.tolerance.slices_at(step)
        tolerance = comparison.tolerance
        told = (slices.told, slices.told_twice)
        runs = (slices.replicas, slices.examples, slices.parts, *told, slices.smaller, slices.pairings)
        return cls(comparison.reference, comparison.distributed, tolerance, step, *runs)

    @cached_property
    def before(self) -> Case:
        """The case of the step before."""
        return Case(self.reference, self.distributed, self.tolerance, self.step - 1)

    @property
    def replicas(self) -> int:
        return self.distributed.num_replicas

    @property
    def neutralized(self) -> tuple[str, ...]:
        """Parts of the program that were switched off in both runs."""
        return self.distributed.neutralized

    @property
    def parallel(self) -> list[int]:
        """Factors by which a gradient may be wrong: the number of replicas, workers, or devices along a mesh."""
        meshes = [dict(v.layout.mesh) for v in self.distributed.variables if v.layout is not None][:1]
        axes = [size for mesh in meshes for size in (*mesh.values(), math.prod(mesh.values()))]
        workers = [int(rank.facts.get("workers", 0)) for rank in self.distributed.ranks[:1]]  # of a parameter server
        return list(dict.fromkeys(number for number in (self.replicas, *axes, *workers) if number > 1))

    @property
    def sizes(self) -> list[int]:
        """Number of examples per replica in this step, ordered by replica; empty if not observed."""
        by_replica = sizes(self.distributed, self.step)
        return [by_replica[replica] for replica in sorted(by_replica)]

    @cached_property
    def weights(self) -> list[Motion]:
        return self._motions(VariableKind.TRAINABLE)

    @cached_property
    def frozen(self) -> list[Motion]:
        return self._motions(VariableKind.FROZEN)

    @cached_property
    def slots(self) -> list[Motion]:
        return self._motions(VariableKind.SLOT)

    @cached_property
    def state(self) -> list[Motion]:
        return self._motions(VariableKind.STATE)

    @cached_property
    def effective(self) -> list[Motion]:
        """Gradient of each weight, computed back from its update; the changes of all weights if one cannot.

        If one cannot, because the rule of an optimizer is not known or there are several optimizers, a wrong sum of
        the gradients that optimizers got is taken instead.
        """
        motions = [motion for weight in self.weights if (motion := self._effective(weight)) is not None]
        # Weights with a known unit cannot be compared with weights without one.
        return motions if len(motions) == len(self.weights) else self._handed() or self.weights

    @property
    def in_gradient_units(self) -> bool:
        """True if :attr:`effective` holds gradients, which can be compared with those that the replicas computed."""
        return bool(self.weights) and self.effective is not self.weights

    @cached_property
    def own(self) -> Mapping[GradientStage, dict[int, Float]]:
        """Gradients of the single device, by stage."""
        by_stage = ((stage, gradients.by_replica(self.reference, self.step, stage)) for stage in GradientStage)
        return {stage: parts[0] for stage, parts in by_stage if list(parts) == [0]}

    @cached_property
    def parts(self) -> Mapping[GradientStage, list[dict[int, Float]]]:
        """Gradients of the replicas, by stage and replica. A stage is missing unless all replicas recorded it."""
        by_stage = ((stage, gradients.by_replica(self.distributed, self.step, stage)) for stage in GradientStage)
        return {
            stage: [parts[replica] for replica in range(self.replicas)]
            for stage, parts in by_stage
            if sorted(parts) == list(range(self.replicas))
        }

    @cached_property
    def sources(self) -> list[Source]:
        """Gradients that the replicas contributed, each stage with the gradients of the single device."""
        indices = {motion.variable.index: motion.ours for motion in self.weights}
        known = []
        for stage in GradientStage:
            if stage not in self.own or stage not in self.parts:
                continue
            kept = [{i: v for i, v in part.items() if i in indices} for part in self.parts[stage]]
            mine = {i: v for i, v in self.own[stage].items() if i in indices}
            if mine and all(v.shape == indices[i].shape for part in (mine, *kept) for i, v in part.items()):
                known.append(Source(stage, mine, kept))
        return known

    @property
    def computed(self) -> Source | None:
        """The source of gradients as the replicas computed them; ``None`` if they were not recorded."""
        return next((source for source in self.sources if source.stage is GradientStage.COMPUTED), None)

    @cached_property
    def pulls(self) -> list[Motion]:
        """:attr:`effective` with the slack of a comparison with gradients; empty if units differ."""
        if not self.in_gradient_units:
            return []
        return [replace(motion, slack=self.gradient_slack[motion.variable.index]) for motion in self.effective]

    @cached_property
    def gradient_slack(self) -> dict[int, float]:
        """For each weight, the largest contribution of rounding to the difference of two gradients."""
        every = [*self.own.values(), *(part for parts in self.parts.values() for part in parts)]
        read = {m.variable.index: m.slack for m in self.effective} if self.effective is not self.weights else {}
        return {
            m.variable.index: read.get(m.variable.index, 0.0)
            + gradients.slack(self.tolerance, m.variable.index, self.step, gradients.largest(every, m.variable.index))
            for m in self.weights
        }

    @cached_property
    def same_examples(self) -> bool | None:
        """True if the replicas consumed the examples of one device in this step; ``None`` if not observed."""
        ours, theirs = (_examples(record, self.step) for record in (self.reference, self.distributed))
        return None if ours is None or theirs is None else ours == theirs

    def close(self, factor: float = 1.0) -> Callable[[int, Float, Float], bool]:
        """Return a function that compares two gradients of a weight within rounding."""
        return close_by(self.gradient_slack, factor)

    def setting(self, name: str) -> float | None:
        """Return a numeric setting of the first optimizer; ``None`` if it is unset or a schedule."""
        for rank in self.distributed.ranks[:1]:
            for optimizer in rank.optimizers[:1]:
                inner = optimizer.settings.get("inner") or {}
                value = optimizer.settings.get(name) or inner.get(name)
                return float(value) if isinstance(value, (int, float)) and value else None
        return None

    def layers(self, *names: str) -> list[str]:
        """Name the layers whose type is one of ``names``, or starts with one that ends in ``*``."""
        recorded = self.distributed.ranks[0].layers if self.distributed.ranks else ()
        return [layer.name for layer in recorded if is_of_type(layer, *names)]

    def slice_updates(self, index: int) -> list[Float]:
        """Return the change that each replica's examples would make without the others; empty if not computed."""
        runs = [self.slices[replica] for replica in sorted(self.slices)]
        updates = [update(run, index, self.step) for run in runs if run.num_steps >= self.step]
        return [change for change in updates if change is not None]

    def _effective(self, weight: Motion) -> Motion | None:
        variable, step = weight.variable, self.step
        rule = rule_for(self.reference, variable, step)
        theirs_rule = rule_for(self.distributed, variable, step)
        if not (rule.is_gradient and theirs_rule.is_gradient):
            rate = self._rate(weight)
            if rate is None:
                return None
            rule = theirs_rule = UpdateRule(variable, 1.0, rate, f"dW = {rate:.4g} x the gradient, as on one device")
        ours, theirs = effective(self.reference, rule, step), effective(self.distributed, theirs_rule, step)
        if not ours or len(theirs) != len(weight.theirs) or any(t.shape != ours[0].shape for t in theirs):
            return None
        slack = max(rule.slack(self.tolerance, step), theirs_rule.slack(self.tolerance, step))
        return Motion(variable, weight.before, ours[0], tuple(theirs), slack, f"gradient, from {rule.how}")

    def _handed(self) -> list[Motion]:
        """Return the gradients that optimizers add up over the replicas; empty if these sums are right or not known."""
        applied = gradients.calls(self.distributed, self.step, GradientStage.APPLIED)
        source = next((source for source in self.sources if source.stage is GradientStage.APPLIED), None)
        if source is None or any(item.summed is not GradientSum.ADDED for item in applied):
            return []
        motions = []
        for weight in self.weights:
            index = weight.variable.index
            own, parts = source.own.get(index), [part[index] for part in source.parts if index in part]
            if own is None and not parts and not any(map(np.any, (weight.ours, *weight.theirs))):
                continue
            if own is None or len(parts) != len(source.parts):
                return []
            scale = max(map(magnitude, (own, *parts)))
            slack = self.replicas * gradients.slack(self.tolerance, index, self.step, scale)
            theirs = (np.sum(parts, axis=0),) * len(weight.theirs)
            motions.append(
                replace(weight, ours=own, theirs=theirs, slack=slack, label="gradient, as optimizers add it up")
            )
        return motions if not all(motion.is_right for motion in motions) else []

    def _rate(self, weight: Motion) -> float | None:
        """Return the learning rate of an update by hand: of this weight, or of another if its gradient is unknown.

        Some factor fits every single number. So a weight with one element gets no rate if larger weights have
        gradients, but none of them has a rate.
        """
        own = self._own_rates.get(weight.variable.index)
        known = any(True for _gradient in self._own_gradients(weight))
        if known and (own is None or weight.ours.size > 1):
            return own
        larger = [
            self._own_rates[other.variable.index]
            for other in self.weights
            if other.ours.size > 1 and any(True for _gradient in self._own_gradients(other))
        ]
        known_rates = [rate for rate in larger if rate is not None]
        if larger and not known_rates:
            return None
        rates = [own, *known_rates, *self._own_rates.values()]
        return next((rate for rate in rates if rate is not None), None)

    @cached_property
    def _own_rates(self) -> Mapping[int, float | None]:
        return {weight.variable.index: self._own_rate(weight) for weight in self.weights}

    def _own_rate(self, weight: Motion) -> float | None:
        """Find the learning rate of an update by hand that is a multiple of the gradient on one device."""
        ours, theirs = rate_of(self.reference, self.step), rate_of(self.distributed, self.step)
        if ours and theirs and ours != theirs:
            return None
        for gradient in self._own_gradients(weight):
            if gradient.size == 1 and self._cut_at is not None:
                return self._cut_at  # any factor fits a single number that was cut
            rate = coefficient(weight.ours, gradient)
            if rate and difference(weight.ours, rate * gradient).error <= self._rate_slack(weight, rate, gradient):
                return rate
        return self._cut_at

    def _own_gradients(self, weight: Motion) -> Iterator[Float]:
        for own in (self.own.get(GradientStage.APPLIED), self.own.get(GradientStage.COMPUTED)):
            gradient = own.get(weight.variable.index) if own else None
            if gradient is not None and gradient.shape == weight.ours.shape and all_finite(gradient):
                yield gradient

    @cached_property
    def _cut_at(self) -> float | None:
        """Learning rate of an update by hand that cuts its entries to a limit, taken from the uncut entries."""
        for weight in self.weights:
            for gradient in self._own_gradients(weight):
                if (rate := self._rate_inside(weight, gradient)) is not None:
                    return rate
        return None

    def _rate_inside(self, weight: Motion, gradient: Float) -> float | None:
        limit = magnitude(weight.ours)
        inside = np.abs(weight.ours) < limit - weight.slack
        if np.count_nonzero(gradient[inside]) < 2 or np.count_nonzero(~inside) < 2:
            return None
        rate = coefficient(weight.ours[inside], gradient[inside])
        if not rate or magnitude(rate * gradient) <= limit + weight.slack:
            return None
        cut = np.clip(rate * gradient, -limit, limit)
        return rate if difference(weight.ours, cut).error <= self._rate_slack(weight, rate, gradient) else None

    def _rate_slack(self, weight: Motion, rate: float, gradient: Float) -> float:
        rounding = gradients.slack(self.tolerance, weight.variable.index, self.step, magnitude(gradient))
        return weight.slack + abs(rate) * rounding

    def _motions(self, kind: VariableKind) -> list[Motion]:
        motions = []
        for variable in of_kind(self.reference, kind):
            ours = update(self.reference, variable.index, self.step)
            before = self.reference.value(variable.index, self.step - 1)
            theirs = [change for _r, _c, change in component_updates(self.distributed, variable.index, self.step)]
            if ours is None or before is None or not theirs or any(t.shape != ours.shape for t in theirs):
                continue
            slack = sum(self.tolerance.variable(variable.index, at).value for at in (self.step - 1, self.step))
            motions.append(Motion(variable, np.asarray(before, np.float64), ours, tuple(theirs), slack))
        return motions


def _examples(record: TrainingRecord, step: int) -> list[int | str] | None:
    examples: list[int | str] = []
    if not record.batches(step):
        return None
    for batch in record.batches(step):
        if batch.size and not batch.examples:
            return None
        examples += batch.examples
    return sorted(examples, key=str)


def is_of_type(layer: LayerRecord, *names: str) -> bool:
    """Return whether a layer's type is one of the names, or starts with one that ends in ``*``."""
    return any(layer.type == n or (n.endswith("*") and layer.type.startswith(n[:-1])) for n in names)


Candidate = Callable[[Case], Fit | None]


def agrees(actual: Float, predicted: Float, motion: Motion, scale: float = 1.0) -> bool:
    """Return whether a predicted change is the observed one within rounding, which grows with ``scale``."""
    return difference(actual, predicted).error <= motion.slack * max(1.0, abs(scale))


def reproduces(motions: Sequence[Motion], predict: Callable[[Motion], Float | None], scale: float = 1.0) -> bool:
    """Return whether a prediction reproduces every component of every variable.

    At least one prediction must differ from the single-device change by more than rounding. A hypothesis that predicts
    no difference explains none.
    """
    differs = False
    for motion in motions:
        predicted = predict(motion)
        if predicted is None or not all(agrees(theirs, predicted, motion, scale) for theirs in motion.theirs):
            return False
        differs = differs or difference(predicted, motion.ours).error > motion.slack * max(1.0, abs(scale))
    return differs
