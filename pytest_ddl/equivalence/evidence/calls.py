"""Find the examples among the inputs of the replica functions, and leave out what is not or no new examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.arrays import difference, magnitude
from pytest_ddl.records import BatchRecord, GradientStage, StepRecord, TrainingRecord
from pytest_ddl.step_records import BatchOrigin, InputRecord
from pytest_ddl.training import fingerprint

_Calls = dict[int, list[BatchRecord]]
"""Replica -> the batches of its calls in a step, in order."""
_Input = tuple[int, int]
"""Position of a call among those of its replica in a step, and position of an input of the call."""
_ABOUT = 1e-3
"""Relative difference of gradients that rounding may make. STEP-EQ judges those that are wrong by less."""


def data_calls(reference: TrainingRecord, distributed: TrainingRecord) -> tuple[TrainingRecord, TrainingRecord]:
    """Return both runs without the inputs of calls that are not examples.

    Each replica gets a share of the examples. An input that has as many rows on every replica as on one device, in
    every step, is a value of each replica. If no input has shares, the data itself is not divided. Then only inputs
    are removed that are no global batch. What the program computed from examples may differ by rounding, so it counts
    only if it does not differ.
    """
    if _divides_by_itself(reference, distributed):
        return _both(reference, distributed, lambda _batch, _call: None)
    return _without_computed(*_of_known_pieces(*_divided_inputs(*_without_own_data(reference, distributed))))


def _divides_by_itself(reference: TrainingRecord, distributed: TrainingRecord) -> bool:
    """Return whether a replica function that is given whole global batches trains on a part of each.

    The replicas then have other gradients, whose sum is that of one device. Which part each takes is not observed.
    """
    for step in _common(reference, distributed):
        ours, theirs = reference.batches(step), distributed.batches(step)
        if len(ours) != 1 or not ours[0].fingerprints or distributed.num_replicas < 2:
            return False
        if {batch.replica for batch in theirs} != set(range(distributed.num_replicas)) or any(
            batch.fingerprints != ours[0].fingerprints for batch in theirs
        ):
            return False
    whole, parts = (gradients.by_replica(record, 1, GradientStage.COMPUTED) for record in (reference, distributed))
    if not whole or len(parts) != distributed.num_replicas:
        return False
    return _are_equal(whole[0], gradients.total(parts)) and not all(
        _are_equal(parts[0], part) for part in parts.values()
    )


def _are_equal(left: gradients.Gradients, right: gradients.Gradients) -> bool:
    return set(left) == set(right) and all(
        difference(right[at], value).error <= _ABOUT * magnitude(value) for at, value in left.items()
    )


def _without_own_data(reference: TrainingRecord, distributed: TrainingRecord) -> tuple[TrainingRecord, TrainingRecord]:
    """Return both runs without calls that get tensors of the program, in steps that also consume data of an iterator.

    An evaluation between two steps is such a call. It is left out only if every replica gets tensors of the same sizes
    as one device. Otherwise positions of calls could not be compared if the first or last step makes no such call.
    """
    for step in _common(reference, distributed):
        ours, theirs = _own_data(reference, step), _own_data(distributed, step)
        if set(theirs) != (set(_calls(distributed, step)) if ours else set()):
            return reference, distributed
        if any(sizes != ours.get(0) for sizes in theirs.values()):
            return reference, distributed
    return _of_iterators(reference), _of_iterators(distributed)


def _own_data(record: TrainingRecord, step: int) -> dict[int, list[int]]:
    """Return the sizes of what each replica got from the program, if it also got data of an iterator in that step."""
    sizes: dict[int, list[int]] = {}
    for batch in record.batches(step) if _has_elements(record, step) else ():
        if batch.origin is BatchOrigin.ARGUMENT:
            sizes.setdefault(batch.replica, []).extend(item.rows for item in inputs_of(batch))
    return sizes


def _has_elements(record: TrainingRecord, step: int) -> bool:
    return any(batch.size and batch.origin is not BatchOrigin.ARGUMENT for batch in record.batches(step))


def _of_iterators(record: TrainingRecord) -> TrainingRecord:
    def change(step: StepRecord) -> StepRecord:
        kept = tuple(batch for batch in step.batches if batch.origin is not BatchOrigin.ARGUMENT)
        is_whole = step.index <= record.num_steps  # a rank that stopped early has no data of later steps
        return replace(step, batches=kept) if is_whole and _has_elements(record, step.index) else step

    ranks = tuple(replace(rank, steps=tuple(map(change, rank.steps))) for rank in record.ranks)
    return replace(record, ranks=ranks) if ranks != record.ranks else record


def _divided_inputs(reference: TrainingRecord, distributed: TrainingRecord) -> tuple[TrainingRecord, TrainingRecord]:
    shared, whole = _divisions(reference, distributed, 0)
    if _add_up(reference, distributed, shared):
        return _both(reference, distributed, lambda batch, at: _without(batch, at, whole - shared))
    across, along = _divisions(reference, distributed, 1)
    if whole and not shared and not along and _add_up(reference, distributed, across, 1):
        return _both(reference, distributed, lambda batch, at: _second_axis(batch, at, across))
    if not shared:
        values = {place for place in whole if not _may_be_data(reference, distributed, place)}
        return _both(reference, distributed, lambda batch, at: _without(batch, at, values, empty=True))
    return reference, distributed


def without_repeats(reference: TrainingRecord, distributed: TrainingRecord) -> TrainingRecord:
    """Return the distributed run without calls that get the batch of an earlier call of their step again.

    This happens only if one device makes fewer calls. The data is then right, but the program uses it too often. A
    recorded step that stands for several scheduled steps may consume a batch again in a later epoch.
    """
    stands_for_several = any(rank.facts.get("scheduled", 0) > rank.num_steps for rank in distributed.ranks)
    if stands_for_several or not any(_repeats(reference, step) for rank in distributed.ranks for step in rank.steps):
        return distributed
    ranks = []
    for rank in distributed.ranks:
        steps = []
        for step in rank.steps:
            again = _repeats(reference, step)
            kept = tuple(batch for number, batch in enumerate(step.batches) if number not in again)
            steps.append(replace(step, batches=kept) if again else step)
        ranks.append(replace(rank, steps=tuple(steps)))
    return replace(distributed, ranks=tuple(ranks))


def _of_known_pieces(reference: TrainingRecord, distributed: TrainingRecord) -> tuple[TrainingRecord, TrainingRecord]:
    """Return both runs with pieces of elements as examples if one device has them all, and else as computed.

    A program may give each replica other features of all examples. These pieces are no rows of one device.
    """
    records = reference, distributed
    if not any(batch.origin is BatchOrigin.SELECTED for record in records for batch in _all_batches(record)):
        return records
    ours, theirs = map(_rows_of_pieces, records)
    known = ours is not None and theirs is not None and all(theirs[at] <= ours.get(at, set()) for at in theirs)

    def change(batch: BatchRecord, _call: int) -> BatchRecord:
        origin = BatchOrigin.ELEMENT if known else BatchOrigin.DERIVED
        return replace(batch, origin=origin) if batch.origin is BatchOrigin.SELECTED else batch

    return _both(*records, change)


def _rows_of_pieces(record: TrainingRecord) -> dict[int, set[int]] | None:
    """Return the hashes of the rows of elements and of their pieces, by tensor; ``None`` if some are unknown."""
    rows: dict[int, set[int]] = {}
    for batch in _all_batches(record):
        if batch.origin in (BatchOrigin.ELEMENT, BatchOrigin.SELECTED) and batch.size:
            columns = batch.columns or (() if batch.fingerprints is None else (batch.fingerprints,))
            if not columns:
                return None
            for at, column in enumerate(columns):
                rows.setdefault(at, set()).update(column)
    return rows


def _all_batches(record: TrainingRecord) -> Iterator[BatchRecord]:
    for step in range(1, record.num_steps + 1):
        yield from record.batches(step)


def _without_computed(reference: TrainingRecord, distributed: TrainingRecord) -> tuple[TrainingRecord, TrainingRecord]:
    """Return both runs without the contents of batches that were computed from examples, if these contents differ."""
    records = reference, distributed
    origins = {batch.origin for record in records for batch in _all_batches(record) if batch.size}
    if BatchOrigin.DERIVED not in origins or all(_same_computed(*records, step) for step in _common(*records)):
        return records
    again = BatchOrigin.ELEMENT in origins

    def change(batch: BatchRecord, _call: int) -> BatchRecord | None:
        if batch.origin is not BatchOrigin.DERIVED:
            return batch
        return None if again else replace(batch, fingerprints=None, columns=(), inputs=())

    return _both(*records, change)


def _same_computed(reference: TrainingRecord, distributed: TrainingRecord, step: int) -> bool:
    ours, theirs = (
        Counter(
            name
            for batch in record.batches(step)
            if batch.origin is BatchOrigin.DERIVED
            for name in batch.fingerprints or ()
        )
        for record in (reference, distributed)
    )
    return ours == theirs


def _common(reference: TrainingRecord, distributed: TrainingRecord) -> range:
    return range(1, min(reference.num_steps, distributed.num_steps) + 1)


def _divisions(reference: TrainingRecord, distributed: TrainingRecord, axis: int) -> tuple[set[_Input], set[_Input]]:
    """Return the inputs of which a replica has other numbers of rows than one device, and those with equal numbers."""
    shared, whole = set[_Input](), set[_Input]()
    for place, size, parts, replicas in _sizes(reference, distributed, axis):
        (whole if len(parts) == replicas and all(part == size for part in parts) else shared).add(place)
    return shared, whole - shared


def _add_up(reference: TrainingRecord, distributed: TrainingRecord, inputs: set[_Input], axis: int = 0) -> bool:
    """Return whether the replicas' shares of some input add up to the input of one device."""
    return any(
        place in inputs and sum(parts) == size for place, size, parts, _n in _sizes(reference, distributed, axis)
    )


