"""Compare the variables of a distributed run with those of one device, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Difference, all_finite, difference, ratio_of_norms
from pytest_ddl.equivalence.evidence.bounds import Bound, Decision
from pytest_ddl.equivalence.evidence.observe import (
    WEIGHTS,
    compared_with_reference,
    component_updates,
    shared_steps,
    update,
)
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import TrainingRecord, VariableKind, VariableRecord


@dataclass(frozen=True)
class Place:
    """Comparison of one component of a variable after a step with the reference."""

    variable: VariableRecord
    step: int
    rank: int
    replica: int
    difference: Difference
    bound: Bound
    ratio: float | None = None
    """|change under the strategy| / |change on one device| in this step."""

    @property
    def excess(self) -> float:
        """Error in units of the bound, to sort places from bad to worse."""
        return np.inf if self.bound.value == 0 else self.difference.error / self.bound.value


@dataclass(frozen=True)
class Differences:
    """Differences of the variables of some kinds, up to the first step that has one."""

    compared: int
    """Number of components that were compared."""
    last_step: int
    first: tuple[Place, ...] = ()
    """Places beyond their bound at the first step that has one, worst first."""
    undecided: Place | None = None
    not_finite: int | None = None
    """First step after which the reference is not finite."""

    @property
    def step(self) -> int | None:
        return self.first[0].step if self.first else None


@dataclass(frozen=True)
class Comparison:
    """Records of the distributed run and of one device, with the bounds within which rounding may move their values."""

    reference: TrainingRecord
    distributed: TrainingRecord
    tolerance: Tolerance
    _kept: dict[tuple[tuple[VariableKind, ...], int, int], Differences] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Differences that were computed. Seven checks need those of the weights, which take most of the time of a verdict.
    """

    @property
    def records(self) -> tuple[TrainingRecord, TrainingRecord]:
        """The reference and the distributed run."""
        return self.reference, self.distributed

    @property
    def steps(self) -> int:
        """Number of steps that both runs completed on every rank."""
        return shared_steps(self.reference, self.distributed)

    def differences(
        self, kinds: tuple[VariableKind, ...] = WEIGHTS, first_step: int = 0, last_step: int | None = None
    ) -> Differences:
        """Compare every component of the variables of some kinds, step by step, up to the first difference."""
        key = (kinds, first_step, self.steps if last_step is None else last_step)
        if key not in self._kept:
            self._kept[key] = self._compare(*key)
        return self._kept[key]

    def _compare(self, kinds: tuple[VariableKind, ...], first_step: int, last_step: int) -> Differences:
        compared = 0
        undecided: Place | None = None
        pairs = [
            (ours, theirs)
            for ours, theirs in zip(self.reference.variables, self.distributed.variables, strict=False)
            if ours.kind in kinds and theirs.kind is ours.kind
        ]
        for step in range(first_step, last_step + 1):
            beyond: list[Place] = []
            finite = True
            for variable, theirs in pairs:
                if step == 0 and (variable.since or theirs.since):
                    continue
                values = compared_with_reference(self.reference, self.distributed, variable, step)
                for rank, replica, actual, desired in values:
                    compared += 1
                    finite = finite and all_finite(desired)
                    found = difference(actual, desired)
                    bound = self.tolerance.variable(variable.index, step)
                    decision = bound.judge(found.error)
                    if decision is Decision.WITHIN:
                        continue
                    place = Place(variable, step, rank.rank, replica, found, bound)
                    if decision is Decision.BEYOND:
                        beyond.append(place)
                    elif self.tolerance.is_gross(variable.index, step, actual, desired) and (
                        undecided is None or place.excess > undecided.excess
                    ):
                        undecided = place
            if beyond:
                beyond.sort(key=lambda place: (-place.excess, -place.difference.error))
                return Differences(compared, step, (self._with_ratio(beyond[0]), *beyond[1:]), undecided)
            # Non-finite weights spoil everything after them. Other variables can still be compared one by one.
            if not finite and kinds == WEIGHTS:
                return Differences(compared, step, (), undecided, not_finite=step)
        return Differences(compared, last_step, (), undecided)

    def _with_ratio(self, place: Place) -> Place:
        if place.step == 0:
            return place
        ours = update(self.reference, place.variable.index, place.step)
        for rank, replica, theirs in component_updates(self.distributed, place.variable.index, place.step):
            if (rank, replica) == (place.rank, place.replica) and ours is not None and ours.shape == theirs.shape:
                return replace(place, ratio=ratio_of_norms(theirs, ours))
        return place
