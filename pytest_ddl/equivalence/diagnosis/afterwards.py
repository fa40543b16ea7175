"""Compare the final values of variables that a program changes or first watches after its last step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.diagnosis.state_updates import is_read_on_demand, readings
from pytest_ddl.equivalence.evidence.arrays import difference, farthest, magnitude
from pytest_ddl.equivalence.evidence.bounds import Bound, Decision
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.metric_state import combined, counted_by_replica
from pytest_ddl.equivalence.evidence.observe import is_seed
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, inconclusive
from pytest_ddl.hints import Hint
from pytest_ddl.records import Array, TrainingRecord, VariableKind, VariableRecord

CAUSE = "changed-after-last-step"
_CAUSES = {VariableKind.METRIC: "metric-wrong"}
"""Causes of the kinds that a program changes by an evaluation."""
_COUNTERS = (VariableKind.ITERATIONS, VariableKind.LEARNING_RATE, VariableKind.METRIC)
"""Kinds of variables from which no program computes its final weights.

Almost every step that is cut off has increased the count of updates, from which a schedule computes the rate.
"""


@dataclass(frozen=True)
class Ending:
    """Final value of a variable that one of the programs changed after its loop."""

    variable: VariableRecord
    """The variable of one device."""
    error: float
    """Largest difference from one device."""
    bound: Bound
    growth: float
    """Factor on the bound, because the program may have multiplied the values since its last step."""
    rank: int
    late: bool
    """True if the variable was first watched after the last step, so that no step compares it."""
    jump: float = 0.0
    """Largest difference by rounding in a variable of a metric, which may count examples."""

    @property
    def decision(self) -> Decision:
        return Decision.UNDECIDED if self.jumps else self.bound.judge(self.error / self.growth)

    @property
    def jumps(self) -> bool:
        """True if rounding is enough to move the value as far."""
        bound = self.growth * self.bound.value
        return bound < self.error <= self.jump + bound


def changed_afterwards(check: str, comparison: Comparison, kinds: Sequence[VariableKind]) -> CheckResult | None:
    """Compare the variables that either program changed after its loop; ``None`` if they are equal.

    A step that finds the end of its data may have run in part, and differently in each run. The check decides nothing
    about values that the program computes from such a step.
    """
    wrong = (ending for ending in endings(comparison, kinds) if ending.decision is Decision.BEYOND)
    place = next(wrong, None)
    if place is None:
        return None
    names = _changed_in_part(comparison, place.variable)
    if not names:
        return failed(check, [_finding(check, comparison, place)])
    return inconclusive(
        check,
        f"{place.variable.name} differs from one device when the program ends, and the step in which the data ended "
        f"had changed {', '.join(names[:3])} in part; give the dataset its length "
        f"(tf.data.experimental.assert_cardinality), or pass {Hint.STEPS}",
    )


def not_ended(check: str, comparison: Comparison) -> CheckResult | None:
    """Decide nothing if the values at the end were recorded on one device only; ``None`` otherwise."""
    tasks = [rank.task for rank in comparison.distributed.ranks if rank.final is None]
    ended = all(rank.final is not None for rank in comparison.reference.ranks)
    if tasks and ended and not comparison.distributed.errors:
        return inconclusive(check, f"the values at the end of the program were not recorded on {', '.join(tasks)}")
    return None


def endings(comparison: Comparison, kinds: Sequence[VariableKind]) -> Iterator[Ending]:
    """Yield the final values, on every replica, of the variables that either program changed or watched after its loop.

    Nothing is yielded if a rank did not end.
    """
    steps, reference, distributed = comparison.steps, *comparison.records
    finals = [rank.final for rank in (*reference.ranks, *distributed.ranks)]
    changed = {index for final in finals if final is not None for index in final}
    if not changed or None in finals or reference.num_steps != distributed.num_steps:
        return
    ended = Comparison(_ended(reference), _ended(distributed), comparison.tolerance)
    alike = counted_by_replica(ended, steps)
    for theirs in distributed.variables:
        ours = reference.variables[theirs.index] if theirs.index < len(reference.variables) else None
        if ours is None or ours.kind is not theirs.kind or ours.index not in changed - alike or ours.kind not in kinds:
            continue
        last, desired = reference.value(ours.index, steps), ended.reference.value(ours.index, steps)
        if desired is None:
            continue
        if last is not None and magnitude(last) and ours.kind is not VariableKind.METRIC:
            bound, growth = comparison.tolerance.variable(ours.index, steps), magnitude(desired) / magnitude(last)
        else:  # The value was computed anew, or no step recorded it, so that the steps say nothing about its size.
            values = [value for value in _endings_of(comparison.tolerance.perturbed, ours, steps) if value is not None]
            bound, growth = comparison.tolerance.result(desired, values), 1.0
        # Joining the components of a variable that is read on demand rounds once more.
        growth = max(1.0, growth) * (2.0 if is_read_on_demand(theirs) else 1.0)
        moved = comparison.tolerance.far if ours.kind is VariableKind.METRIC else ()
        far = farthest(_endings_of(moved, ours, steps), desired)
        for rank, actual in as_read(ended.distributed, theirs, steps):
            yield Ending(ours, difference(actual, desired).error, bound, growth, rank, last is None, far)


def _endings_of(runs: Sequence[TrainingRecord], variable: VariableRecord, steps: int) -> list[Array | None]:
    """Return the final value of a variable in each run that has as many steps."""
    return [_ended(run).value(variable.index, steps) for run in runs if run.num_steps == steps]


def as_read(record: TrainingRecord, variable: VariableRecord, step: int) -> list[tuple[int, Array]]:
    """Return the values of a variable as the program reads them, each with its rank.

    There are none for a state that no program reads as one value.
    """
    if variable.kind is VariableKind.STATE and is_seed(variable):
        return []  # the numbers drawn from it are judged instead
    if variable.kind is VariableKind.METRIC:
        value = combined(record, variable, step)
        return [] if value is None else [(record.ranks[0].rank, value)]
    return [(rank, value) for rank, _replica, value in readings(record, variable, step)]


def _ended(record: TrainingRecord) -> TrainingRecord:
    """Return a record whose last step ends with the values that the program ended with."""
    ranks = [
        replace(rank, steps=(*rank.steps[:-1], replace(last, snapshot={**last.snapshot, **(rank.final or {})})))
        for rank in record.ranks
        for last in rank.steps[-1:]
    ]
    return replace(record, ranks=tuple(ranks))


def _changed_in_part(comparison: Comparison, differing: VariableRecord) -> list[str]:
    """Return the names of the variables that a step changed in part, and on which a final value may depend."""
    partly = {index for rank in (*comparison.reference.ranks, *comparison.distributed.ranks) for index in rank.cut_off}
    return [
        variable.name
        for variable in comparison.reference.variables
        if variable.index in partly
        and (variable.kind not in _COUNTERS or differing.kind in _COUNTERS)
        and not (is_read_on_demand(variable) or is_seed(variable))
    ]


def _finding(check: str, comparison: Comparison, found: Ending) -> Finding:
    cause = _CAUSES.get(found.variable.kind, CAUSE)
    name, steps = found.variable.name, comparison.steps
    changed = f", but did not after step {steps}: it was changed after the last recorded step"
    watched = f": it was first watched after step {steps}, which is the last recorded one"
    return Finding(
        check=check,
        message=f"{name} differs from one device when the program ends{watched if found.late else changed}",
        cause=cause,
        step=steps,
        variable=name,
        worker=found.rank,
        error=found.error,
        tolerance=found.growth * found.bound.value,
        fix=SPECIAL["watched-late"] if found.late and cause == CAUSE else None,
        origin=found.bound.origin,
        a_priori=found.bound.a_priori,
    )