def _sizes(
    reference: TrainingRecord, distributed: TrainingRecord, axis: int
) -> Iterator[tuple[_Input, int, list[int], int]]:
    """Yield each input with its size on one device, its sizes on the replicas, and the number of replicas."""
    for step in _common(reference, distributed):
        ours, theirs = _calls(reference, step), _calls(distributed, step)
        if list(ours) != [0] or len(theirs) < 2:
            continue
        for call, batch in enumerate(ours[0]):
            others = [inputs_of(calls[call]) for calls in theirs.values() if call < len(calls)]
            for at, own in enumerate(inputs_of(batch)):
                parts = [given[at].shape[axis] for given in others if at < len(given) and axis < len(given[at].shape)]
                if parts and axis < len(own.shape):  # otherwise this step does not make the call
                    yield (call, at), own.shape[axis], parts, len(theirs)


def inputs_of(batch: BatchRecord) -> tuple[InputRecord, ...]:
    """Return the inputs of a call; older records and simulated ones have only its examples."""
    return batch.inputs or (InputRecord((batch.size,), batch.fingerprints),)


def _may_be_data(reference: TrainingRecord, distributed: TrainingRecord, place: _Input) -> bool:
    """Return whether an input that is the same size everywhere may be a batch that the program forgot to divide.

    It is none if no iterator gave it, and if it is constant or has another size than the global batch.
    """
    call, at = place
    contents, sizes = set[tuple[int, ...] | None](), set[int]()
    for step in range(1, reference.num_steps + 1):
        for batch in _calls(reference, step).get(0, ())[call : call + 1]:
            if batch.origin is not BatchOrigin.ARGUMENT or not batch.inputs:
                return True
            one = batch.inputs[at] if at < len(batch.inputs) else None
            contents.add(None if one is None else batch.fingerprints if len(batch.inputs) == 1 else one.hashes)
            sizes.add(0 if one is None else one.rows)
    is_constant = len(contents) == 1 and None not in contents and reference.num_steps > 1
    declared = distributed.global_batch_size
    return not (is_constant or (declared is not None and declared not in sizes))


