"""Leave out calls of ``strategy.run`` that consume no examples, or the examples of an earlier call again."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddl.records import BatchRecord, StepRecord, TrainingRecord

_Calls = dict[int, list[BatchRecord]]
"""Replica -> the batches of its calls in a step, in order."""


def data_calls(reference: TrainingRecord, distributed: TrainingRecord) -> tuple[TrainingRecord, TrainingRecord]:
    """Return both runs without the inputs of calls that are not examples.

    Each replica gets a share of the examples. An input that has as many rows on every replica as on one device, in
    every step, is a value of each replica. If no call has shares, nothing is removed, because then the data itself is
    not divided.
    """
    shared, whole = set[int](), set[int]()
    for step in range(1, min(reference.num_steps, distributed.num_steps) + 1):
        ours, theirs = _calls(reference, step), _calls(distributed, step)
        if list(ours) != [0] or len(theirs) < 2:
            continue
        for position, batch in enumerate(ours[0]):
            parts = [calls[position].size for calls in theirs.values() if position < len(calls)]
            if not parts:
                continue  # this step does not make the call
            if len(parts) == len(theirs) and all(size == batch.size for size in parts):
                whole.add(position)
            else:
                shared.add(position)
    whole -= shared
    if not whole or not _divided(reference, distributed, shared):
        return reference, distributed
    return _without(reference, whole), _without(distributed, whole)


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


def _divided(reference: TrainingRecord, distributed: TrainingRecord, positions: set[int]) -> bool:
    """Return whether the replicas' shares of some call add up to the input of one device."""
    for step in range(1, min(reference.num_steps, distributed.num_steps) + 1):
        ours, theirs = _calls(reference, step), _calls(distributed, step)
        for position in positions:
            parts = [calls[position].size for calls in theirs.values() if position < len(calls)]
            if position < len(ours.get(0, ())) and sum(parts) == ours[0][position].size:
                return True
    return False


def _calls(record: TrainingRecord, step: int) -> _Calls:
    found: _Calls = {}
    for batch in record.batches(step):
        found.setdefault(batch.replica, []).append(batch)
    return found


def _without(record: TrainingRecord, positions: set[int]) -> TrainingRecord:
    ranks = []
    for rank in record.ranks:
        steps = []
        for step in rank.steps:
            seen: dict[int, int] = {}
            kept = []
            for batch in step.batches:
                position = seen.get(batch.replica, 0)
                seen[batch.replica] = position + 1
                if position not in positions:
                    kept.append(batch)
            steps.append(replace(step, batches=tuple(kept)))
        ranks.append(replace(rank, steps=tuple(steps)))
    return replace(record, ranks=tuple(ranks))


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
