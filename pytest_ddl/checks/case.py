"""The step under suspicion as candidate causes see it, and when a candidate counts as fitting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pytest_ddl.checks.arrays import Float, difference
from pytest_ddl.checks.observe import component_updates, of_kind, sizes, update
from pytest_ddl.checks.tolerance import Tolerance
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord


@dataclass(frozen=True)
class Motion:
    """The change of one variable in the step under suspicion, on one device and on every replica."""

    variable: VariableRecord
    before: Float
    """The value on one device before the step."""
    ours: Float
    """The change on one device."""
    theirs: tuple[Float, ...]
    """The change of each component under the strategy, ranks in order, replicas in order."""
    slack: float
    """What rounding may contribute to the difference of the two changes."""

    @property
    def components_differ(self) -> bool:
        return any(difference(other, self.theirs[0]).error > self.slack for other in self.theirs[1:])


@dataclass(frozen=True)
class Fit:
    """A candidate cause that agrees with the records, and how it was concluded."""

    cause: str
    evidence: str
    exact: bool = True
    """True where recomputation reproduces the update; else the records are merely consistent with it."""
    approximation: bool = False
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """Both runs at the first step that differs, as the candidates see them."""

    reference: TrainingRecord
    distributed: TrainingRecord
    tolerance: Tolerance
    step: int
    slices: Mapping[int, TrainingRecord] = field(default_factory=dict)
    """Per replica, a reference run that in this step was given that replica's examples alone."""

    @property
    def replicas(self) -> int:
        return self.distributed.num_replicas

    @property
    def sizes(self) -> list[int]:
        """Examples per replica in this step, by replica; empty where not observed."""
        found = sizes(self.distributed, self.step)
        return [found[replica] for replica in sorted(found)]

    @cached_property
    def weights(self) -> list[Motion]:
        return self._motions(VariableKind.TRAINABLE)

    @cached_property
    def frozen(self) -> list[Motion]:
        return self._motions(VariableKind.FROZEN)

    @cached_property
    def slots(self) -> list[Motion]:
        return self._motions(VariableKind.SLOT)

    def setting(self, name: str) -> float | None:
        """A number among the settings of the first optimizer, ``None`` where unset or a schedule."""
        for rank in self.distributed.ranks[:1]:
            for optimizer in rank.optimizers[:1]:
                inner = optimizer.settings.get("inner") or {}
                value = optimizer.settings.get(name) or inner.get(name)
                return float(value) if isinstance(value, (int, float)) and value else None
        return None

    def layers(self, *names: str) -> list[str]:
        """The names of layers whose type is one of the names, or starts with one ending in ``*``."""
        found = self.distributed.ranks[0].layers if self.distributed.ranks else ()
        return [
            layer.name
            for layer in found
            if any(layer.type == n or (n.endswith("*") and layer.type.startswith(n[:-1])) for n in names)
        ]

    def slice_updates(self, index: int) -> list[Float]:
        """The change that each replica's examples alone would have made, empty where not computed."""
        found = [update(self.slices[replica], index, self.step) for replica in sorted(self.slices)]
        return [change for change in found if change is not None]

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


Candidate = Callable[[Case], Fit | None]


def agrees(actual: Float, predicted: Float, motion: Motion, scale: float = 1.0) -> bool:
    """Say whether a predicted change is the observed one within rounding, scaled like the prediction."""
    return difference(actual, predicted).error <= motion.slack * max(1.0, abs(scale))


def reproduces(motions: Sequence[Motion], predict: Callable[[Motion], Float | None], scale: float = 1.0) -> bool:
    """Say whether a prediction reproduces every component of every variable.

    At least one prediction must differ from the single-device change by more than rounding:
    a hypothesis that predicts no difference explains none.
    """
    tells = False
    for motion in motions:
        predicted = predict(motion)
        if predicted is None or not all(agrees(theirs, predicted, motion, scale) for theirs in motion.theirs):
            return False
        tells = tells or difference(predicted, motion.ours).error > motion.slack * max(1.0, abs(scale))
    return tells