def _calls(record: TrainingRecord, step: int) -> _Calls:
    calls: _Calls = {}
    for batch in record.batches(step):
        calls.setdefault(batch.replica, []).append(batch)
    return calls


def _both(
    reference: TrainingRecord, distributed: TrainingRecord, change: Callable[[BatchRecord, int], BatchRecord | None]
) -> tuple[TrainingRecord, TrainingRecord]:
    return _changed(reference, change), _changed(distributed, change)


def _changed(record: TrainingRecord, change: Callable[[BatchRecord, int], BatchRecord | None]) -> TrainingRecord:
    """Return a run with changed batches, without those for which ``change`` returns ``None``; itself if all stay.

    :param change: takes a batch and the position of its call.
    """
    ranks, differs = [], False
    for rank in record.ranks:
        steps = []
        for step in rank.steps:
            seen: dict[int, int] = {}
            kept = []
            for batch in step.batches:
                position = seen.get(batch.replica, 0)
                seen[batch.replica] = position + 1
                kept.append(change(batch, position))
            differs = differs or any(new is not old for new, old in zip(kept, step.batches, strict=True))
            steps.append(replace(step, batches=tuple(batch for batch in kept if batch is not None)))
        ranks.append(replace(rank, steps=tuple(steps)))
    return replace(record, ranks=tuple(ranks)) if differs else record


