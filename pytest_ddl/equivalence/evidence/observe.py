"""Read records for the checks: weights, batch sizes, and the first step in which weights differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Difference, Float, all_finite, difference, is_numeric, ratio_of_norms
from pytest_ddl.equivalence.evidence.tolerance import Bound, Decision, Tolerance
from pytest_ddl.records import Array, RankRecord, TrainingRecord, VariableKind, VariableRecord

WEIGHTS = (VariableKind.TRAINABLE, VariableKind.FROZEN)


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
class Comparison:
    """Step-by-step comparison of the variables of some kinds, up to the first difference."""

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


def of_kind(record: TrainingRecord, *kinds: VariableKind) -> list[VariableRecord]:
    """Return the watched variables of some kinds."""
    return [variable for variable in record.variables if variable.kind in kinds]


def shared_steps(reference: TrainingRecord, distributed: TrainingRecord) -> int:
    """Return the number of steps that both runs completed on every rank."""
    return min(reference.num_steps, distributed.num_steps)


def read_locally(variable: VariableRecord) -> bool:
    """Return whether replicas may hold different values that are reduced when the variable is read."""
    lazy = "on_read" in variable.synchronization.lower()
    return lazy or variable.kind is VariableKind.METRIC or is_seed(variable)


def is_seed(variable: VariableRecord) -> bool:
    """Return whether a variable is the state of a generator: a Keras ``SeedGenerator`` or ``tf.random.Generator``."""
    return "seed_generator" in variable.name or variable.name.rsplit("/", 1)[-1].startswith("StateVar")


def is_loss_scale(record: TrainingRecord, variable: VariableRecord) -> bool:
    """Return whether a variable is a loss scale: it has ``scale`` in its name or changes only by powers of two."""
    if variable.kind is not VariableKind.STATE or variable.shape or not variable.dtype.startswith(("float", "bfloat")):
        return False
    if "scale" in variable.name.lower():
        return True
    steps = range(record.num_steps + 1)
    values = [float(value) for step in steps for _r, _c, value in record.components(variable.index, step)]
    if len(set(values)) < 2 or not all(value > 0 and np.isfinite(value) for value in values):
        return False
    return all(np.frexp(value / values[0])[0] == 0.5 for value in values)


def sizes(record: TrainingRecord, step: int) -> dict[int, int]:
    """Return the number of examples per replica in a step; empty if batches were not observed."""
    found: dict[int, int] = {}
    for batch in record.batches(step):
        found[batch.replica] = found.get(batch.replica, 0) + batch.size
    return found


def is_uneven(record: TrainingRecord, step: int) -> bool:
    """Return whether the replicas' batches in a step differ in size or do not split the global batch evenly."""
    found = sizes(record, step)
    total = sum(found.values())
    return bool(found) and (total % record.num_replicas != 0 or len(set(found.values())) > 1)


def compared_with_reference(
    reference: TrainingRecord, distributed: TrainingRecord, variable: VariableRecord, step: int
) -> Iterator[tuple[RankRecord, int, Array, Array]]:
    """Yield ``(rank, replica, actual, desired)`` for each component that has a counterpart."""
    desired = reference.value(variable.index, step)
    if desired is None:
        return
    for rank, replica, actual in distributed.components(variable.index, step):
        yield rank, replica, np.asarray(actual), desired


def unwatched(reference: TrainingRecord, distributed: TrainingRecord) -> str | None:
    """Name the variables that are trained but not watched in either run, with advice; ``None`` if there are none."""
    ranks = (*reference.ranks, *distributed.ranks)
    names = list(dict.fromkeys(name for rank in ranks for name in rank.facts.get("unwatched", ())))
    if not names:
        return None
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"{len(names)} variable(s) are trained and not watched, so that nothing was compared of them: "
        f"{', '.join(names[:3])}{more}; call run.watch(model=...) for the whole model, or run.watch(variables=...)"
    )


def built_late(record: TrainingRecord, index: int) -> bool:
    """Return whether a variable has no value from before the first step."""
    return record.variables[index].since > 0 or record.value(index, 0) is None


def update(record: TrainingRecord, index: int, step: int) -> Float | None:
    """Return the change of a variable (first component) in a step."""
    before, after = record.value(index, step - 1), record.value(index, step)
    if before is None or after is None or before.shape != after.shape or not is_numeric(after):
        return None
    return np.asarray(after, np.float64) - np.asarray(before, np.float64)


def component_updates(record: TrainingRecord, index: int, step: int) -> list[tuple[int, int, Float]]:
    """Return ``(rank, replica, change)`` for every component of a variable in a step."""
    before = {(rank.rank, replica): value for rank, replica, value in record.components(index, step - 1)}
    return [
        (
            rank.rank,
            replica,
            np.asarray(value, np.float64) - np.asarray(before[rank.rank, replica], np.float64),
        )
        for rank, replica, value in record.components(index, step)
        if (rank.rank, replica) in before
    ]


def compare(
    reference: TrainingRecord,
    distributed: TrainingRecord,
    tolerance: Tolerance,
    kinds: tuple[VariableKind, ...] = WEIGHTS,
    first_step: int = 0,
    last_step: int | None = None,
) -> Comparison:
    """Compare every component of the variables of some kinds, step by step, up to the first difference."""
    compared = 0
    undecided: Place | None = None
    last = shared_steps(reference, distributed) if last_step is None else last_step
    pairs = [
        (ours, theirs)
        for ours, theirs in zip(reference.variables, distributed.variables, strict=False)
        if ours.kind in kinds and theirs.kind is ours.kind
    ]
    for step in range(first_step, last + 1):
        beyond: list[Place] = []
        finite = True
        for variable, theirs in pairs:
            if step == 0 and (variable.since or theirs.since):
                continue
            for rank, replica, actual, desired in compared_with_reference(reference, distributed, variable, step):
                compared += 1
                finite = finite and all_finite(desired)
                found = difference(actual, desired)
                bound = tolerance.variable(variable.index, step)
                decision = bound.judge(found.error)
                if decision is Decision.WITHIN:
                    continue
                place = Place(variable, step, rank.rank, replica, found, bound)
                if decision is Decision.BEYOND:
                    beyond.append(place)
                elif tolerance.is_gross(variable.index, step, actual, desired) and (
                    undecided is None or place.excess > undecided.excess
                ):
                    undecided = place
        if beyond:
            beyond.sort(key=lambda place: (-place.excess, -place.difference.error))
            worst = (_with_ratio(reference, distributed, beyond[0]), *beyond[1:])
            return Comparison(compared, step, worst, undecided)
        # Non-finite weights spoil everything after them. Other variables can still be compared one by one.
        if not finite and kinds == WEIGHTS:
            return Comparison(compared, step, (), undecided, not_finite=step)
    return Comparison(compared, last, (), undecided)


def _with_ratio(reference: TrainingRecord, distributed: TrainingRecord, place: Place) -> Place:
    if place.step == 0:
        return place
    ours = update(reference, place.variable.index, place.step)
    for rank, replica, theirs in component_updates(distributed, place.variable.index, place.step):
        if (rank, replica) == (place.rank, place.replica) and ours is not None and ours.shape == theirs.shape:
            ratio = ratio_of_norms(theirs, ours)
            return Place(place.variable, place.step, place.rank, place.replica, place.difference, place.bound, ratio)
    return place
