"""COLL-LOG: all ranks execute the same collectives in the same order. If not, find the first mismatch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pytest_ddl.equivalence.causes.cause import Fix
from pytest_ddl.equivalence.causes.special import SPECIAL
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, not_applicable, not_observed, passed
from pytest_ddl.notes import NoteKind
from pytest_ddl.records import CollectiveRecord, TrainingRecord
from pytest_ddl.training.collective_log import DECISION

CHECK = "COLL-LOG"
CONDITIONAL, ORDER, SHAPE = "rank-conditional-collective", "collective-order-mismatch", "collective-shape-mismatch"
WINDOW = 256
"""Number of collectives, enough for several steps, that are compared after the first difference to find its cause."""


@dataclass(frozen=True)
class Mismatch:
    """First collective in which a rank does not match another rank, with the cause."""

    cause: str
    message: str
    step: int
    rank: int
    """Rank that executed the collective in the message."""
    fix: Fix | None = None
    """Fix of this shape of the cause, in place of that of the cause."""


def check_collective_log(comparison: Comparison) -> CheckResult:
    """Compare the collectives of the ranks position by position, as TensorFlow pairs them."""
    reference, distributed = comparison.records
    if len(distributed.ranks) < 2:
        return not_applicable(CHECK, "one process issues the collectives of all replicas")
    if distributed.errors:
        return not_applicable(CHECK, "the run did not end; check RUN reports whether collectives are the reason")
    if not any(rank.collectives for rank in distributed.ranks):
        return not_applicable(
            CHECK, not_observed(distributed, "the collectives of the ranks were", NoteKind.COLLECTIVES)
        )
    different = mismatch(distributed, reference)
    if different is None:
        count = len(distributed.ranks[0].collectives)
        return passed(CHECK, f"{count} collectives in the same order on {len(distributed.ranks)} ranks")
    return failed(CHECK, [finding(CHECK, different)])


def finding(check: str, found: Mismatch) -> Finding:
    return Finding(
        check=check,
        message=found.message,
        cause=found.cause,
        step=found.step,
        worker=found.rank,
        fix=found.fix,
        expected="the same collectives in the same order on every rank",
    )


def mismatch(
    record: TrainingRecord, reference: TrainingRecord | None = None, running: Collection[int] = ()
) -> Mismatch | None:
    """Find the earliest mismatch of a rank with the first rank; ``None`` if there is none.

    :param reference: run that shows which reductions one device executes in the same step.
    :param running: ranks that may have continued, so that the end of their logs proves nothing.
    """
    decision = _decided_differently(record)
    if decision is not None:
        return decision
    mismatches = [
        difference
        for other in record.ranks[1:]
        for group in sorted({item.group for rank in (record.ranks[0], other) for item in rank.collectives})
        for difference in [_compare(record, 0, other.rank, group, reference, running)]
        if difference is not None
    ]
    return min(mismatches, key=lambda difference: difference.step, default=None)


def _decided_differently(record: TrainingRecord) -> Mismatch | None:
    """Find the first update that only some ranks left out because of a gradient that is not finite."""
    first, *others = ([item for item in rank.collectives if item.kind == DECISION] for rank in record.ranks)
    pairs = [(rank, *pair) for rank, log in enumerate(others, 1) for pair in zip(first, log, strict=False)]
    rank, one, other = next(((r, one, two) for r, one, two in pairs if one.op != two.op), (0, None, None))
    if one is None or other is None:
        return None
    message = (
        f"the gradients of rank 0 are {one.op}, and those of rank {rank} are {other.op}. Keras 3's LossScaleOptimizer "
        "decides by the gradients of each worker, before they are added up. So only some workers update, and wait "
        "there for the others"
    )
    return Mismatch("non-finite-not-synchronised", message, one.step + 1, rank, SPECIAL["loss-scale-of-keras"])


def _compare(
    record: TrainingRecord,
    first: int,
    second: int,
    group: int,
    reference: TrainingRecord | None,
    running: Collection[int],
) -> Mismatch | None:
    logs = {rank.rank: [item for item in rank.collectives if item.group == group] for rank in record.ranks}
    left, right = logs[first], logs[second]
    together = min(len(left), len(right))
    if (second if len(right) < len(left) else first) in running:
        left, right = left[:together], right[:together]
    place = next((i for i in range(together) if not _alike(left[i], right[i])), together)
    swapped = _swapped(left[:place], right[:place])
    if swapped is not None:
        return _order(left, right, swapped, (first, second))
    if place == len(left) == len(right):
        return None
    parted = _parted(left, right, place, (first, second))
    extra = _extra(left, right, place, (first, second))
    if extra is not None:
        return _after(extra, parted)
    wheres = {item.where for item in left}
    if place < together and left[place].where in {item.where for item in right} and right[place].where not in wheres:
        # Report a line that only one rank reaches from that rank's point of view.
        left, right, first, second = right, left, second, first
    different = _of_pair(left[place : place + WINDOW], right[place : place + WINDOW], (first, second))
    if different.cause == SHAPE and _one_device_reduces_both(reference, left[place], right[place]):
        return _order(left, right, place, (first, second))
    return _after(different, parted)


def _parted(
    left: Sequence[CollectiveRecord], right: Sequence[CollectiveRecord], place: int, ranks: tuple[int, int]
) -> str:
    """Name the last common line of the ranks, and the next line of each; empty if the logs do not show them."""
    if not 0 < place < min(len(left), len(right)) or _line(left[place]) == _line(right[place]):
        return ""
    ways = [f"rank {rank} went on to {_line(log[place])}" for rank, log in zip(ranks, (left, right), strict=True)]
    return (
        f"The ranks agree up to {_line(left[place - 1])} in step {left[place - 1].step + 1}. Then {' and '.join(ways)}"
    )


def _line(item: CollectiveRecord) -> str:
    return item.where or "a collective of the framework"


def _after(found: Mismatch, parted: str) -> Mismatch:
    """Add the line at which the ranks parted, if only some ranks issued the collective."""
    return replace(found, message=f"{found.message}. {parted}") if found.cause == CONDITIONAL and parted else found


def _one_device_reduces_both(reference: TrainingRecord | None, one: CollectiveRecord, other: CollectiveRecord) -> bool:
    """Return whether one device reduces tensors of both shapes in one step. A log may be too short to show it."""
    if reference is None or one.step >= reference.num_steps or one.parts or other.parts:
        return False
    recorded = reference.ranks[0].steps[one.step].reductions
    known = {(item.given.shape, item.dtype) for item in recorded}
    return (one.shape, one.dtype) in known and (other.shape, other.dtype) in known


def _alike(left: CollectiveRecord, right: CollectiveRecord) -> bool:
    """Return whether two collectives can be executed together, as far as their shapes are known."""
    if (left.kind, left.dtype, left.parts) != (right.kind, right.dtype, right.parts):
        return False
    if left.kind == "all_gather" or left.shape is None or right.shape is None:
        return True  # TensorFlow pads gathered tensors, so their sizes may differ
    dims = zip(left.shape, right.shape, strict=False)
    return len(left.shape) == len(right.shape) and all(a == b or a is None or b is None for a, b in dims)


def _swapped(left: Sequence[CollectiveRecord], right: Sequence[CollectiveRecord]) -> int | None:
    """Find the first collective that comes in another order on the other rank, although all shapes match.

    Lines and names may differ between correct ranks (``if chief: save(a) else: save(b)``). The same lines and names in
    another order are a defect.
    """
    for place, (one, other) in enumerate(zip(left, right, strict=True)):
        if one.names != other.names and len(one.names) > 1 and sorted(one.names) == sorted(other.names):
            return place
        if _identity(one) != _identity(other):
            return place if _permuted(list(map(_identity, left[place:])), list(map(_identity, right[place:]))) else None
    return None


def _identity(item: CollectiveRecord) -> tuple[object, ...]:
    return item.where, item.kind, item.dtype, item.parts or item.shape, item.names


def _kind(item: CollectiveRecord) -> tuple[object, ...]:
    return item.kind, item.dtype, item.parts or item.shape


def _permuted(left: Sequence[object], right: Sequence[object]) -> bool:
    """Return whether two logs that begin with a difference hold the same items in another order."""
    counts: Counter[object] = Counter()
    for one, other in zip(left[:WINDOW], right[:WINDOW], strict=False):
        counts[one] += 1
        counts[other] -= 1
        if not any(counts.values()):
            return True
    return False


def _extra(
    left: Sequence[CollectiveRecord], right: Sequence[CollectiveRecord], place: int, ranks: tuple[int, int]
) -> Mismatch | None:
    """Find a line that one rank executes more often than the other, if the logs agree without it.

    It may lie before the first difference, because the wrong collectives can meet unnoticed if their shapes are equal.
    """
    counts = Counter(item.where for item in left), Counter(item.where for item in right)
    for position in range(place + 1):
        for mine, theirs, side in ((left, right, 0), (right, left, 1)):
            if position >= len(mine):
                continue
            item = mine[position]
            times = counts[side][item.where], counts[1 - side][item.where]
            if times[0] > times[1] and _agree_without(item, mine[position:], theirs[position:], times[1] == 0):
                if _takes_more_steps(item, mine, theirs):
                    return _unequal_steps(mine, theirs, ranks[side], ranks[1 - side])
                return _conditional(item, ranks[side], ranks[1 - side], times)
    return None


def _takes_more_steps(
    item: CollectiveRecord, mine: Sequence[CollectiveRecord], theirs: Sequence[CollectiveRecord]
) -> bool:
    """Return whether one rank only takes more steps: its extra collective begins another step like those before."""
    steps, others = (Counter(entry.step for entry in log if entry.where == item.where) for log in (mine, theirs))
    last = max(steps)
    regular = len(set(steps.values())) == 1 and sorted(steps) == list(range(min(steps), last + 1))
    fewer = bool(others) and sorted(others) == sorted(steps)[: len(others)] and others.keys() < steps.keys()
    first = next(entry for entry in mine if entry.step == last)
    return regular and fewer and first.where == item.where


def _unequal_steps(
    mine: Sequence[CollectiveRecord], theirs: Sequence[CollectiveRecord], rank: int, other: int
) -> Mismatch:
    last, extra = theirs[-1].step, mine[len(theirs)]
    message = f"rank {rank} goes on to step {extra.step + 1}, but rank {other} ends after step {last + 1}"
    return Mismatch("unequal-steps", f"{message}: {_describe(extra)} waits for rank {other}", extra.step + 1, rank)


def _agree_without(
    item: CollectiveRecord, mine: Sequence[CollectiveRecord], theirs: Sequence[CollectiveRecord], all_of_it: bool
) -> bool:
    rest = [entry for entry in mine[1:] if not (all_of_it and entry.where == item.where)]
    if not theirs:
        return True
    # If the run stopped at a line that the other rank never reaches, only few entries may follow that line.
    enough = bool(rest) if all_of_it else len(rest) >= len(theirs)
    return enough and all(map(_alike, rest[:WINDOW], theirs))


def _conditional(item: CollectiveRecord, rank: int, other: int, times: tuple[int, int]) -> Mismatch:
    how_often = "never executes it" if times[1] == 0 else f"executes it {times[1]} time(s), not {times[0]}"
    message = f"rank {rank} executes {_describe(item)}, but rank {other} {how_often}"
    return Mismatch(CONDITIONAL, message, item.step + 1, rank)


def _of_pair(left: Sequence[CollectiveRecord], right: Sequence[CollectiveRecord], ranks: tuple[int, int]) -> Mismatch:
    """Name the cause from two different collectives that meet and the collectives that follow them."""
    if not left or not right:
        longer = 0 if left else 1
        return _conditional((left or right)[0], ranks[longer], ranks[1 - longer], (1, 0))
    one, other = left[0], right[0]
    if sorted(one.parts) == sorted(other.parts) and one.parts != other.parts:
        return _order(left, right, 0, ranks)
    if _permuted(list(map(_kind, left)), list(map(_kind, right))):
        return _order(left, right, 0, ranks)
    sizes = [len(item.parts) or 1 for item in (one, other)]
    if one.where != other.where:
        # The other rank may have executed this line before, so that "never" would be wrong.
        message = f"rank {ranks[0]} executes {_describe(one)}, but rank {ranks[1]} does not execute it there"
        return Mismatch(CONDITIONAL, message, one.step + 1, ranks[0])
    if sizes[0] != sizes[1]:
        more = int(sizes[1] > sizes[0])
        message = (
            f"rank {ranks[more]} reduces {sizes[more]} tensors in {_describe((one, other)[more])}, "
            f"but rank {ranks[1 - more]} only {sizes[1 - more]}"
        )
        return Mismatch(CONDITIONAL, message, one.step + 1, ranks[more])
    message = (
        f"rank {ranks[0]} executes {_describe(one)}, but rank {ranks[1]} executes {_describe(other)} at the same "
        "position"
    )
    return Mismatch(SHAPE, message, one.step + 1, ranks[1])


def _order(
    left: Sequence[CollectiveRecord], right: Sequence[CollectiveRecord], place: int, ranks: tuple[int, int]
) -> Mismatch:
    one, other = left[place], right[place]
    message = (
        f"rank {ranks[0]} executes {_describe(one)}, but rank {ranks[1]} executes {_describe(other)}: the ranks issue "
        "the same collectives in different orders"
    )
    return Mismatch(ORDER, message, one.step + 1, ranks[1])


def _describe(item: CollectiveRecord) -> str:
    what = f"{len(item.parts)} tensors" if item.parts else f"{_dims(item.shape)}{item.dtype}".strip()
    if item.parts and len(item.parts) <= 6:
        what += f" ({', '.join(item.parts)})"
    elif len(item.names) == 1:
        what += f" {item.names[0]!r}"
    called = f", called at {item.called}" if item.called else ""
    return f"{item.kind} of {what or 'a variable'} ({item.where or 'of the framework'}{called})"


def _dims(shape: tuple[int | None, ...] | None) -> str:
    return "" if shape is None else f"{'x'.join('?' if dim is None else str(dim) for dim in shape) or 'scalar'} "