def _without(batch: BatchRecord, call: int, places: set[_Input], empty: bool = False) -> BatchRecord | None:
    """Return a batch without some inputs; ``None`` if none is left, or a batch without examples if ``empty``."""
    given = inputs_of(batch)
    kept = tuple(item for at, item in enumerate(given) if (call, at) not in places)
    if len(kept) == len(given):
        return batch
    if not kept:
        return replace(batch, size=0, fingerprints=None, columns=(), inputs=()) if empty else None
    size = kept[0].rows
    columns = tuple(item.hashes for item in kept if item.rows == size and item.hashes is not None)
    known = len(columns) == sum(item.rows == size for item in kept)
    return replace(
        batch,
        size=size,
        fingerprints=fingerprint.combine([np.array(c, np.uint64) for c in columns]) if known else None,
        columns=columns if known and len(columns) > 1 else (),
        inputs=kept,
    )


def _second_axis(batch: BatchRecord, call: int, places: set[_Input]) -> BatchRecord:
    """Return a batch with the number of examples along the second axis, as sequences have that begin with time.

    The contents were hashed along the first axis, so they do not identify the examples.
    """
    given = inputs_of(batch)
    at = next((at for at in range(len(given)) if (call, at) in places and len(given[at].shape) > 1), None)
    if at is None:
        return batch
    return replace(batch, size=given[at].shape[1], fingerprints=None, columns=(), inputs=())


def _repeats(reference: TrainingRecord, step: StepRecord) -> set[int]:
    """Return the positions of a step's batches that the same replica consumed before."""
    if len(step.batches) < 2 or step.index > reference.num_steps:
        return set()
    seen: dict[int, list[BatchRecord]] = {}
    again = set()
    for number, batch in enumerate(step.batches):
        earlier = seen.setdefault(batch.replica, [])
        if batch.fingerprints is not None and any(batch.fingerprints == other.fingerprints for other in earlier):
            again.add(number)
        earlier.append(batch)
    most = max(len(calls) for calls in seen.values())
    return again if most > len(reference.batches(step.index)) > 0 else set()
