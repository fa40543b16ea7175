"""Read records for the checks: weights, batch sizes, and the first step in which weights differ."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Float, is_numeric
from pytest_ddl.hints import Hint
from pytest_ddl.messages import listed
from pytest_ddl.records import Array, DrawRecord, RankRecord, TrainingRecord, VariableKind, VariableRecord
from pytest_ddl.training.observers.draws import HASHED

WEIGHTS = (VariableKind.TRAINABLE, VariableKind.FROZEN)
_NUMBER = re.compile(r"_\d+$")


def of_kind(record: TrainingRecord, *kinds: VariableKind) -> list[VariableRecord]:
    """Return the watched variables of some kinds."""
    return [variable for variable in record.variables if variable.kind in kinds]


def shared_steps(reference: TrainingRecord, distributed: TrainingRecord) -> int:
    """Return the number of steps that both runs completed on every rank."""
    return min(reference.num_steps, distributed.num_steps)


def is_asynchronous(record: TrainingRecord) -> bool:
    """Return whether steps ran concurrently. A value that was read between two steps then belongs to neither."""
    return any(rank.asynchronous for rank in record.ranks)


def combines(variable: VariableRecord) -> bool:
    """Return whether an assignment in a replica function gives every component the sum or mean over the replicas."""
    return variable.aggregation.lower().rsplit(".", 1)[-1] in ("mean", "sum")


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
    by_replica: dict[int, int] = {}
    for batch in record.batches(step):
        by_replica[batch.replica] = by_replica.get(batch.replica, 0) + batch.size
    return by_replica


def observed_together(record: TrainingRecord, steps: int) -> Iterator[range]:
    """Yield the steps up to ``steps`` in groups: for each group it is known which batches its steps consumed together.

    A group has one step, unless steps ran concurrently and their batches could not be shared out. This is so when a
    closure ran again after it had taken a batch. The last step of such a group then has the batches of all.
    """
    first = 1
    for step in range(1, steps + 1):
        if is_asynchronous(record) and step < steps and not record.batches(step):
            continue
        yield range(first, step + 1)
        first = step + 1


def resumed_after(record: TrainingRecord) -> int:
    """Return the last step before a run was interrupted, or 0. A killed rank leaves no details of these steps."""
    return max((step for rank in record.ranks for step in rank.resumed), default=0)


def has_lost_details(record: TrainingRecord, step: int) -> bool:
    """Return whether all that a step computed was lost with the ranks that were killed after it."""
    steps = [rank.steps[step - 1] for rank in record.ranks if len(rank.steps) >= step]
    return step <= resumed_after(record) and not any(one.gradients or one.reductions for one in steps)


def replicas_of(record: TrainingRecord, step: int) -> list[int]:
    """Return the replicas that took part in a step: all, unless the run was resumed on another number of them."""
    consumed = sorted({batch.replica for batch in record.batches(step)})
    resumed = any(rank.resumed for rank in record.ranks)
    return consumed if resumed and consumed else list(range(record.num_replicas))


def is_uneven(record: TrainingRecord, step: int) -> bool:
    """Return whether the replicas' batches in a step differ in size or do not split the global batch evenly."""
    by_replica = sizes(record, step)
    total = sum(by_replica.values())
    return bool(by_replica) and (total % record.num_replicas != 0 or len(set(by_replica.values())) > 1)


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
    return (
        f"{len(names)} variable(s) are trained but not watched, so they were not compared: "
        f"{listed(names)}; {Hint.WATCH_ALL}"
    )


def built_late(record: TrainingRecord, index: int) -> bool:
    """Return whether a variable has no value that was recorded before the first step."""
    return record.variables[index].since > 0 or record.value(index, 0) is None


def update(record: TrainingRecord, index: int, step: int) -> Float | None:
    """Return the change of a variable (first component) in a step, without values that were taken over after it."""
    before, after = record.value(index, step - 1), record.value(index, step)
    if step in record.taken_over and (own := record.ranks[0].steps[step - 1].own) is not None:
        after = next(iter(own.get(index, ())), None)
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


def executions(draw: DrawRecord) -> int:
    """Return how often an operation drew in a step: more than once in a loop, or in several calls."""
    return max(draw.size // max(min(math.prod(draw.shape), HASHED), 1), 1)


def owner_of(record: TrainingRecord, variable: VariableRecord) -> str:
    """Return the type of the layer that a state belongs to, or the name of what holds it.

    Two layers of one type have the same owner, and so have two objects whose names differ only in a number that Keras
    has added.
    """
    components = [_NUMBER.sub("", part) for part in variable.name.split("/")]
    types = {_NUMBER.sub("", layer.name): layer.type for rank in record.ranks[:1] for layer in rank.layers}
    known = next((types[part] for part in components if part in types), None)
    return known or "/".join(components[:-1] or components)
