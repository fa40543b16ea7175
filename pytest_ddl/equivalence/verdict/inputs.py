"""Account for what steps consume and exchange: batches, examples, random numbers, gradients and collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_ddl.equivalence.checks.collective_log import mismatch
from pytest_ddl.equivalence.checks.gradient_equality import recorded, shows_scale
from pytest_ddl.equivalence.checks.parameter_server import schedules_itself
from pytest_ddl.equivalence.evidence import gradients
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.coverage import examples_of
from pytest_ddl.equivalence.evidence.observe import has_lost_details, replicas_of, sizes
from pytest_ddl.equivalence.findings import Reason
from pytest_ddl.equivalence.ledger import Entry, Quantity
from pytest_ddl.records import RankRecord


def inputs(comparison: Comparison) -> Iterator[Entry]:
    """Yield the entries of what the steps consumed and exchanged.

    An entry with the reason NOT_EXPLAINED differs. Its finding is still to be looked for.
    """
    distributed = comparison.distributed
    whole = any(rank.facts.get("epochs_as_steps") for rank in distributed.ranks) or schedules_itself(distributed)
    # A step consumes one global batch. Under a global view, the replicas' parts of it are not observed.
    if not (whole or distributed.capabilities.global_view):
        for step in range(1, comparison.steps + 1):
            yield from _batches(comparison, step)
            yield from _draws(comparison, step)
    yield from _gradients(comparison)
    if len(distributed.ranks) > 1 and any(rank.collectives for rank in distributed.ranks):
        found = mismatch(distributed, comparison.reference)
        for rank in distributed.ranks[1:]:
            reason = Reason.NOT_EXPLAINED if found is not None and found.rank in (0, rank.rank) else None
            yield Entry(Quantity.COLLECTIVES, f"collectives of {rank.task}", comparison.steps, reason)


def _batches(comparison: Comparison, step: int) -> Iterator[Entry]:
    """Yield the size of a global batch, and its examples by id or else by content."""
    reference, distributed = comparison.records
    ours, theirs = sum(sizes(reference, step).values()), sum(sizes(distributed, step).values())
    if ours or theirs:
        # Without the batches of one device, the declared size is expected. The data may end within the last step.
        declared = distributed.global_batch_size or 0
        is_declared = not ours and (theirs == declared or (step == comparison.steps and theirs < declared))
        alike = ours == theirs or is_declared
        reason = None if alike else Reason.NOT_EXPLAINED if ours and theirs else Reason.ONE_SIDED
        yield Entry(Quantity.BATCHES, "number of examples", step, reason)
    found = {by: [examples_of(record, step, by) for record in (reference, distributed)] for by in ("ids", "contents")}
    by = next((by for by, sides in found.items() if None not in sides), "contents")
    mine, others = found[by]
    if mine is not None and others is not None:
        yield Entry(Quantity.EXAMPLES, by, step, None if mine == others else Reason.NOT_EXPLAINED)
    elif mine is not None or others is not None:
        yield Entry(Quantity.EXAMPLES, by, step, Reason.ONE_SIDED)


def _draws(comparison: Comparison, step: int) -> Iterator[Entry]:
    """Yield for each replica whether it executed the random operations of one device in a step."""
    reference, distributed = comparison.records
    if not all(rank.draws_observed for rank in (*reference.ranks, *distributed.ranks)):
        return
    ours = _operations(reference.ranks, step).get(0, Counter())
    theirs = _operations(distributed.ranks, step)
    others = _operations(distributed.ranks, 2 if step == 1 < comparison.steps else 1)
    # One replica of a process draws the initial values of a variable that the first step makes.
    is_first = step == 1 < comparison.steps
    later = [*_operations(reference.ranks, 2).values(), *others.values()] if is_first else [ours]
    for replica in replicas_of(distributed, step):
        found = theirs.get(replica, Counter())
        if not ours and not found:
            continue
        # A program that draws in a loop over its examples draws less often on a replica, but so in every step.
        regular = found == others.get(replica) and {op for _at, op in found} == {op for _at, op in ours}
        missing = ours - found
        once = not found - ours and not any(missing & one for one in later)
        reason = None if found == ours or regular or once else Reason.NOT_EXPLAINED
        yield Entry(Quantity.DRAWS, f"random numbers of replica {replica}", step, reason)


def _operations(ranks: Sequence[RankRecord], step: int) -> dict[int, Counter[tuple[int, str]]]:
    """Map each replica to the random operations that it executed in a step, by place and type."""
    operations: dict[int, Counter[tuple[int, str]]] = {}
    for rank in ranks:
        for draw in rank.steps[step - 1].draws:
            operations.setdefault(draw.replica, Counter())[draw.position, draw.op] += 1
    return operations


def _gradients(comparison: Comparison) -> Iterator[Entry]:
    """Yield the gradients of each step that began and ended with equal weights."""
    reference, distributed = comparison.records
    if not (gradients.observed(reference) and gradients.observed(distributed)):
        return
    diverged = comparison.differences().step
    last = comparison.steps if diverged is None else diverged - 1
    is_shown = shows_scale(comparison, last)
    for step in recorded(comparison, last):
        if step.paired:
            reason = None if step.is_right(is_shown) else Reason.NOT_EXPLAINED
            yield Entry(Quantity.GRADIENTS, f"gradients {step.stage.value}", step.index, reason)
        elif not has_lost_details(distributed, step.index):
            yield Entry(Quantity.GRADIENTS, f"gradients {step.stage.value}", step.index, Reason.ONE_SIDED)
