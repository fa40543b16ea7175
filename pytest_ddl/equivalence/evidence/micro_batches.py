"""Find the micro-batches that make up an update of a run, and solve the update for their weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from pytest_ddl.equivalence.evidence.arithmetic import unit_roundoff
from pytest_ddl.equivalence.evidence.arrays import Float, all_finite, coefficient, difference, magnitude
from pytest_ddl.equivalence.evidence.combination import Weights, solve
from pytest_ddl.equivalence.evidence.gradients import by_replica, calls, total
from pytest_ddl.equivalence.evidence.observe import of_kind, update
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import GradientStage, TrainingRecord, VariableKind, VariableRecord


@dataclass(frozen=True)
class MicroBatch:
    """Gradients of one call of the tape."""

    step: int
    values: Mapping[int, Float]
    replica: int = -1
    """-1 if the gradients are summed over all replicas."""
    late: bool = False
    """True if they were computed after the update of their step, so that only a later update can count them."""

    @property
    def due(self) -> int:
        """First step whose update can count them."""
        return self.step + self.late


@dataclass(frozen=True)
class Window:
    """Micro-batches that an update may be made of."""

    since: int
    """Step of the previous update; 0 if there is none."""
    step: int
    current: Sequence[MicroBatch]
    """Micro-batches since the previous update."""
    older: Sequence[MicroBatch]

    @property
    def spans_steps(self) -> bool:
        return len({batch.step for batch in self.current}) > 1


@dataclass(frozen=True)
class Group:
    """Weights of a run whose gradients come from the same calls, and their updates in each step."""

    record: TrainingRecord
    tolerance: Tolerance
    variables: tuple[VariableRecord, ...]
    batches: tuple[MicroBatch, ...]
    handed: Mapping[int, Mapping[int, Float]]
    """Step -> the gradients handed over in it, summed over all replicas. Steps without a call are absent."""
    by_hand: bool
    """True if no optimizer was called, so that ``handed`` holds changes of the weights."""
    late: frozenset[tuple[int, int]] = frozenset()
    """``(step, call)`` of the gradients that were computed after the update of their step."""

    @cached_property
    def updates(self) -> list[int]:
        """Steps in which something other than zeros was handed over."""
        return [step for step, values in self.handed.items() if any(map(np.any, values.values()))]

    @property
    def withheld(self) -> list[int]:
        """Steps in which only zeros were handed over although gradients were computed."""
        computed = {batch.step for batch in self.batches if any(map(np.any, batch.values.values()))}
        return [step for step in self.handed if step not in self.updates and step in computed]

    @cached_property
    def accumulates(self) -> bool:
        """True if some update is the sum of the gradients of several steps."""
        return any(w.spans_steps and self.factor(w.step, w.current) is not None for w in self.windows())

    def windows(self, batches: Sequence[MicroBatch] | None = None) -> Iterator[Window]:
        """Yield a window for each update that has micro-batches since the previous update.

        :param batches: ``None`` for all micro-batches of the group.
        """
        batches = self.batches if batches is None else batches
        for since, step in pairwise([0, *self.updates]):
            current = [batch for batch in batches if since < batch.due <= step]
            if current:
                yield Window(since, step, current, [batch for batch in batches if batch.due <= since])

    @property
    def unexplained(self) -> int:
        """Number of updates that are no multiple of the sum of their micro-batches."""
        return sum(self.factor(window.step, window.current) is None for window in self.windows())

    def of_replicas(self) -> list[MicroBatch]:
        """Return the micro-batches of each replica, without those whose gradients are not finite."""
        parts = []
        for step in range(1, self.record.num_steps + 1):
            for call in calls(self.record, step, GradientStage.COMPUTED):
                given = ((v.index, call.values.get(v.index)) for v in self.variables)
                values = {index: np.asarray(value, np.float64) for index, value in given if value is not None}
                if values and all(map(all_finite, values.values())):
                    parts.append(MicroBatch(step, values, call.replica, (step, call.call) in self.late))
        return parts

    def slack(self, step: int, batches: Sequence[MicroBatch]) -> dict[int, float]:
        """Return the rounding error of a sum of micro-batches, and of a weight to which it is added."""
        slacks = {}
        for variable in self.variables:
            roundoff = max(unit_roundoff(variable.dtype), self.tolerance.compute_roundoff)
            parts = [*(batch.values for batch in batches), self.handed[step]]
            scale = sum(magnitude(part[variable.index]) for part in parts if variable.index in part)
            stored = unit_roundoff(variable.dtype) * magnitude(self.record.value(variable.index, step))
            length = len(batches) + self.record.num_replicas
            sums = 2 * self.tolerance.gamma(length, roundoff) * scale
            slacks[variable.index] = sums + (4 * stored if self.by_hand else 0.0)
        return slacks

    def factor(
        self, step: int, batches: Sequence[MicroBatch], slack: Mapping[int, float] | None = None
    ) -> float | None:
        """Return the number by which the sum of the micro-batches gives the update; ``None`` if there is none."""
        handed, slack = self.handed[step], self.slack(step, batches) if slack is None else slack
        summed = {index: np.sum([batch.values[index] for batch in batches], axis=0) for index in handed}
        left, right = (np.concatenate([np.ravel(part[index]) for index in handed]) for part in (handed, summed))
        factor = coefficient(left, right)
        if not factor:
            return None
        # Rounding changes the factor as much as the sum, relative to the size of the sum.
        shared = max(slack.values()) / magnitude(right)
        fits = all(
            difference(handed[i], factor * summed[i]).error
            <= slack[i] * max(1.0, abs(factor)) + shared * magnitude(summed[i])
            for i in handed
        )
        return factor if fits else None

    def weights(self, step: int, batches: Sequence[MicroBatch]) -> Weights | None:
        """Solve an update for the weights of micro-batches; ``None`` if no weights make it, or several do."""
        handed = self.handed[step]
        parts = [{index: batch.values[index] for index in handed if index in batch.values} for batch in batches]
        return solve(handed, parts, self.slack(step, batches))


def groups_of(record: TrainingRecord, tolerance: Tolerance) -> Iterator[Group]:
    """Group the weights by the calls that compute their gradients and by the steps that update them."""
    trainable = {v.index: v for v in of_kind(record, VariableKind.TRAINABLE)}
    steps = range(1, record.num_steps + 1)
    summed = _summed(record, trainable)
    keys, batches = list(summed), list(summed.values())
    by_hand = not any(calls(record, step, GradientStage.APPLIED) for step in steps)
    given = {
        step: _changed(record, trainable, step) if by_hand else total(by_replica(record, step, GradientStage.APPLIED))
        for step in steps
    }
    for computed, indices in _grouped(trainable, batches, given):
        handed = {}
        for step, every in given.items():
            values = {index: every[index] for index in indices if index in every}
            # A weight that stands still in a program without an optimizer got no update, not an update of zero.
            if values and all(map(all_finite, values.values())) and (not by_hand or any(map(np.any, values.values()))):
                handed[step] = values
        parts = {n: MicroBatch(batches[n].step, {i: batches[n].values[i] for i in indices}) for n in computed}
        # Zeros add nothing to an update. A weight may have no other gradient until another weight moves.
        parts = {n: part for n, part in parts.items() if any(map(np.any, part.values.values()))}
        if all(all_finite(value) for part in parts.values() for value in part.values.values()):
            variables = tuple(trainable[index] for index in indices)
            group = Group(record, tolerance, variables, tuple(parts.values()), handed, by_hand)
            yield _updated_first(group, [keys[n] for n in parts]) if group.unexplained else group


def _grouped(
    indices: Iterable[int], batches: Sequence[MicroBatch], given: Mapping[int, Mapping[int, Float]]
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Yield weights that belong together, after the positions of the batches that compute their gradients.

    :param given: step -> updates. Weights of one group are updated in the same steps.
    """
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for index in indices:
        computed = tuple(n for n, batch in enumerate(batches) if index in batch.values)
        due = tuple(step for step, values in given.items() if index in values and np.any(values[index]))
        if computed:
            groups.setdefault((computed, due), []).append(index)
    for (computed, _due), group in groups.items():
        yield computed, group


