"""Measure how far each variable moves in a run, and how far rounding moves it there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import all_finite, difference, magnitude
from pytest_ddl.records import Array, TrainingRecord, VariableKind


class Movement:
    """Movement of the variables of a reference, and their distance from it in runs that draw the rounding anew."""

    def __init__(self, reference: TrainingRecord, perturbed: Sequence[TrainingRecord], since_start: bool) -> None:
        """Prepare the movement of a reference.

        :param perturbed: runs with weights and data moved by one ulp.
        :param since_start: True if only the change since the first step counts as distance between two runs.
        """
        self._reference = reference
        self._perturbed = perturbed
        self._since_start = since_start
        self._relative: dict[tuple[VariableKind, int], float] = {}
        self._paths: dict[int, list[float]] = {}
        self._magnitudes: dict[tuple[int, int], float] = {}

    def magnitude(self, index: int, step: int) -> float:
        """Return the largest absolute value of a variable after a step."""
        key = (index, step)
        if key not in self._magnitudes:
            self._magnitudes[key] = magnitude(self._reference.value(index, step))
        return self._magnitudes[key]

    def path(self, index: int) -> list[float]:
        """Return the largest change of the variable in each step of the reference; entry 0 is 0."""
        if index not in self._paths:
            values = [self._reference.value(index, step) for step in range(self._reference.num_steps + 1)]
            since = self._reference.variables[index].since
            if since and since < len(values):
                values[since] = values[0]
            if self._reference.variables[index].kind is VariableKind.SLOT:
                values = _from_zero(values)
            changes = [0.0]
            for before, after in pairwise(values):
                comparable = before is not None and after is not None and before.shape == after.shape
                change = after.astype(np.float64) - before.astype(np.float64) if comparable else None  # type: ignore[union-attr]
                changes.append(magnitude(change))
            # The changes before a weight was watched were not seen. They were no larger than the later ones; otherwise
            # all later changes would be noise.
            changes[1 : since + 1] = [max(changes)] * len(changes[1 : since + 1])
            self._paths[index] = changes
        return self._paths[index]

    def largest_steps(self, kind: VariableKind, step: int) -> list[float]:
        """Return the largest change that each variable of a kind made in one step until now."""
        variables = (variable for variable in self._reference.variables if variable.kind is kind)
        return [max(self.path(variable.index)[: step + 1], default=0.0) for variable in variables]

    def noise(self, index: int, step: int, runs: Sequence[TrainingRecord] | None = None) -> list[float]:
        """Return the distance of a variable from the reference in each perturbed or other run that has a step."""
        chosen = self._perturbed if runs is None else runs
        return [
            _distance(self._reference, run, index, step, self._since_start) for run in chosen if run.num_steps >= step
        ]

    def shared_noise(self, kind: VariableKind, step: int) -> float:
        """Return the largest noise among the variables of a kind, relative to the distance that each has moved."""
        if (kind, step) not in self._relative:
            found = [0.0]
            for variable in self._reference.variables:
                moved = sum(self.path(variable.index)[: step + 1]) if variable.kind is kind else 0.0
                if moved:
                    found += [noise / moved for noise in self.noise(variable.index, step)]
            self._relative[kind, step] = max(found)
        return self._relative[kind, step]


def _distance(reference: TrainingRecord, perturbed: TrainingRecord, index: int, step: int, changes: bool) -> float:
    """Return the distance between a perturbed run and the reference; infinite if only one of them is finite.

    :param changes: compare the changes since step 0, if both have a value there.
    """
    left, right = perturbed.value(index, step), reference.value(index, step)
    if left is None or right is None:
        return 0.0
    first, second = perturbed.value(index, 0), reference.value(index, 0)
    if not changes or first is None or second is None or not first.shape == second.shape == left.shape == right.shape:
        return difference(left, right).error
    if not all(all_finite(value) for value in (left, right, first, second)):
        return difference(left, right).error
    return magnitude((left - first.astype(np.float64)) - (right - second.astype(np.float64)))


def _from_zero(values: list[Array | None]) -> list[Array | None]:
    """Replace the first value of a slot with zero if the slot was first seen after an update.

    Optimizers start their slots with zero.
    """
    first, second = (*values, None)[:2]
    if second is None or (first is not None and difference(first, second).error > 0):
        return values
    return [np.zeros_like(second), *values[1:]]
