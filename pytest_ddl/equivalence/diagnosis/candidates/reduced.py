"""Candidate for a statistic that the program reduces over replicas, and that is not the one of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit
from pytest_ddl.equivalence.diagnosis.candidates.shared import adds_up
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, difference, magnitude
from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.records import GradientStage, ReductionRecord, TrainingRecord

CAUSE = "reduced-value-wrong"
_ALIKE = {"float64": 1e-9}
"""Largest relative difference of equal values. The factors and spreads that are looked for are far larger."""
_ALIKE_ELSE = 1e-4


Sums = list[dict[int, Float]]
"""Gradients that one device uses, and then those of each replica."""


@dataclass(frozen=True)
class ReducedPair:
    """One reduction that both runs requested."""

    position: int
    op: str
    desired: Float
    """Result on one device, which has all examples."""
    alone: Float
    """Value that one device gave."""
    given: Sequence[Float]
    received: Float
    accuracy: float

    def is_desired(self, value: Float) -> bool:
        return difference(value, self.desired).error <= self.accuracy * max(magnitude(self.desired), magnitude(value))

    @property
    def mean(self) -> Float:
        return np.asarray(np.mean(self.given, axis=0))

    @property
    def is_right(self) -> bool:
        """True if the result is that of one device, or no input depends on the examples."""
        return self.is_desired(self.received) or all(map(self.is_desired, self.given))


def reduced_otherwise(case: Case) -> Fit | None:
    """Test for a mean of variances (or deviations), a sum of means, or a mean of sums, in the forward pass.

    The variance of the whole batch is the mean of the replicas' variances and the variance of their means. So it shows
    only if the program reduces the means too. A program may divide a sum of means later, so that this is named only
    if nothing was recomputed.
    """
    source = case.computed
    if case.replicas == 1 or source is None or not case.same_examples or adds_up(case, source):
        return None
    pairs = list(reduced_pairs(case))
    wrong = [pair for pair in pairs if not pair.is_right]
    for pair in wrong:
        what = _spread(pair, pairs)
        if what:
            return _fit(
                case, pair, f"the mean of the replicas' {what}; that of one device also has the spread of means"
            )
    number = case.replicas
    for pair in wrong[:1]:
        if pair.op == "SUM" and pair.is_desired(pair.mean):
            return _fit(case, pair, f"a sum of means: {number} times that of one device, unless it is divided later")
        if pair.op == "MEAN" and pair.is_desired(number * pair.mean):
            return _fit(case, pair, f"a mean of sums: 1/{number} of that of one device, unless it is multiplied later")
    return None


def _spread(pair: ReducedPair, pairs: Sequence[ReducedPair]) -> str:
    """Return what the replicas give, if only the spread of their means is missing in the result."""
    for other in pairs:
        if other.desired.shape != pair.desired.shape or other is pair or not other.is_desired(other.mean):
            continue
        spread = np.var(other.given, axis=0)
        if np.any(spread) and pair.is_desired(pair.mean + spread):
            return "variances"
        squares = np.mean(np.square(pair.given), axis=0) + spread
        if np.any(spread) and np.all(pair.desired >= 0) and pair.is_desired(np.sqrt(squares)):
            return "standard deviations"
    return ""


def _fit(case: Case, pair: ReducedPair, what: str) -> Fit:
    asked = (item for rank in case.distributed.ranks[:1] for graph in rank.graphs for item in graph.asked)
    where = next((item.where for item in asked if item.kind == "all_reduce" and item.group == pair.position), "")
    at = f" at {where}" if where else ""
    evidence = f"the all_reduce{at} (number {pair.position + 1} of the replica function) gives {what}"
    return Fit(CAUSE, evidence, grounds=Grounds.PATTERN)


def handed_sums(case: Case) -> Sums:
    """Return the gradients that are handed to the optimizer, or else to a reduction of the program."""
    for source in case.sources:
        if source.stage is GradientStage.APPLIED:
            return [source.own, *source.parts]
    pairs = list(reduced_pairs(case))
    shapes = [motion.ours.shape for motion in case.weights]
    for first in range(len(pairs) - len(shapes) + 1):
        window = pairs[first : first + len(shapes)]
        if shapes and [pair.desired.shape for pair in window] == shapes:
            indices = [motion.variable.index for motion in case.weights]
            columns = [[pair.alone, *pair.given] for pair in window]
            return [dict(zip(indices, values, strict=True)) for values in zip(*columns, strict=True)]
    return []


def added_in_full(case: Case) -> Fit | None:
    """Test for numbers that every replica adds to its right gradient, as one device does once."""
    computed, sums = case.computed, handed_sums(case)
    if case.replicas == 1 or computed is None or not sums or not adds_up(case, computed):
        return None
    close, named = case.close(2.0), []
    update = {motion.variable.index: motion for motion in case.pulls}
    for index, own in computed.own.items():
        before = [own, *(part.get(index, np.zeros_like(own)) for part in computed.parts)]
        after = [handed.get(index) for handed in sums]
        added = [np.asarray(new - old) for new, old in zip(after, before, strict=True) if new is not None]
        if len(added) != len(before) or not all(close(index, term, added[0]) for term in added[1:]):
            return None
        if index in update and not close(index, update[index].theirs[0], own + case.replicas * added[0]):
            return None
        if not close(index, added[0], np.zeros_like(own)):
            named += [motion.variable.name for motion in case.weights if motion.variable.index == index]
    if not named:
        return None
    return Fit(
        "term-added-by-every-replica",
        f"each replica adds the same numbers to its gradient of {', '.join(named[:3])} as one device, so the sum has "
        f"them {case.replicas} times",
        grounds=Grounds.RECOMPUTED if update else Grounds.PATTERN,
    )


def reduced_pairs(case: Case) -> Iterator[ReducedPair]:
    """Yield the reductions of the step that one device and all replicas requested, in the order of the program."""
    ours, theirs = (_by_position(record, case.step) for record in (case.reference, case.distributed))
    for position, (alone, *more) in ours.items():
        items = theirs.get(position, [])
        arrays = [np.asarray(array, np.float64) for item in items for array in (item.given, item.received)]
        desired = np.asarray(alone.received, np.float64)
        if more or len(items) != case.replicas or any(array.shape != desired.shape for array in arrays):
            return
        if not all(map(all_finite, (desired, *arrays))):
            return
        accuracy = _ALIKE.get(alone.dtype, _ALIKE_ELSE)
        own = np.asarray(alone.given, np.float64)
        yield ReducedPair(position, alone.op, desired, own, arrays[::2], arrays[1], accuracy)


def _by_position(record: TrainingRecord, step: int) -> dict[int, list[ReductionRecord]]:
    by_position: dict[int, list[ReductionRecord]] = {}
    for rank in record.ranks:
        for item in rank.steps[step - 1].reductions:
            by_position.setdefault(item.position, []).append(item)
    return {position: sorted(by_position[position], key=lambda item: item.replica) for position in sorted(by_position)}