def _updated_first(group: Group, keys: Sequence[tuple[int, int]]) -> Group:
    """Return the group as a program that updates at the start of a step made it, if this fits the records better.

    A loop may call ``apply_gradients`` after it has recorded its step. The update then counts for the next step, before
    the gradients of that step are computed.

    :param keys: ``(step, call)`` of each micro-batch of the group.
    """
    # The order is not known for an update by hand: nothing is called there.
    late = frozenset(keys) if group.by_hand else _after_update(group.record, {v.index for v in group.variables})
    batches = tuple(replace(batch, late=key in late) for batch, key in zip(group.batches, keys, strict=True))
    other = replace(group, batches=batches, late=late)
    return other if late and other.unexplained < group.unexplained + (not group.by_hand) else group


def _after_update(record: TrainingRecord, indices: Set[int]) -> frozenset[tuple[int, int]]:
    """Return ``(step, call)`` of all gradients of the steps that update first, and compute gradients only afterwards.

    A step that computes gradients before and after its update may do the latter to show them.
    """
    calls_after = set()
    for step in range(1, record.num_steps + 1):
        computed, early = set(), False
        for rank in record.ranks:
            updated = set()
            for item in reversed(rank.steps[step - 1].gradients):
                if indices.isdisjoint(item.values):
                    continue
                if item.stage is GradientStage.APPLIED:
                    updated.add(item.replica)
                else:
                    computed.add((step, item.call))
                    early = early or item.replica in updated
        calls_after |= set() if early else computed
    return frozenset(calls_after)


def _summed(record: TrainingRecord, trainable: Mapping[int, VariableRecord]) -> dict[tuple[int, int], MicroBatch]:
    """Map ``(step, call)`` to the gradients of each call of the tape, summed over replicas."""
    sums: dict[tuple[int, int], dict[int, Float]] = {}
    for step in range(1, record.num_steps + 1):
        for item in calls(record, step, GradientStage.COMPUTED):
            added = sums.setdefault((step, item.call), {})
            for index, value in item.values.items():
                if value is not None and index in trainable:
                    dense = np.asarray(value, np.float64)
                    added[index] = added[index] + dense if index in added else dense
    return {key: MicroBatch(key[0], values) for key, values in sorted(sums.items()) if values}


def _changed(record: TrainingRecord, trainable: Mapping[int, VariableRecord], step: int) -> dict[int, Float]:
    updates = ((index, update(record, index, step)) for index in trainable)
    return {index: -change for index, change in updates if change is not None}
