"""Difference between the examples that a strategy and one device consumed, by id if known, otherwise by content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pytest_ddl.equivalence.evidence.observe import shared_steps
from pytest_ddl.equivalence.evidence.tolerance import FAILURE
from pytest_ddl.records import TrainingRecord

Examples = Counter[int | str]
_DISTINCT = 0.5
"""Share of distinct values above which a tensor identifies examples: labels of a few classes do not."""


class Order(Enum):
    """Meaning of a difference between the examples of two runs."""

    SAME = "the same global batches"
    OTHER = "other global batches, but no evidence that examples are lost or repeated"
    WRONG = "examples are lost or repeated"
    REPEATED = "all replicas consume the same examples"


@dataclass(frozen=True)
class Coverage:
    """Examples of both runs and the meaning of their difference."""

    order: Order
    step: int
    """First step whose global batches differ; 0 if there is none."""
    steps: int
    by: str
    """``ids`` or ``contents``."""
    ours: Examples
    """Examples that one device consumed. Like ``theirs``, it covers only the steps that were judged."""
    theirs: Examples
    drawn: bool = False
    """True if one device itself consumes some examples more often than others, because it draws them at random."""


def coverage(reference: TrainingRecord, distributed: TrainingRecord) -> Coverage | None:
    """Compare the examples of both runs; ``None`` if they were not observed on both sides."""
    steps = shared_steps(reference, distributed)
    for by in ("ids", "contents"):
        pairs = [(examples_of(reference, at, by), examples_of(distributed, at, by)) for at in range(1, steps + 1)]
        observed = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
        if observed and len(observed) == steps:
            covered = _coverage(observed, by, _is_one_batch_for_all(reference, distributed, by))
            return _over_all_steps(reference, distributed, covered)
    return None


def unseen_examples(reference: TrainingRecord, distributed: TrainingRecord) -> int | None:
    """Return the first step whose examples were observed only in part, and those of other steps or replicas were.

    The result is ``None`` if a run leaves all examples unobserved.
    """
    steps = range(1, shared_steps(reference, distributed) + 1)
    for by in ("ids", "contents"):
        seen = [tuple(examples_of(record, at, by) is not None for record in (reference, distributed)) for at in steps]
        partly = [ours and any(batch.names(by) for batch in distributed.batches(at))
                  for at, (ours, _theirs) in zip(steps, seen, strict=True)]  # fmt: skip
        if any(partly):
            return next((step for step, (ours, theirs) in zip(steps, seen, strict=True) if ours is not theirs), None)
    return None


def _over_all_steps(reference: TrainingRecord, distributed: TrainingRecord, found: Coverage) -> Coverage:
    """Judge all steps of both runs if the data of one run ended earlier and is batched differently.

    Examples that the other run consumed in its additional steps are lost, not merely late.
    """
    if found.order is not Order.OTHER or reference.num_steps == distributed.num_steps:
        return found
    if reference.errors or distributed.errors or found.drawn:
        return found
    sums = [Counter[int | str](), Counter[int | str]()]
    for record, whole in zip((reference, distributed), sums, strict=True):
        for step in range(1, record.num_steps + 1):
            examples = examples_of(record, step, found.by)
            if examples is None:
                return found
            whole.update(examples)
    return replace(found, order=Order.WRONG, ours=sums[0], theirs=sums[1]) if sums[0] != sums[1] else found


def unread_parts(reference: TrainingRecord, distributed: TrainingRecord) -> tuple[int, tuple[int, ...]] | None:
    """Return the number of shards of the data and those that all ranks together distribute, if one device has others.

    The shards that they leave out are trained on by nobody, however few of the examples were consumed.
    """
    if not all("parts" in rank.facts for rank in (*reference.ranks, *distributed.ranks)):
        return None
    ours, theirs = _parts(reference), _parts(distributed)
    for number, read in theirs.items():
        if len(read) < number and ours.get(number) != read:
            return number, tuple(sorted(read))
    return None


def _parts(record: TrainingRecord) -> dict[int, set[int]]:
    """Return the indices of the shards that all ranks distribute, by the number of shards."""
    parts: dict[int, set[int]] = {}
    for rank in record.ranks:
        for number, index in rank.facts.get("parts", ()):
            parts.setdefault(number, set()).add(index)
    return parts


def contents_are_known(reference: TrainingRecord, distributed: TrainingRecord) -> bool:
    """Return whether one device saw all contents.

    If not, the runs consume other examples, or the contents are random.
    """
    steps = shared_steps(reference, distributed)
    ours, theirs = Counter[int | str](), Counter[int | str]()
    for step in range(1, reference.num_steps + 1):
        ours.update(examples_of(reference, step, "contents") or ())
    for step in range(1, steps + 1):
        theirs.update(examples_of(distributed, step, "contents") or ())
    return not set(theirs) - set(ours)


def altered_tensors(
    reference: TrainingRecord, distributed: TrainingRecord, steps: int
) -> tuple[list[int], list[int]] | None:
    """Return the tensors of the examples that both runs share in every step, and those that differ.

    A shared tensor shows that the examples are the same if its values are hardly ever equal for two examples. The
    result is ``None`` if no such tensor is shared. If all are shared one by one, they are combined in another way.
    """
    numbers = {len(batch.columns) for record in (reference, distributed) for batch in record.batches(1) if batch.size}
    count = numbers.pop() if len(numbers) == 1 else 0
    shared, names_examples = set(range(count)), False
    for position in range(count):
        pairs = [(_column(reference, at, position), _column(distributed, at, position)) for at in range(1, steps + 1)]
        if any(ours is None or ours != theirs for ours, theirs in pairs):
            shared.discard(position)
            continue
        values = sum((ours for ours, _theirs in pairs if ours), Counter[int]())
        names_examples = names_examples or len(values) > _DISTINCT * sum(values.values())
    return (sorted(shared), [at for at in range(count) if at not in shared]) if names_examples else None


def _column(record: TrainingRecord, step: int, position: int) -> Counter[int] | None:
    """Return the hashes of one tensor of the examples of a global batch; ``None`` if they were not observed."""
    column: Counter[int] = Counter()
    for batch in record.batches(step):
        if batch.size and len(batch.columns) <= position:
            return None
        column.update(batch.columns[position] if batch.size else ())
    return column


def step_of_batch(reference: TrainingRecord, distributed: TrainingRecord, step: int) -> int | None:
    """Return the only other step in which one device consumes the whole global batch that ``step`` has here."""
    for by in ("ids", "contents"):
        theirs = examples_of(distributed, step, by)
        if theirs:
            others = range(1, reference.num_steps + 1)
            steps = [other for other in others if examples_of(reference, other, by) == theirs]
            return steps[0] if len(steps) == 1 and steps[0] != step else None
    return None


def repeats_are_no_chance(references: Sequence[TrainingRecord], distributed: TrainingRecord, by: str) -> bool:
    """Return whether workers share too many examples for a program that draws new examples in each run.

    If one device draws at random, an example may come twice by chance under the strategy. Suppose that no run on one
    device has such an example and that this run has ``d``. If that is chance, all ``d`` fell into one of ``k + 1`` runs
    that are alike, which has the probability ``(k + 1) ** -d``. An example that only one worker repeats does not count,
    because the worker's shard may be shorter than the others.
    """
    for record in references:
        seen = [examples_of(record, step, by) for step in range(1, record.num_steps + 1)]
        if any(count > 1 for count in sum((one or Counter() for one in seen), Counter[int | str]()).values()):
            return False
    workers: Counter[int | str] = Counter()
    for rank in distributed.ranks:
        batches = [batch for step in rank.steps for batch in step.batches]
        workers.update({name for batch in batches for name in batch.names(by) or ()})
    shared = sum(count > 1 for count in workers.values())
    return float(len(references) + 1) ** -shared <= FAILURE


def contents_by_step(record: TrainingRecord) -> tuple[tuple[int, ...], ...] | None:
    """Return the fingerprints of every global batch, in the order of the replicas; ``None`` if not observed."""
    contents = []
    for step in range(1, record.num_steps + 1):
        batches = record.batches(step)
        if not batches or any(batch.fingerprints is None and batch.size for batch in batches):
            return None
        contents.append(tuple(name for batch in batches for name in batch.fingerprints or ()))
    return tuple(contents) or None


def _coverage(observed: list[tuple[Examples, Examples]], by: str, one_for_all: bool) -> Coverage:
    ours, theirs = _sums(observed)
    differing = [step for step, (left, right) in enumerate(observed, 1) if left != right]
    if not differing:
        return Coverage(Order.SAME, 0, len(observed), by, ours, theirs)

    first_pass = _first_pass(observed)
    # One device repeats examples, and they do not come in passes. It draws with replacement, or contents are equal.
    drawn = first_pass == 0 and len(set(ours.values())) > 1

    def result(order: Order, left: Examples, right: Examples) -> Coverage:
        return Coverage(order, differing[0], len(observed), by, left, right, drawn)

    if one_for_all:
        return result(Order.REPEATED, ours, theirs)
    if first_pass:
        # Within one pass an example comes once. Later passes may be cut off at different places.
        left, right = _sums(observed[:first_pass])
        if max(right.values(), default=0) > 1:
            return result(Order.WRONG, left, right)
    unseen = set(theirs) - set(ours)
    other = ours == theirs or drawn or (first_pass and (first_pass < len(observed) or unseen))
    return result(Order.OTHER if other else Order.WRONG, ours, theirs)


def _first_pass(observed: list[tuple[Examples, Examples]]) -> int:
    """Count the steps before the one in which one device first repeats an example; all steps if it repeats none.

    Return 0 if its examples do not come in passes. After a pass no new example may come. The only exception is the step
    at the end of the pass, which may already contain examples of the next pass.
    """
    seen: set[int | str] = set()
    for step, (ours, _theirs) in enumerate(observed):
        if max(ours.values(), default=0) > 1 or seen & set(ours):
            whole = seen | set(ours)
            later = {name for left, _right in observed[step + 1 :] for name in left}
            return step if not later - whole and (whole == seen or later) else 0
        seen.update(ours)
    return len(observed)


def _is_one_batch_for_all(reference: TrainingRecord, distributed: TrainingRecord, by: str) -> bool:
    """Return whether all replicas consume the same examples in every step, and one device consumes none twice."""
    return all(
        _is_equal_on_all(distributed, step, by)
        and max((examples_of(reference, step, by) or Counter[int | str]()).values(), default=0) <= 1
        for step in range(1, shared_steps(reference, distributed) + 1)
    )


def replicas_consume_equal_examples(record: TrainingRecord) -> bool:
    """Return whether all replicas consume equal contents in every step, so that one of them stands for all."""
    return record.num_steps > 0 and all(
        _is_equal_on_all(record, step, "contents") for step in range(1, record.num_steps + 1)
    )


def _is_equal_on_all(record: TrainingRecord, step: int, by: str) -> bool:
    """Return whether several replicas consume the same examples in a step."""
    batches: dict[int, Examples] = {}
    for batch in record.batches(step):
        batches.setdefault(batch.replica, Counter()).update(batch.names(by) or ())
    first, *others = list(batches.values()) or [Counter[int | str]()]
    return bool(first and others) and all(batch == first for batch in others)


def _sums(observed: list[tuple[Examples, Examples]]) -> tuple[Examples, Examples]:
    ours, theirs = Counter[int | str](), Counter[int | str]()
    for left, right in observed:
        ours.update(left)
        theirs.update(right)
    return ours, theirs


def examples_of(record: TrainingRecord, step: int, by: str) -> Examples | None:
    """Return the examples of a global batch, or ``None`` if those of a replica were not observed."""
    batches = record.batches(step)
    if not batches:
        return None
    examples: Examples = Counter()
    for batch in batches:
        names = batch.names(by)
        if names is None and batch.size:
            return None
        examples.update(names or ())
    return examples
