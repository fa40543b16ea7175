"""Numbers that a program reports: named values of its steps and results of its calls, paired with one device."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import difference, farthest, magnitude
from pytest_ddl.equivalence.evidence.bounds import Bound, Decision
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.evidence.metric_state import state_agrees
from pytest_ddl.equivalence.evidence.results import Returned, returned
from pytest_ddl.equivalence.evidence.tolerance import GROSS
from pytest_ddl.equivalence.findings import Reason
from pytest_ddl.records import Array, RankRecord, TrainingRecord

_PLACE = re.compile(r"(?:rank|replica|worker|task|device|process(?:es)?)(?:id|s)?", re.IGNORECASE)
_COUNTED = re.compile(
    r"batch(?:es)?|count|current|example|global|id|in|index|local|my|n|num|number|of|on|per|row|sample|shard|size|sync"
    r"|the|this|total|world",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
"""Words of a name. A value whose name has another word, such as ``task_recall``, is a result of the training."""


@dataclass(frozen=True)
class Reported:
    """Number or array that both runs have after a step, and its bound."""

    name: str
    step: int
    actual: Array
    desired: Array
    bound: Bound
    again: Array | None = None
    """Value in a second run of the unchanged reference; ``None`` without such a run."""
    of_equal_parts: Array | None = None
    """Value in a run in which all replicas count equally in uneven steps; ``None`` without such a run."""
    far: tuple[Array, ...] = ()
    """Values in runs that are moved as far as rounding may move them at most."""
    kept: bool = True
    """True if it may hold something that the program kept from earlier steps."""
    of_a_place: bool = False
    """True if it is a number of ranks or replicas, or the index of one, which one device cannot have."""
    by_fit: bool = False
    """True if ``fit`` shows it within an epoch."""

    def judged(self, taken_over: tuple[int, ...]) -> Decision | Reason:
        """Decide on the value, or return why no bound can decide.

        :param taken_over: steps after which one device took over the weights of the strategy.
        """
        if self.of_a_place:
            return Reason.OF_A_PLACE
        error, bound = difference(self.actual, self.desired).error, self.bound
        if error == 0.0 and not np.any(np.isfinite(self.desired)):
            return Reason.NOT_FINITE
        if bound.measured and bound.value > bound.effect and not math.isinf(error):
            # A time, an unseeded random number, or the result of training that amplifies rounding. Only the first two
            # differ in a second run of the same program.
            if self.again is None:
                return Reason.NOT_REPEATED
            if difference(self.again, self.desired).error > bound.unamplified:
                return Reason.NOT_REPRODUCIBLE
        decision = bound.judge(error)
        if decision is Decision.UNDECIDED:
            return Reason.TOO_WIDE
        if decision is Decision.BEYOND and self.far and error <= farthest(self.far, self.desired) + bound.value:
            return Reason.JUMPS
        if decision is not Decision.BEYOND or not self.kept:
            return decision
        if taken_over and self._is_of_equal_parts():
            # The program computed it before one device took over weights, from those that equal parts give.
            return Decision.WITHIN
        # Sums and averages that the program keeps by itself are not taken over. They differ by what is tolerated.
        earlier = any(step <= self.step for step in taken_over)
        gross = not earlier or not error <= GROSS * magnitude(self.desired)
        return decision if gross else Reason.KEPT

    def _is_of_equal_parts(self) -> bool:
        """Return whether the value is right for replicas that count equally in uneven steps, which is tolerated."""
        return self.of_equal_parts is not None and (
            difference(self.actual, self.of_equal_parts).error <= self.bound.value
        )


def values(comparison: Comparison, step: int) -> Iterator[tuple[RankRecord, Reported]]:
    """Yield each named value of a step that both runs have, with its rank.

    The running mean that ``fit`` shows is left out, because it is also the loss of the step.
    """
    reference, distributed = comparison.records
    ours = reference.ranks[0].steps[step - 1].values
    repeated, equal = (_values_of(run, step) for run in (comparison.tolerance.again, comparison.tolerance.equal_parts))
    far = [_values_of(run, step) for run in comparison.tolerance.far]
    for rank in distributed.ranks:
        theirs = rank.steps[step - 1].values
        # Within an epoch, fit shows what the replicas' metrics show, which is no value that the program keeps.
        is_shown = RUNNING_MEAN in theirs and state_agrees(comparison, step)
        for name in theirs:
            if name in ours and name != RUNNING_MEAN:
                yield (
                    rank,
                    Reported(
                        name,
                        step,
                        np.asarray(theirs[name]),
                        np.asarray(ours[name]),
                        comparison.tolerance.value(name, step),
                        repeated.get(name),
                        equal.get(name),
                        tuple(run[name] for run in far if name in run),
                        kept=not is_shown,
                        of_a_place=_tells_place(name, theirs[name], ours[name], comparison, rank),
                        by_fit=RUNNING_MEAN in theirs,
                    ),
                )


def _values_of(run: TrainingRecord | None, step: int) -> dict[str, Array]:
    if run is None or run.num_steps < step:
        return {}
    return {name: np.asarray(value) for name, value in run.ranks[0].steps[step - 1].values.items()}


def results(comparison: Comparison) -> Iterator[tuple[RankRecord, Returned, Reported]]:
    """Yield each result of a call that both runs have, with its rank."""
    reference, distributed = comparison.records
    ours = returned(reference.ranks[0])
    noisy, far = (
        [returned(run.ranks[0]) for run in runs if run.ranks]
        for runs in (comparison.tolerance.perturbed, comparison.tolerance.far)
    )
    repeated, equal = (
        returned(run.ranks[0]) if run is not None and run.ranks else {}
        for run in (comparison.tolerance.again, comparison.tolerance.equal_parts)
    )
    for rank in distributed.ranks:
        for key, actual in returned(rank).items():
            if key not in ours:
                continue
            bound = comparison.tolerance.result(ours[key].value, [run[key].value for run in noisy if key in run])
            value, alike = (run[key].value if key in run else None for run in (repeated, equal))
            kept, jumped = actual.kind == "fit", tuple(run[key].value for run in far if key in run)
            reported = Reported(
                actual.name, actual.step, actual.value, ours[key].value, bound, value, alike, jumped, kept
            )
            yield rank, actual, reported


def _tells_place(name: str, actual: float, desired: float, comparison: Comparison, rank: RankRecord) -> bool:
    """Return whether a value is the index of a rank, a number of replicas or a share of the batch, in both runs.

    Its name must say so, too: a sum over the replicas is N times the value of one device as well.
    """
    words = _WORD.findall(name.partition("#")[0])
    if not any(map(_PLACE.fullmatch, words)):
        return False
    if not all(_PLACE.fullmatch(word) or _COUNTED.fullmatch(word.removesuffix("s")) for word in words):
        return False
    reference, distributed = comparison.records
    return (actual, desired) in zip(_places(distributed, rank), _places(reference, reference.ranks[0]), strict=True)


def _places(record: TrainingRecord, rank: RankRecord) -> tuple[float, ...]:
    share = (record.global_batch_size or 0) / record.num_replicas
    return rank.rank, record.num_replicas, len(record.ranks), len(rank.replicas), share
