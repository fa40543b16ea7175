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
from pytest_ddl.equivalence.evidence.observe import replicas_of, resumed_after, sizes
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
        reason = None if ours == theirs else Reason.NOT_EXPLAINED if ours and theirs else Reason.ONE_SIDED
        yield Entry(Quantity.BATCHES, "number of examples", step, reason)
    for by in ("ids", "contents"):
        mine, others = (examples_of(record, step, by) for record in (reference, distributed))
        if mine is not None and others is not None:
            yield Entry(Quantity.EXAMPLES, by, step, None if mine == others else Reason.NOT_EXPLAINED)
            return


def _draws(comparison: Comparison, step: int) -> Iterator[Entry]:
    """Yield for each replica whether it executed the random operations of one device in a step."""
    reference, distributed = comparison.records
    if not all(rank.draws_observed for rank in (*reference.ranks, *distributed.ranks)):
        return
    ours = _operations(reference.ranks, step).get(0, Counter())
    theirs = _operations(distributed.ranks, step)
    for replica in replicas_of(distributed, step):
        found = theirs.get(replica, Counter())
        if ours or found:
            name = f"random numbers of replica {replica}"
            yield Entry(Quantity.DRAWS, name, step, None if ours == found else Reason.NOT_EXPLAINED)


def _operations(ranks: Sequence[RankRecord], step: int) -> dict[int, Counter[tuple[int, str]]]:
    """Map each replica to the random operations that it executed in a step, by place and type."""
    found: dict[int, Counter[tuple[int, str]]] = {}
    for rank in ranks:
        for draw in rank.steps[step - 1].draws:
            found.setdefault(draw.replica, Counter())[draw.position, draw.op] += 1
    return found


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
        elif step.index > resumed_after(distributed):
            yield Entry(Quantity.GRADIENTS, f"gradients {step.stage.value}", step.index, Reason.ONE_SIDED)
