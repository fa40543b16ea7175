"""Numbers that a program reports: named values of its steps and results of its calls, paired with one device."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import difference, magnitude
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.fit_loss import RUNNING_MEAN
from pytest_ddl.equivalence.evidence.metric_state import state_agrees
from pytest_ddl.equivalence.evidence.results import Returned, returned
from pytest_ddl.equivalence.evidence.tolerance import GROSS, Bound, Decision
from pytest_ddl.equivalence.findings import Reason
from pytest_ddl.records import Array, RankRecord, TrainingRecord

_TOPOLOGY = re.compile(r"(?<![a-z])(?:rank|replica|worker|task|device|process(?:es)?)(?:id|s)?(?![a-z])", re.IGNORECASE)
"""Names of values that may depend on the rank or replica instead of the training."""


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
        # Sums and averages that the program keeps by itself are not taken over. They differ by what is tolerated.
        earlier = any(step <= self.step for step in taken_over)
        gross = not earlier or not error <= GROSS * magnitude(self.desired)
        return Reason.KEPT if decision is Decision.BEYOND and self.kept and not gross else decision


def values(comparison: Comparison, step: int) -> Iterator[tuple[RankRecord, Reported]]:
    """Yield each named value of a step that both runs have, with its rank.

    The running mean that ``fit`` shows is left out, because it is also the loss of the step.
    """
    reference, distributed = comparison.records
    ours, again = reference.ranks[0].steps[step - 1].values, comparison.tolerance.again
    repeated = again.ranks[0].steps[step - 1].values if again is not None and again.num_steps >= step else {}
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
                        np.asarray(repeated[name]) if name in repeated else None,
                        kept=not is_shown,
                        of_a_place=_tells_topology(name, theirs[name], distributed, rank),
                        by_fit=RUNNING_MEAN in theirs,
                    ),
                )


def results(comparison: Comparison) -> Iterator[tuple[RankRecord, Returned, Reported]]:
    """Yield each result of a call that both runs have, with its rank."""
    reference, distributed = comparison.records
    ours, again = returned(reference.ranks[0]), comparison.tolerance.again
    noisy = [returned(run.ranks[0]) for run in comparison.tolerance.perturbed if run.ranks]
    repeated = returned(again.ranks[0]) if again is not None and again.ranks else {}
    for rank in distributed.ranks:
        for key, actual in returned(rank).items():
            if key not in ours:
                continue
            bound = comparison.tolerance.result(ours[key].value, [run[key].value for run in noisy if key in run])
            value = repeated[key].value if key in repeated else None
            kept = actual.kind == "fit"
            reported = Reported(actual.name, actual.step, actual.value, ours[key].value, bound, value, kept=kept)
            yield rank, actual, reported


def _tells_topology(name: str, value: float, record: TrainingRecord, rank: RankRecord) -> bool:
    """Return whether a value is an index or a number of replicas, which must differ from one device."""
    share = (record.global_batch_size or 0) / record.num_replicas
    known = (rank.rank, record.num_replicas, len(record.ranks), len(rank.replicas), share)
    return bool(_TOPOLOGY.search(name)) and value in known
