"""Join the steps of an uninterrupted run with those of the last attempt, which continued after one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_ddl.equivalence.evidence.arrays import same_parts
from pytest_ddl.equivalence.runs.resuming import joined, keys_of
from pytest_ddl.faults.trials import TrialRun
from pytest_ddl.records import Array, RankRecord, Snapshot, StepRecord, TrainingRecord, VariableKind
from pytest_ddl.training import lineage

_MADE_BY_A_STEP = (VariableKind.SLOT, VariableKind.ITERATIONS)
"""Kinds of variables that an optimizer may make in its first step."""
SILENT = "the last attempt ended without a loop and without restored values: restore before it returns"
"""Why a verdict is undecided if :func:`is_silent`."""


class Joining:
    """Steps of the uninterrupted run, joined with those of the last attempt, which continued after one of them."""

    def __init__(self, run: TrialRun, baseline: TrainingRecord) -> None:
        self._last, self._baseline = run.last.attempt.ranks, baseline
        known = lineage.lineage_of(baseline.ranks[0])
        self._places = [lineage.place_of(rank, known) for rank in self._last]
        self.done = max(one.completed for one in run.attempts[:-1])
        """Number of steps that were made before the last attempt."""
        own = min((rank.num_steps - place.replaced for rank, place in self._pairs()), default=0)
        starts = {None if one.start is None else one.start + one.replaced for one in self._places}
        self.at = starts.pop() if len(starts) == 1 else None
        """Step after which the last attempt continued; ``None`` if its values belong to no step, or not to one."""
        # If the values are those of no step, the last attempt may have made the steps that were left.
        left = min(self.done, max(0, baseline.num_steps - own))
        latest = max((start for start in starts if start is not None), default=left)
        self.ranks = self._joined_after(min(latest if self.at is None else self.at, baseline.num_steps))
        for at, ranks in self._other_joinings(own):
            # Equal bits at the end prove the number of steps.
            if equal_bits(replace(baseline, ranks=tuple(ranks)), baseline):
                self.at, self.ranks = at, ranks
                break

    def _pairs(self) -> Iterable[tuple[RankRecord, lineage.ResumedPlace]]:
        return zip(self._last, self._places, strict=True)

    @property
    def _is_alike(self) -> bool:
        """Whether the last attempt has as many ranks as the uninterrupted run."""
        return len(self._last) == len(self._baseline.ranks)

    def _joined_after(self, step: int) -> list[RankRecord]:
        """Return the ranks with the steps of the uninterrupted run up to this one, and then their own."""
        before, alike = self._baseline.ranks, self._is_alike
        return [
            _continued(before, replace(rank, steps=rank.steps[place.replaced :]), alike, step, late=place.late)
            for rank, place in self._pairs()
        ]

    def _other_joinings(self, own: int) -> Iterable[tuple[int, list[RankRecord]]]:
        """Return steps after which the last attempt may have continued instead, with the ranks that follow from each.

        :param own: number of steps that the last attempt made.
        """
        whole = self._baseline.num_steps - own
        possible = all(whole - place.replaced in place.starts for place in self._places)
        if whole >= 0 and (self.at is None or (whole != self.at and possible)):
            yield whole, self._joined_after(whole)
        if own and self.at != whole and self._is_alike:
            # A restore after the last step replaced all steps of this attempt.
            before, end = self._baseline.ranks, self._baseline.num_steps
            yield end, [_continued(before, _without_steps(rank), True, end, late=False) for rank in self._last]


def is_silent(run: TrialRun, baseline: TrainingRecord) -> bool:
    """Return whether the last attempt shows no values that it continued with or ended with."""
    known = lineage.lineage_of(baseline.ranks[0])
    return all(_shows_nothing(rank, lineage.place_of(rank, known)) for rank in run.last.attempt.ranks)


def _shows_nothing(rank: RankRecord, place: lineage.ResumedPlace) -> bool:
    """Return whether a rank has no step, and no weights that it restored."""
    if rank.steps:
        return False
    trained = {variable.index for variable in rank.variables if variable.kind is VariableKind.TRAINABLE}
    restored = any(trained & set(values) for values in rank.resumed.values())
    return not restored or (place.start == 0 and bool(rank.facts.get("no_loop", True)))


def _without_steps(rank: RankRecord) -> RankRecord:
    return replace(rank, steps=(), final=None, resumed={0: end_of(rank)})


def _continued(before: Sequence[RankRecord], rank: RankRecord, alike: bool, step: int, late: bool) -> RankRecord:
    """Return the record of a rank with the steps of the uninterrupted run before those of its last attempt.

    :param alike: whether both have the same number of ranks.
    :param late: whether the values with which the loop began are not those with which it continued.
    """
    earlier = before[rank.rank] if alike else _on_other_ranks(before, rank.rank)
    # The earlier run has a folder of its own. Its files are judged by the comparison.
    first = replace(
        earlier,
        rank=rank.rank,
        task=rank.task,
        steps=earlier.steps[:step],
        final=None,
        resumed={},
        results={},
        writes=(),
    )
    parts = next((len(value) for value in rank.initial.values()), 0)
    if any(len(value) != parts for value in first.initial.values()):
        first = _with_components(first, parts)
    # A loop that the program writes shows no values that it began with. It counts its own steps, from 0.
    began, resumed = next(iter(rank.resumed.items()), (0, {}))
    moved = tuple(replace(one, index=step + place) for place, one in enumerate(rank.steps, 1))
    # Before the loop, the program has restored, and its record does not know the step yet.
    results = {name: max(at - began, 0) + step for name, at in rank.result_steps.items()}
    found = {step: resumed} if resumed and not late else {}
    if found and not moved:
        rank, found[step] = _with_unmade(first, rank, resumed)
    end = joined(first, replace(rank, steps=moved, resumed=found, result_steps=results), step)
    if moved or not resumed:
        return end
    # The last attempt made no step, so that it ends with the values that it restored.
    restored = next(iter(end.resumed.values()), {})
    last = first.steps[-1].snapshot if first.steps else first.initial
    changed = {index: parts for index, parts in restored.items() if not same_parts(parts, last.get(index, ()))}
    return replace(end, final={**changed, **(end.final or {})})


def _with_unmade(first: RankRecord, rank: RankRecord, resumed: Snapshot) -> tuple[RankRecord, Snapshot]:
    """Return a rank that made no step, and its restored values, with the saved state of an optimizer that it lacks.

    An optimizer may make this state in its first step. Without a step it is not needed, and the checkpoint keeps it.
    """
    wanted, made = keys_of(first.variables), keys_of(rank.variables)
    last = first.steps[-1].snapshot if first.steps else first.initial
    if not set(made) <= set(wanted):
        return rank, resumed
    variables, values = list(rank.variables), dict(resumed)
    for item, key in zip(first.variables, wanted, strict=True):
        if item.kind in _MADE_BY_A_STEP and key not in made and item.index in last:
            values[len(variables)] = last[item.index]
            variables.append(replace(item, index=len(variables)))
    return replace(rank, variables=tuple(variables)), values


def _on_other_ranks(before: Sequence[RankRecord], rank: int) -> RankRecord:
    """Return a record for a rank of a run with another number of ranks. The first rank has the batches of all."""
    steps = tuple(
        StepRecord(
            step.index,
            step.loss,
            step.values,
            tuple(batch for one in before for batch in one.steps[place].batches) if rank == 0 else (),
            step.snapshot,
        )
        for place, step in enumerate(before[0].steps)
    )
    return replace(before[0], steps=steps, writes=())


def _with_components(rank: RankRecord, number: int) -> RankRecord:
    """Return a record whose variables have another number of replicas, all with the values of the first."""

    def spread(values: Snapshot) -> dict[int, tuple[Array, ...]]:
        return {index: (parts[0],) * number for index, parts in values.items() if parts}

    steps = tuple(replace(step, snapshot=spread(step.snapshot)) for step in rank.steps)
    return replace(rank, initial=spread(rank.initial), steps=steps)


def equal_bits(record: TrainingRecord, baseline: TrainingRecord) -> bool:
    """Return whether all ranks end with the same bits in all variables but metrics."""
    if len(record.ranks) != len(baseline.ranks):
        return False
    return all(_equal_ends(ours, theirs) for ours, theirs in zip(record.ranks, baseline.ranks, strict=True))


def _equal_ends(ours: RankRecord, theirs: RankRecord) -> bool:
    if not _has_all_weights(ours):
        return False
    left, right = end_of(ours), end_of(theirs)
    kept = [item.index for item in theirs.variables if item.kind is not VariableKind.METRIC]
    return bool(kept) and all(index in left and same_parts(left[index], right[index]) for index in kept)


def _has_all_weights(rank: RankRecord) -> bool:
    """Return whether a rank whose last attempt made no step has a value of its own for each trainable variable.

    The other values of its record are those of the uninterrupted run.
    """
    step, resumed = max(rank.resumed.items(), default=(-1, {}))
    if step < rank.num_steps:
        return True
    own = {**resumed, **(rank.final or {})}
    return all(item.index in own for item in rank.variables if item.kind is VariableKind.TRAINABLE)


def end_of(rank: RankRecord) -> dict[int, tuple[Array, ...]]:
    """Return the values with which a rank ended. If it made no step, it ended with those that it restored."""
    last = rank.steps[-1].snapshot if rank.steps else next(iter(rank.resumed.values()), rank.initial)
    return {**last, **(rank.final or {})}
