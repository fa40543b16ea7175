"""SEED: each replica draws its own random numbers, and new ones in every step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, sizes
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, no_steps, not_applicable, passed
from pytest_ddl.records import DrawRecord, TrainingRecord

CHECK = "SEED"
ACROSS_REPLICAS = "random-stream-repeated-across-replicas"
ACROSS_STEPS = "random-stream-repeated-across-steps"

CERTAIN = 40.0
"""Bits that two draws must share to exclude chance: a probability of one in 10**12."""
_SEEDED_HERE = "the operation follows the global seed, which was set by this check and not by the program"
_BITS_OF_A_FLOAT = 7.0
"""Smallest information of a floating point number in bits: the significand of bfloat16."""

Draws = dict[tuple[int, int], dict[int, DrawRecord]]
"""(position, replica) -> step -> the draw."""


@dataclass(frozen=True)
class _Repeat:
    first: DrawRecord
    replicas: tuple[int, ...]
    steps: tuple[int, ...]
    seeded_here: bool = False
    """True if the repeat comes from the global seed, which the plugin sets to the same value on all workers."""


def check_seed(reference: TrainingRecord, distributed: TrainingRecord, tolerance: Tolerance) -> CheckResult:
    """Compare draws that have a row per example. Draws per weight or feature may be shared on purpose."""
    if not distributed.num_steps:
        return no_steps(CHECK, distributed)
    if distributed.capabilities.global_view:
        return not_applicable(CHECK, "under model_parallel there is one program, whose draws are sharded like its data")
    if is_asynchronous(distributed):
        return not_applicable(CHECK, "the steps ran concurrently, so that draws belong to no step")
    all_draws = _by_place(distributed)
    if not all_draws:
        return not_applicable(CHECK, "no random operation of a replica function was observed")
    ours = _by_place(reference)
    draws = {place: found for place, found in all_draws.items() if _per_example(reference, distributed, ours, found)}
    whole = {p: found for p, found in all_draws.items() if p not in draws and _of_the_global_batch(reference, found)}
    if not draws and not whole:
        shapes = ", ".join(sorted({str(next(iter(found.values())).shape) for found in all_draws.values()})[:3])
        return not_applicable(CHECK, f"the draws (shapes {shapes}) have no row per example and may be shared")
    # If each worker has generators of its own, successive draws may come from different ones. A repeat then counts only
    # if one device repeats them too.
    over_steps = [
        found
        for place, steps in (draws | whole).items()
        if (found := _over_steps(steps)) and (_own_state(distributed) or _over_steps(ours.get((place[0], 0), {})))
    ]
    over_replicas = list(_over_replicas(distributed, draws))
    findings = [*_findings(distributed, over_steps, ACROSS_STEPS), *_findings(distributed, over_replicas)]
    if findings:
        return failed(CHECK, findings)
    operations = len({position for position, _replica in draws | whole})
    return passed(CHECK, f"{operations} random operation(s) on {distributed.num_replicas} replica(s)")


def _by_place(record: TrainingRecord) -> Draws:
    found: Draws = {}
    for rank in record.ranks:
        for number, step in enumerate(rank.steps[: record.num_steps], start=1):
            for draw in step.draws:
                found.setdefault((draw.position, draw.replica), {})[number] = draw
    return found


def _per_example(
    reference: TrainingRecord, distributed: TrainingRecord, ours: Draws, found: dict[int, DrawRecord]
) -> bool:
    """Return whether the size of a draw grows with the examples of the replica.

    One device draws for the whole batch. Its shape differs from the replica's in one dimension, in the ratio of the
    batch sizes. If there is only one replica, or if one device drew nothing there, it is enough that one of the first
    two dimensions has the size of the batch.
    """
    for step, draw in found.items():
        own = sizes(distributed, step).get(draw.replica)
        whole = sum(sizes(reference, step).values()) if step <= reference.num_steps else 0
        theirs = ours.get((draw.position, 0), {}).get(step)
        if theirs is not None and own and whole and own != whole:
            return _grows(draw.shape, own, theirs.shape, whole)
        if own:
            return own in draw.shape[:2]
    return False


def _of_the_global_batch(reference: TrainingRecord, found: dict[int, DrawRecord]) -> bool:
    """Return whether every replica draws rows for the whole global batch and uses only those of its own examples.

    All replicas must then draw the same numbers, but new ones in every step. If a weight has a dimension of this length
    too, the rows may belong to features, so the result is False.
    """
    lengths = {length for variable in reference.variables for length in variable.shape}
    for step, draw in found.items():
        rows = sum(sizes(reference, step).values()) if step <= reference.num_steps else 0
        if rows < 2 or len(draw.shape) < 2 or draw.shape[0] != rows or rows in lengths:
            return False
    return bool(found)


def _grows(local: tuple[int, ...], own: int, single: tuple[int, ...], whole: int) -> bool:
    if len(local) != len(single):
        return False
    apart = [(mine, theirs) for mine, theirs in zip(local, single, strict=True) if mine != theirs]
    return len(apart) == 1 and apart[0][0] * whole == apart[0][1] * own


def _information(draw: DrawRecord) -> float:
    """Return the number of bits that equal draws share."""
    if draw.distinct < 2:
        return 0.0
    floating = "float" in draw.dtype
    return draw.size * (_BITS_OF_A_FLOAT if floating else math.log2(draw.distinct))


def _tells(draws: Sequence[DrawRecord]) -> bool:
    return all(draw.size > 2 for draw in draws) and sum(map(_information, draws)) >= CERTAIN


def _over_steps(steps: dict[int, DrawRecord]) -> _Repeat | None:
    """Find an operation that draws the same numbers in every step as in the step before.

    Pairs of steps whose draws have different shapes or sizes are left out.
    """
    pairs = [
        (steps[step], steps[step + 1])
        for step in steps
        if step + 1 in steps and steps[step].shape == steps[step + 1].shape and steps[step].size == steps[step + 1].size
    ]
    if not pairs or any(first.digest != second.digest for first, second in pairs):
        return None
    if not _tells([first for first, _second in pairs]):
        return None
    return _Repeat(pairs[0][0], (pairs[0][0].replica,), tuple(steps))


def _over_replicas(distributed: TrainingRecord, draws: Draws) -> Iterator[_Repeat]:
    """Yield operations that draw the same numbers on several replicas in all steps with draws of equal size."""
    by_position: dict[int, dict[int, dict[int, DrawRecord]]] = {}
    for (position, replica), steps in draws.items():
        by_position.setdefault(position, {})[replica] = steps
    for replicas in by_position.values():
        remaining = sorted(replicas)
        while remaining:
            first, *others = remaining
            alike = [first, *(other for other in others if _alike(distributed, replicas[first], replicas[other]))]
            remaining = [] if len(alike) > 1 else others
            if len(alike) > 1:
                draw = next(iter(replicas[first].values()))
                ranks = {rank.rank for rank in distributed.ranks for replica in alike if replica in rank.replicas}
                by_global_seed = not draw.op.startswith("state") and not draw.seeded
                ours = by_global_seed and (draw.nested or len(ranks) == len(alike))
                yield _Repeat(draw, tuple(alike), tuple(replicas[first]), ours)


def _alike(distributed: TrainingRecord, left: dict[int, DrawRecord], right: dict[int, DrawRecord]) -> bool:
    every = range(1, distributed.num_steps + 1)
    if any(step not in left or step not in right for step in every):
        return False
    same_size = [
        step for step in every if left[step].shape == right[step].shape and left[step].size == right[step].size
    ]
    equal = all(left[step].digest == right[step].digest for step in same_size)
    return bool(same_size) and equal and _tells([left[step] for step in same_size])


def _own_state(distributed: TrainingRecord) -> bool:
    """Return whether successive steps use the same generators.

    Under a parameter server, closures go to any worker, and each worker has its own generators.
    """
    return not distributed.capabilities.coordinator


def _findings(distributed: TrainingRecord, repeats: list[_Repeat], cause: str = ACROSS_REPLICAS) -> Iterator[Finding]:
    """Yield a finding for all operations with the same kind of repeat, apart for those that a generator of Keras seeds.

    The repeats of the program itself come first.
    """
    for by_keras in (False, True):
        yield from _finding(distributed, [one for one in repeats if bool(one.first.generator) is by_keras], cause)


def _finding(distributed: TrainingRecord, repeats: list[_Repeat], cause: str) -> Iterator[Finding]:
    """Yield a finding for some repeats. It shows the first one."""
    if not repeats:
        return
    repeat = min(repeats, key=lambda one: one.seeded_here)
    draw = repeat.first
    places = len({other.first.position for other in repeats})
    more = f" (and {places - 1} other operation(s))" if places > 1 else ""
    numbers = ", ".join(map(str, repeat.replicas[:4]))
    if cause == ACROSS_STEPS:
        what = f"draws the same {draw.size} random numbers in every step, on replica {numbers}"
    else:
        what = f"draws the same {draw.size} random numbers on replicas {numbers}, in every step"
    generators = ", ".join(sorted({one.first.generator for one in repeats if one.first.generator}))
    yield Finding(
        check=CHECK,
        message=f"{draw.op} {draw.shape}{more} {what}",
        cause=cause,
        step=min(repeat.steps),
        replica=repeat.replicas[-1],
        worker=next((r.rank for r in distributed.ranks if repeat.replicas[-1] in r.replicas), None),
        fix=fix_of(cause),
        observed=f"digest {draw.digest:016x} each time",
        expected="different numbers on every replica and in every step",
        evidence=f"the numbers of {draw.name} were compared in {len(repeat.steps)} step(s)"
        + (f"; their seeds come from SeedGenerator of Keras: {generators}" if generators else "")
        + (f"; {_SEEDED_HERE}" if repeat.seeded_here else ""),
        approximation=repeat.seeded_here,
        operations=tuple(sorted({one.first.position for one in repeats})),
    )
