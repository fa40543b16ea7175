"""Find out how the replicas' values of a state were combined, and how the program gets the value of one device.

After a step, ``assigned`` is the sum of what all replicas assigned, and ``held`` the sum of what they had before it.
Every replica may assign ``d * v + own share``, and one device ``d * v + sum of the shares``. Then
``assigned - ours = d * (held - ours before)``, for any shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.causes.cause import Fix
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.evidence.arrays import (
    Float,
    all_finite,
    coefficient,
    difference,
    flat,
    is_numeric,
    same,
)
from pytest_ddl.equivalence.evidence.comparison import Comparison, Place
from pytest_ddl.equivalence.evidence.observe import of_kind, shared_steps
from pytest_ddl.equivalence.findings import Diagnosis, Grounds
from pytest_ddl.records import Array, TrainingRecord, VariableKind, VariableRecord

NOT_AGGREGATED = "state-not-aggregated"
SCALED = "state-scaled-by-replica-count"

_SHARES = "it changes by 1/N of the change on one device: each replica holds a share of a sum, and shares are averaged"
_OWN_SHARES = "what all replicas have added since the first step is, summed, the change on one device"
KNOWN = {"mean": "not-the-mean", "sum": "not-the-sum", "first": "not-the-first", "": "neither"}
"""Declared aggregation -> the fix that says why it does not give the value of the whole batch."""
_LARGEST_DECAY = 1.0 + 1e-6


def is_read_on_demand(variable: VariableRecord) -> bool:
    """Return whether a variable keeps one value for each replica and reduces them when it is read."""
    return "on_read" in variable.synchronization.lower()


def declared(variable: VariableRecord) -> str:
    """Return the aggregation that a variable declares: ``mean``, ``sum``, ``first``, or nothing."""
    name = variable.aggregation.lower()
    return next((kind for kind in ("mean", "sum", "first") if kind in name), "")


def readings(record: TrainingRecord, variable: VariableRecord, step: int) -> list[tuple[int, int, Array]]:
    """Return ``(rank, replica, value)`` as the program reads it: every copy, or the declared reduction of all."""
    parts = [
        (rank.rank, replica, np.asarray(value)) for rank, replica, value in record.components(variable.index, step)
    ]
    if not is_read_on_demand(variable) or not parts:
        return parts
    if not all(is_numeric(value) for _rank, _replica, value in parts):
        return []
    values = [value.astype(np.float64) for _rank, _replica, value in parts]
    kind = declared(variable)
    if kind == "mean":
        return [(*parts[0][:2], sum(values) / len(values))]  # type: ignore[list-item]
    if kind == "sum":
        return [(*parts[0][:2], sum(values))]  # type: ignore[list-item]
    return parts[:1] if kind == "first" else []


def copies_of(record: TrainingRecord, variable: VariableRecord, step: int) -> list[Array]:
    """Return the copies of a variable after a step, ordered by rank and then by replica."""
    return [np.asarray(value) for _rank, _replica, value in record.components(variable.index, step)]


def differ(copies: Sequence[Array]) -> bool:
    return any(not same(copy, copies[0]) for copy in copies[1:])


def of_copies(comparison: Comparison, place: Place, theirs: VariableRecord, copies: Sequence[Array]) -> Diagnosis:
    """Explain copies that differ from each other, although no reduction of them is declared."""
    evidence = f"the {len(copies)} copies differ from each other"
    skipped = skipped_on_some(comparison, place, theirs)
    if skipped is not None:
        return replace(skipped, cause=NOT_AGGREGATED, evidence=f"{evidence}: {skipped.evidence}")
    desired = comparison.reference.value(place.variable.index, place.step)
    fix: Fix | None = SPECIAL["neither"]
    if desired is not None and all(is_numeric(copy) and copy.shape == desired.shape for copy in copies):
        bound = _bound(comparison, place)
        average = sum(copy.astype(np.float64) for copy in copies) / len(copies)
        if difference(np.asarray(average), desired).error <= 2 * bound:
            evidence, fix = f"{evidence}, and their mean is the value of one device", fix_of(NOT_AGGREGATED)
        elif _changes_add_up(comparison, theirs, place.step):
            evidence, fix = f"{evidence}, and {_OWN_SHARES}", SPECIAL["averaged-shares"]
        elif (decay := _decay(comparison, place, theirs)) is not None:
            evidence = f"{evidence}, and each is {decay} and the share of its own replica"
            fix = SPECIAL["share-with-decay"]
    return Diagnosis(NOT_AGGREGATED, evidence, grounds=Grounds.RECOMPUTED, fix=fix)


def of_a_reduction(comparison: Comparison, place: Place, theirs: VariableRecord) -> Diagnosis | None:
    """Explain the mean or sum of what replicas assigned, if its size can be recomputed."""
    kind, number = declared(theirs), comparison.distributed.num_replicas
    # The mean of whole numbers need not be one.
    of_whole_values = SPECIAL["summed-values"] if kind == "sum" and "float" in theirs.dtype else None
    if kind == "mean" and _multiple(comparison, place, theirs, 1 / number):
        return Diagnosis(NOT_AGGREGATED, _SHARES, grounds=Grounds.RECOMPUTED, fix=SPECIAL["averaged-shares"])
    if kind == "first" and _adds_up(comparison, place, theirs):
        evidence = f"the parts of the {number} replicas add up to the value of one device, and only the first is read"
        return Diagnosis(NOT_AGGREGATED, evidence, grounds=Grounds.RECOMPUTED, fix=SPECIAL["parts-read-from-one"])
    if _multiple(comparison, place, theirs, float(number)):
        evidence = f"it changes by {number} times as much as on one device, and there are {number} replicas"
        return Diagnosis(SCALED, evidence, grounds=Grounds.RECOMPUTED, fix=of_whole_values)
    if kind == "sum" and _is_sum_of_equal_values(comparison, place, theirs):
        evidence = f"every replica assigns the value of one device, and aggregation=SUM adds the {number} values up"
        return Diagnosis(SCALED, evidence, grounds=Grounds.RECOMPUTED, fix=of_whole_values)
    decay = _decay(comparison, place, theirs) if kind in ("mean", "sum") else None
    if decay is None:
        return None
    if kind == "sum":
        evidence = f"every replica assigns {decay} and its own share, and aggregation=SUM adds the old value up too"
        return Diagnosis(SCALED, evidence, grounds=Grounds.RECOMPUTED, fix=SPECIAL["sum-of-old-values"])
    evidence = f"every replica assigns {decay} and its own share, and aggregation=MEAN averages the shares"
    return Diagnosis(NOT_AGGREGATED, evidence, grounds=Grounds.RECOMPUTED, fix=SPECIAL["share-with-decay"])


def unexplained(comparison: Comparison, place: Place, theirs: VariableRecord) -> Diagnosis:
    """Name what the declaration of a state suggests, if no recomputation gives its value."""
    kind, step = declared(theirs), place.step
    copies = len(list(comparison.distributed.components(theirs.index, step)))
    copied = _copied_from(comparison.reference, place)
    taken = f"on one device it takes the value of {copied} in step {step}" if copied else ""
    if not kind and copies > 1 and not is_read_on_demand(theirs):
        later = range(step, shared_steps(*comparison.records) + 1)
        if all(_changes_add_up(comparison, theirs, at) for at in later):
            # Equal shares may also be one value that is too small by chance. Shares that differ are no chance.
            apart = any(differ(copies_of(comparison.distributed, theirs, at)) for at in later)
            grounds = Grounds.RECOMPUTED if apart else Grounds.PATTERN
            return Diagnosis(NOT_AGGREGATED, _OWN_SHARES, grounds=grounds, fix=SPECIAL["averaged-shares"])
        evidence = "all copies are equal although it declares no aggregation, so every replica assigned this value"
        places = (f"the condition under which the program assigns {theirs.name}", "the values that it is computed from")
        evidence = "; ".join(filter(None, (evidence, taken)))
        return Diagnosis(NOT_AGGREGATED, evidence, grounds=Grounds.EXCLUSION, look_at=places)
    evidence = f"consistent with it: aggregation is {theirs.aggregation}, synchronization {theirs.synchronization}"
    fix = SPECIAL["condition" if copied else KNOWN[kind]]
    return Diagnosis(
        NOT_AGGREGATED, "; ".join(filter(None, (evidence, taken))), grounds=Grounds.PATTERN, fix=fix if kind else None
    )


def skipped_on_some(comparison: Comparison, place: Place, theirs: VariableRecord) -> Diagnosis | None:
    """Explain copies of which some keep their value in a step, and the others all get one new value."""
    record, step, index = comparison.distributed, place.step, place.variable.index
    before = {replica: np.asarray(value) for _r, replica, value in record.components(theirs.index, step - 1)}
    after = {replica: np.asarray(value) for _r, replica, value in record.components(theirs.index, step)}
    if set(before) != set(after) or any(not same(value, next(iter(before.values()))) for value in before.values()):
        return None
    kept = [replica for replica in after if same(after[replica], before[replica])]
    changed = [replica for replica in after if replica not in kept]
    if not kept or not changed or any(not same(after[replica], after[changed[0]]) for replica in changed):
        return None
    names = [", ".join(map(str, group)) for group in (changed, kept)]
    evidence = f"replica {names[0]} changes it in step {step}, and replica {names[1]} keeps the old value"
    # A replica may also have nothing to add, for example no example of a rare class. One device then changes it too.
    old, desired = (comparison.reference.value(index, at) for at in (step - 1, step))
    waits = old is not None and desired is not None and same(old, desired)
    together = waits or _copied_from(comparison.reference, place)
    fix = SPECIAL["condition" if together else "shares-or-condition"]
    return Diagnosis(None, evidence, grounds=Grounds.RECOMPUTED, fix=fix)


def _decay(comparison: Comparison, place: Place, theirs: VariableRecord) -> str | None:
    """Describe ``d * v`` if every replica assigned it beside a share of its own; ``None`` otherwise."""
    pairs = _shares(comparison, place, theirs, place.step)
    number = comparison.distributed.num_replicas
    slack = 2 * number * _bound(comparison, place)
    if pairs is None or number < 2:
        return None
    left, right = pairs
    if np.count_nonzero(np.abs(right) > slack) < 2:
        # A single number always fits. The next step decides, in which the replicas begin with the wrong value.
        if place.step == shared_steps(*comparison.records):
            return None
        later = _shares(comparison, place, theirs, place.step + 1)
        if later is None:
            return None
        left, right = flat([left, later[0]]), flat([right, later[1]])
        if np.count_nonzero(np.abs(right) > slack) < 2:
            return None
    decay = coefficient(left, right)
    if decay is None or not 0 < decay <= _LARGEST_DECAY or difference(left, decay * right).error > slack:
        return None
    return "the old value" if abs(decay - 1) <= 1e-3 else f"{decay:.3g} times the old value"


def _shares(comparison: Comparison, place: Place, theirs: VariableRecord, step: int) -> tuple[Float, Float] | None:
    """Return ``assigned - ours`` of a step and ``held - ours`` of the step before; ``None`` if either is not known."""
    reference, distributed = comparison.records
    index, number = place.variable.index, distributed.num_replicas
    sums = []
    for at, assigned in ((step, True), (step - 1, False)):
        ours = reference.value(index, at)
        copies = copies_of(distributed, theirs, at)
        if ours is None or len(copies) not in (1, number) or any(copy.shape != ours.shape for copy in copies):
            return None
        if not all(is_numeric(value) and all_finite(value) for value in (ours, *copies)):
            return None
        summed = np.sum([copy.astype(np.float64) for copy in copies], axis=0)
        if len(copies) == 1:
            summed = number * summed
        if assigned and declared(theirs) == "sum" and not is_read_on_demand(theirs):
            summed = summed / number  # every copy is already the sum of what the replicas assigned
        sums.append(np.ravel(summed - np.asarray(ours, np.float64)))
    return sums[0], sums[1]


def _multiple(comparison: Comparison, place: Place, theirs: VariableRecord, number: float) -> bool:
    """Return whether the change of a state is a factor times that of one device."""
    reference, distributed = comparison.records
    index, step = place.variable.index, place.step
    before, after = (reference.value(index, at) for at in (step - 1, step))
    read = [readings(distributed, theirs, at) for at in (step - 1, step)]
    if distributed.num_replicas < 2 or before is None or after is None or not is_numeric(after) or not all(read):
        return False
    change = np.subtract(after, before, dtype=np.float64)
    others = np.subtract(read[1][0][2], read[0][0][2], dtype=np.float64)
    return bool(np.any(change)) and difference(others, number * change).error <= max(1.0, number) * place.bound.value


def _adds_up(comparison: Comparison, place: Place, theirs: VariableRecord) -> bool:
    """Return whether each replica holds a part of the value of one device, which only a read could add up."""
    ours = comparison.reference.value(place.variable.index, place.step)
    parts = copies_of(comparison.distributed, theirs, place.step)
    if not is_read_on_demand(theirs) or theirs.of_keras or len(parts) < 2 or ours is None or not is_numeric(ours):
        return False
    if not all(is_numeric(part) and part.shape == ours.shape for part in parts):
        return False
    total = np.sum([part.astype(np.float64) for part in parts], axis=0)
    return difference(total, np.asarray(ours, np.float64)).error <= len(parts) * place.bound.value


def _changes_add_up(comparison: Comparison, theirs: VariableRecord, step: int) -> bool:
    """Return whether the changes of the copies since the first step, summed, are the change of one device."""
    reference, distributed = comparison.records
    before, after = (reference.value(theirs.index, at) for at in (0, step))
    old, new = (copies_of(distributed, theirs, at) for at in (0, step))
    if before is None or after is None or not len(old) == len(new) == distributed.num_replicas > 1:
        return False
    if not all(is_numeric(value) and value.shape == after.shape for value in (before, after, *old, *new)):
        return False
    change = np.subtract(after, before, dtype=np.float64)
    summed = np.sum(np.subtract(new, old, dtype=np.float64), axis=0)
    bound = comparison.tolerance.variable(theirs.index, step).value
    return bool(np.any(change)) and difference(summed, change).error <= distributed.num_replicas * bound


def _is_sum_of_equal_values(comparison: Comparison, place: Place, theirs: VariableRecord) -> bool:
    """Return whether a value is the number of replicas times that of one device."""
    reference, distributed = comparison.records
    number, after = distributed.num_replicas, reference.value(place.variable.index, place.step)
    read = readings(distributed, theirs, place.step)
    if number < 2 or after is None or not is_numeric(after) or not read or not np.any(after):
        return False
    desired = number * np.asarray(after, np.float64)
    return difference(np.asarray(read[0][2], np.float64), desired).error <= number * place.bound.value


def _copied_from(reference: TrainingRecord, place: Place) -> str | None:
    """Name a weight whose value a state has on one device after a step, as a target network has."""
    value, before = (reference.value(place.variable.index, at) for at in (place.step, place.step - 1))
    if value is None or value.size < 2 or before is None or same(value, before):
        return None
    for other in of_kind(reference, VariableKind.TRAINABLE, VariableKind.FROZEN):
        weights = [reference.value(other.index, at) for at in (place.step, place.step - 1)]
        if any(weight is not None and same(weight, value) for weight in weights):
            return other.name
    return None


def _bound(comparison: Comparison, place: Place) -> float:
    """Return how far rounding may move the variable, also if a check compares its copies bit for bit."""
    return max(place.bound.value, comparison.tolerance.variable(place.variable.index, place.step).value)
