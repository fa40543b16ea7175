"""Random numbers that come again after an interruption, because the state of their generator was not restored."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

from pytest_ddl.equivalence.checks.repeats import Draws, by_place, of_operations, shifts
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import is_asynchronous
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.records import DrawRecord, RankRecord, TrainingRecord
from pytest_ddl.training.neutral import RANDOM

CHECK = "RESUME"
CAUSE = "resume-random-wrong"


def repeated_numbers(comparison: Comparison) -> list[Finding]:
    """Return a finding if a step after an interruption draws what a step before it drew, unlike on one device."""
    reference, distributed = comparison.records
    if not _is_comparable(distributed):
        return []
    draws = (_of_draw(distributed, draw, *steps) for *steps, draw in repeats_over_interruptions(comparison))
    states = (_of_state(rank, *steps) for rank in distributed.ranks for steps in _states(reference, rank))
    first = next(itertools.chain(draws, states), None)
    return [] if first is None else [first]


def repeats_over_interruptions(comparison: Comparison) -> Iterator[tuple[int, int, DrawRecord]]:
    """Yield ``(step, later step, draw)``: numbers of a step before an interruption that come again after it.

    A program may give an operation the same seed in all steps. Then its numbers also repeat without an interruption.
    """
    reference, distributed = comparison.records
    if not _is_comparable(distributed):
        return
    ours = by_place(reference)
    for operation in of_operations(by_place(distributed)):
        position = next(iter(operation))[0]
        for replica, other, shift, (step, *_more), _always in shifts(
            operation, functools.partial(crosses, distributed)
        ):
            if replica == other and not _repeats_itself(operation, ours.get((position, 0), {}), step, step + shift):
                yield step, step + shift, operation[position, replica][step]


def crosses(record: TrainingRecord, step: int, later: int) -> bool:
    """Return whether an interruption lies between two steps."""
    return _interruption(record.ranks, step, later) is not None


def _interruption(ranks: Sequence[RankRecord], step: int, later: int) -> int | None:
    """Return the step after which the run was interrupted, between two steps."""
    return next((at for rank in ranks for at in rank.resumed if step <= at < later), None)


def _is_comparable(distributed: TrainingRecord) -> bool:
    """Return whether successive steps use the same generators, with the numbers of the program."""
    with_own = not distributed.capabilities.coordinator and RANDOM not in distributed.neutralized
    return with_own and not is_asynchronous(distributed)


def _repeats_itself(operation: Draws, ours: Mapping[int, DrawRecord], step: int, later: int) -> bool:
    """Return whether one device repeats the numbers, or the replicas do without an interruption in between."""
    if step in ours and later in ours:
        return ours[step].digest == ours[later].digest
    digest = next(made[step].digest for made in operation.values() if step in made)
    return any(draw.digest == digest for made in operation.values() for at, draw in made.items() if step < at < later)


def _states(reference: TrainingRecord, rank: RankRecord) -> Iterator[tuple[int, int]]:
    """Yield ``(step, later step)`` in which a generator has one state, and other ones on one device."""
    ours = reference.ranks[0].facts.get("generators", {}) if reference.ranks else {}
    theirs = rank.facts.get("generators", {})
    pairs = ((step, later) for at in rank.resumed for step in theirs if step <= at for later in theirs if later > at)
    for step, later in pairs:
        found = [states.get(number, ()) for states in (theirs, ours) for number in (step, later)]
        if any(one == other != "" and mine != after for one, other, mine, after in zip(*found, strict=False)):
            yield step, later


def _of_draw(distributed: TrainingRecord, draw: DrawRecord, step: int, later: int) -> Finding:
    name = draw.generator or draw.name or draw.op
    return Finding(
        check=CHECK,
        message=f"after the interruption, {name} draws in step {later} the numbers of step {step} again",
        cause=CAUSE,
        step=_interruption(distributed.ranks, step, later),
        replica=draw.replica,
        worker=next((rank.rank for rank in distributed.ranks if draw.replica in rank.replicas), None),
        evidence=f"compared: what {draw.op} drew on replica {draw.replica} in both steps; on one device, which goes "
        "straight on, they differ",
        operations=(draw.position,),
    )


def _of_state(rank: RankRecord, step: int, later: int) -> Finding:
    return Finding(
        check=CHECK,
        message=f"after the interruption, a tf.random.Generator has after step {later} the state of step {step} again",
        cause=CAUSE,
        step=_interruption([rank], step, later),
        worker=rank.rank,
        evidence="compared: the state of the generator after both steps; on one device, which goes straight on, they "
        "differ",
    )
