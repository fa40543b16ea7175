"""Recognize values of later steps that are wrong in the way of the first wrong one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.diagnosis.reported import Reported
from pytest_ddl.equivalence.evidence.arrays import all_finite, coefficient, difference
from pytest_ddl.equivalence.evidence.metric_state import Pair, components, resummed
from pytest_ddl.records import TrainingRecord


@dataclass(frozen=True)
class Wrong:
    """Wrong value of one step, and the formulas that make the right one of it."""

    value: Reported
    formulas: frozenset[str] = frozenset()

    def is_like(self, first: Wrong) -> bool:
        """Return whether the same formula or factor explains both, or whether nothing new is wrong since the first."""
        mine, others = self.value, first.value
        if self.formulas & first.formulas:
            return True
        if not mine.kept and not others.kept:
            return True  # fit shows both, and the state of the metric is right
        values = (mine.actual, mine.desired, others.actual, others.desired)
        if len({value.shape for value in values}) != 1 or not all(map(all_finite, values)):
            return False
        actual, desired, before, right = (np.asarray(value, np.float64) for value in values)
        slack = mine.bound.value + others.bound.value
        if difference(actual - desired, before - right).error <= slack:
            return True
        factor = coefficient(before, right)
        if factor is None:
            return False
        slack *= max(1.0, abs(factor))
        return all(difference(a, factor * b).error <= slack for a, b in ((actual, desired), (before, right)))


def formulas(reference: TrainingRecord, distributed: TrainingRecord, pair: Pair, value: Reported) -> frozenset[str]:
    """Return what makes the right state of a metric of the replicas' components, which the program reads otherwise."""
    parts = components(distributed, pair.theirs, value.step)
    if not parts:
        return frozenset()
    slack = value.bound.value * max(1, len(parts))
    made = {
        "sum": np.sum(parts, axis=0),
        "mean": np.mean(parts, axis=0),
        **{f"component {at}": part for at, part in enumerate(parts)},
    }
    fitting = {name for name, result in made.items() if difference(result, value.desired).error <= slack}
    if resummed(reference, distributed, pair, value.step, value.bound.value) is not None:
        fitting.add("summed again")
    return frozenset(fitting)


def steps_alike(wrong: Mapping[int, Sequence[Wrong]], first: Collection[Wrong]) -> Iterator[int]:
    """Yield the later steps whose wrong values are each like the first one of the same name.

    :param wrong: step -> its wrong values.
    """
    firsts = {one.value.name: one for one in first}
    for step, values in wrong.items():
        known = [(one, firsts.get(one.value.name)) for one in values]
        if all(other is None or one.is_like(other) for one, other in known):
            yield step
