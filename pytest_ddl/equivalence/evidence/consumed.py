"""Count a batch only once if a step passes it to several calls of ``strategy.run``."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddl.records import BatchRecord, StepRecord, TrainingRecord


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


def _repeats(reference: TrainingRecord, step: StepRecord) -> set[int]:
    """Return the positions of a step's batches that their replica was given before."""
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
