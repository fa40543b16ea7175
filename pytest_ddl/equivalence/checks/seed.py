"""SEED: each replica draws its own random numbers, and new ones in every step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pytest_ddl.equivalence.checks.repeats import Draws, by_place, of_operations, same_seeds, shifts
from pytest_ddl.equivalence.checks.resumed_draws import crosses, repeats_over_interruptions
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import executions, is_asynchronous, sizes
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, no_steps, not_applicable, passed
from pytest_ddl.records import DrawRecord, TrainingRecord
from pytest_ddl.training.neutral import RANDOM

CHECK = "SEED"
ACROSS_REPLICAS = "random-stream-repeated-across-replicas"
ACROSS_STEPS = "random-stream-repeated-across-steps"

_SEEDED_HERE = "the operation follows the global seed, which was set by this check and not by the program"


@dataclass(frozen=True)
class _Repeat:
    first: DrawRecord
    second: DrawRecord
    replicas: tuple[int, ...]
    steps: tuple[int, ...]
    """Steps in which a draw was repeated."""
    later: int = 0
    """Number of steps after which the numbers come again; 0 for the same step."""
    always: bool = True
    """True if the numbers were repeated in every step that could show it."""
    seeded_here: bool = False
    """True if the repeat comes from the global seed, which the plugin sets to the same value on all workers."""


def check_seed(comparison: Comparison) -> CheckResult:
    """Compare draws that have a row per example. Draws per weight or feature may be shared on purpose."""
    reference, distributed = comparison.records
    if not distributed.num_steps:
        return no_steps(CHECK, distributed)
    if RANDOM in distributed.neutralized:
        return not_applicable(CHECK, "the replicas were given the random numbers of one device")
    if distributed.capabilities.global_view:
        return not_applicable(CHECK, "under model_parallel there is one program, whose draws are sharded like its data")
    if is_asynchronous(distributed):
        return not_applicable(CHECK, "the steps ran concurrently, so that draws belong to no step")
    all_draws = by_place(distributed)
    if not all_draws:
        return not_applicable(CHECK, "no random operation of a replica function was observed")
    ours = by_place(reference)
    draws = {place: found for place, found in all_draws.items() if _per_example(reference, distributed, ours, found)}
    whole = {p: found for p, found in all_draws.items() if p not in draws and _of_the_global_batch(reference, found)}
    if not draws and not whole:
        shapes = ", ".join(sorted({str(next(iter(found.values())).shape) for found in all_draws.values()})[:3])
        return not_applicable(CHECK, f"the draws (shapes {shapes}) have no row per example and may be shared")
    # If each worker has generators of its own, successive draws may come from different ones. A repeat then counts only
    # if one device repeats them too.
    over_steps = [
        repeat
        for repeat in _over_steps(draws | whole, _within_attempts(comparison))
        if _own_state(distributed) or any(r.first.position == repeat.first.position for r in _over_steps(ours))
    ]
    over_replicas = list(_over_replicas(distributed, draws))
    findings = [*_findings(distributed, over_steps, ACROSS_STEPS), *_findings(distributed, over_replicas)]
    if findings:
        return failed(CHECK, findings)
    operations = len({position for position, _replica in draws | whole})
    return passed(CHECK, f"{operations} random operation(s) on {distributed.num_replicas} replica(s)")


def _within_attempts(comparison: Comparison) -> Callable[[int, int, int], bool]:
    """Return whether draws of an operation in two steps are compared. RESUME names what an interruption repeats."""
    resumed = {draw.position for _step, _later, draw in repeats_over_interruptions(comparison)}
    record = comparison.distributed
    return lambda position, step, later: position not in resumed or not crosses(record, step, later)


def _per_example(
    reference: TrainingRecord, distributed: TrainingRecord, ours: Draws, found: dict[int, DrawRecord]
) -> bool:
    """Return whether the size of a draw grows with the examples of the replica.

    One device draws for the whole batch, at once or in a loop. Its shape, or the length of the loop, differs from the
    replica's in one dimension, in the ratio of the batch sizes. If there is only one replica, or if one device drew
    nothing there, it is enough that one of the first two dimensions has the size of the batch.
    """
    for step, draw in found.items():
        own = sizes(distributed, step).get(draw.replica)
        whole = sum(sizes(reference, step).values()) if step <= reference.num_steps else 0
        theirs = ours.get((draw.position, 0), {}).get(step)
        if theirs is not None and own and whole and own != whole:
            return _grows((executions(draw), *draw.shape), own, (executions(theirs), *theirs.shape), whole)
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


def _over_steps(
    draws: Draws, counts: Callable[[int, int, int], bool] = lambda _position, _step, _later: True
) -> list[_Repeat]:
    """Find replicas that draw the same numbers in several steps; for each, the repeat after the fewest steps."""
    repeats = []
    for operation in of_operations(draws):
        position = next(iter(operation))[0]
        repeated = sorted(
            (replica, shift, steps, always)
            for replica, other, shift, steps, always in shifts(operation, functools.partial(counts, position))
            if replica == other
        )
        for number in sorted({replica for replica, *_rest in repeated}):
            replica, shift, steps, always = next(found for found in repeated if found[0] == number)
            made = operation[position, replica]
            first, second = made[steps[0]], made[steps[0] + shift]
            repeats.append(_Repeat(first, second, (replica,), tuple(steps), shift, always))
    return repeats


def _over_replicas(distributed: TrainingRecord, draws: Draws) -> Iterator[_Repeat]:
    """Yield for each operation the replicas that draw the same numbers, in the same step or in different ones."""
    for operation in of_operations(draws):
        across = [found for found in shifts(operation) if found[0] != found[1]]
        if not across:
            continue
        # Numbers of the same step come first, and then those that are repeated in all steps.
        replica, other, shift, steps, always = min(across, key=lambda found: (found[2] > 0, not found[4], found[:3]))
        same = {r for found in across if (found[2], found[4]) == (shift, always) for r in found[:2]}
        alike = sorted(same) if not shift else [replica, other]
        position = next(iter(operation))[0]
        first, second = operation[position, replica][steps[0]], operation[position, other][steps[0] + shift]
        ranks = {rank.rank for rank in distributed.ranks for number in alike if number in rank.replicas}
        by_global_seed = not first.op.startswith("state") and not first.seeded
        ours = by_global_seed and not shift and (first.nested or len(ranks) == len(alike))
        yield _Repeat(first, second, tuple(alike), tuple(steps), shift, always, ours)


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
    what = _described(repeat, cause)
    generators = ", ".join(sorted({one.first.generator for one in repeats if one.first.generator}))
    yield Finding(
        check=CHECK,
        message=f"{draw.op} {draw.shape}{more} draws the same {draw.size} random numbers {what}",
        cause=cause,
        step=min(repeat.steps),
        replica=repeat.replicas[-1],
        worker=next((r.rank for r in distributed.ranks if repeat.replicas[-1] in r.replicas), None),
        observed=f"digest {draw.digest:016x} "
        + ("each time" if repeat.always else f"in step {repeat.steps[0]} and in step {repeat.steps[0] + repeat.later}"),
        expected="different numbers on every replica and in every step",
        evidence=f"the numbers of {draw.name} were compared in {len(repeat.steps)} step(s)"
        + ("; the operation was given the same seed there" if same_seeds(draw, repeat.second) else "")
        + (f"; their seeds come from SeedGenerator of Keras: {generators}" if generators else "")
        + (f"; {_SEEDED_HERE}" if repeat.seeded_here else ""),
        approximation=repeat.seeded_here,
        operations=tuple(sorted({one.first.position for one in repeats})),
    )


def _described(repeat: _Repeat, cause: str) -> str:
    """Say which replica repeats the numbers of which replica, and in which step."""
    numbers = ", ".join(map(str, repeat.replicas[:4]))
    step = repeat.steps[0]
    if cause == ACROSS_STEPS:
        if repeat.always and repeat.later == 1:
            return f"in every step, on replica {numbers}"
        if repeat.always:
            return f"again after every {repeat.later} steps, on replica {numbers}"
        return f"in step {step} and in step {step + repeat.later}, on replica {numbers}"
    if repeat.later:
        first, second = repeat.first.replica, repeat.second.replica
        return f"on replica {first} in step {step} and on replica {second} in step {step + repeat.later}"
    return f"on replicas {numbers}, in {'every step' if repeat.always else f'step {step}'}"
