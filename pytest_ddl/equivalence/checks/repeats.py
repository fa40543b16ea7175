"""Find random numbers that an operation draws several times, and say whether chance can explain it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from pytest_ddl.records import DrawRecord, TrainingRecord

CERTAIN = 40.0
"""Bits that two draws must share to exclude chance: a probability of one in 10**12."""
_FEWEST = 2
"""Draws of so few numbers prove nothing: a coin of a step may be shared."""
_MEMBERS = 64
"""Maximum number of equal draws to pair with each other; more would name no other replica or step."""
_BITS_OF_A_FLOAT = 7.0
"""Smallest information of a floating point number in bits: the significand of bfloat16."""
_COUNTED = 128
"""Effective count of different floating point numbers from which they count as continuous."""

Draws = dict[tuple[int, int], dict[int, DrawRecord]]
"""(position, replica) -> step -> the draw."""


def by_place(record: TrainingRecord) -> Draws:
    """Return the draws of all ranks by operation, replica and step."""
    draws: Draws = {}
    for rank in record.ranks:
        for number, step in enumerate(rank.steps[: record.num_steps], start=1):
            for draw in step.draws:
                draws.setdefault((draw.position, draw.replica), {})[number] = draw
    return draws


def _information(draw: DrawRecord) -> float:
    """Return the number of bits that equal draws share."""
    if draw.distinct <= 1:
        return 0.0
    bits = math.log2(draw.distinct)
    if "float" in draw.dtype:
        # Few floating point numbers are all different, and say nothing about how many there could be.
        bits = _BITS_OF_A_FLOAT if draw.distinct >= min(draw.size, _COUNTED) else min(bits, _BITS_OF_A_FLOAT)
    return draw.size * bits


def _is_proof(draws: Sequence[DrawRecord], compared: int) -> bool:
    """Return whether equal draws exclude chance, given the number of pairs in which they were looked for."""
    return sum(map(_information, draws)) >= CERTAIN + math.log2(max(compared, 1))


def shifts(
    draws: Draws, counts: Callable[[int, int], bool] = lambda _step, _later: True
) -> Iterator[tuple[int, int, int, list[int], bool]]:
    """Yield ``(replica, other replica, shift, steps, always)`` of the draws of one operation that are repeated.

    The other replica draws in each step ``s + shift`` what the replica draws in step ``s``, for the given steps ``s``.
    ``always`` is true if no pair of draws with this shift differs.

    :param counts: says whether the draws of two steps are compared.
    """
    made = sorted((step, replica) for (_position, replica), steps in draws.items() for step in steps)
    by_replica = {replica: steps for (_position, replica), steps in draws.items()}
    alike: dict[tuple[int, tuple[int, ...], int], list[tuple[int, int]]] = {}
    for step, replica in made:
        draw = by_replica[replica][step]
        if draw.size > _FEWEST or draw.seeds is not None:
            alike.setdefault((draw.digest, draw.shape, draw.size), []).append((step, replica))
    steps_of: dict[tuple[int, int, int], list[int]] = {}
    for members in alike.values():
        for (step, replica), (later, other) in combinations(members[:_MEMBERS], 2):
            if counts(step, later):
                steps_of.setdefault((replica, other, later - step), []).append(step)
    pairs = len(made) * (len(made) - 1) // 2
    varies = len(alike) > 1 or any(draw.distinct > 1 for steps in draws.values() for draw in steps.values())
    for (replica, other, shift), steps in steps_of.items():
        ours, theirs = by_replica[replica], by_replica[other]
        pairs_of = [s for s in ours if s + shift in theirs and counts(s, s + shift)]
        possible = [s for s in pairs_of if _same_size(ours[s], theirs[s + shift])]
        always = all(ours[step].digest == theirs[step + shift].digest for step in possible)
        # Few numbers per step prove something only together, and only if they are repeated in all steps.
        together = always and _is_proof([ours[step] for step in possible], pairs)
        # Equal seeds prove it for any numbers, unless the operation can only give one.
        sure = [s for s in steps if _is_proof([ours[s]], pairs) or (varies and same_seeds(ours[s], theirs[s + shift]))]
        proven = possible if together else sure
        if proven:
            yield replica, other, shift, sorted(proven), always


def same_seeds(first: DrawRecord, second: DrawRecord) -> bool:
    """Return whether a stateless operation was given the same seeds."""
    return first.seeds is not None and first.seeds == second.seeds


def _same_size(first: DrawRecord, second: DrawRecord) -> bool:
    return first.shape == second.shape and first.size == second.size


def of_operations(draws: Draws) -> Iterator[Draws]:
    """Yield the draws of each operation."""
    for wanted in sorted({position for position, _replica in draws}):
        yield {place: steps for place, steps in draws.items() if place[0] == wanted}
