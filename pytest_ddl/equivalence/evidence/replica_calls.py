"""Compare the tensors that the calls of replica functions were given in two runs, whatever their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from pytest_ddl.records import Array, TrainingRecord
from pytest_ddl.run_facts import Call

_Example = tuple[tuple[int, bytes], ...]
"""Position of each tensor that holds a part of an example, with the content of that part."""


def calls_of(record: TrainingRecord) -> tuple[Call, ...] | None:
    """Return the tensors of each call, in order; ``None`` if they were not kept, or if there was no call."""
    return (record.ranks[0].facts.get("calls") or None) if len(record.ranks) == 1 else None


def are_equal(left: Sequence[Call], right: Sequence[Call]) -> bool:
    """Return whether all calls were given equal tensors, in the same order."""
    return len(left) == len(right) and all(
        len(ours) == len(theirs) and all(map(_is_equal, ours, theirs)) for ours, theirs in zip(left, right, strict=True)
    )


def strange_examples(reference: Sequence[Call], distributed: Sequence[Call], readers: int = 1) -> str | None:
    """Explain which examples only closures consumed, or consumed more often than on one device, or return ``None``.

    If one device has consumed some example twice, it has seen all of its data. Otherwise it may have seen only a part,
    and the closures another part. But an example that shares a part with one of these is that example, and changed. And
    data that have no example in common may be other data.

    :param readers: number of workers that read all of the data, each by itself
    """
    ours = Counter(example for call in reference for example in examples_of(call))
    theirs = Counter(example for call in distributed for example in examples_of(call))
    strange = sum(count for example, count in theirs.items() if example not in ours)
    total = sum(theirs.values())
    has_seen_all = any(count > 1 for count in ours.values())
    known = _telling_parts(ours)
    changed = any(part in known for example in theirs if example not in ours for part in example)
    if strange == total or (strange and (has_seen_all or changed)):
        return (
            f"{strange} of {total} examples that closures consumed were never consumed on one device: "
            "use the same data there, set a seed for data that are drawn, and train for a whole epoch"
        )
    missing = len(ours.keys() - theirs.keys())
    # A reader that shuffles over the end of a pass repeats some examples early, and hardly misses one.
    repeated = _repeated(reference, distributed, readers) if not strange and (missing or readers == 1) else None
    if repeated is not None:
        return (
            f"closures consumed an example {repeated[0]} times that one device consumed {repeated[1]} times, and "
            f"{missing} of {len(ours)} examples never: schedule as many closures for each batch as one device has "
            "steps, and let the function that makes the data return all of it on each worker"
        )
    return None


def _repeated(reference: Sequence[Call], distributed: Sequence[Call], readers: int) -> tuple[int, int] | None:
    """Return how often closures and one device consumed a batch or an example, if closures did it too often.

    Each of several readers may be in a pass of its own, and use a batch once more than one device does. If the data is
    shuffled, batches are made of other examples, and the same holds for the examples. Nothing is known of examples that
    are drawn, of which one device uses some more often than others.
    """
    ours, theirs = (Counter(tuple(examples_of(call)) for call in calls) for calls in (reference, distributed))
    if theirs.keys() <= ours.keys():
        return next(((n, ours[batch]) for batch, n in theirs.items() if n > ours[batch] + readers - 1), None)
    counts, found = (Counter(one for call in calls for one in examples_of(call)) for calls in (reference, distributed))
    least, most, seen = min(counts.values()), max(counts.values()), max(found.values())
    return (seen, most) if most - least <= 1 and seen > most + readers - 1 else None


def examples_of(call: Call) -> list[_Example]:
    """Return the examples of a call: the rows of all tensors that have as many rows."""
    examples: list[_Example] = []
    for rows in dict.fromkeys(len(array) for array in call):
        positions = tuple(position for position, array in enumerate(call) if len(array) == rows)
        contents = zip(*(_rows(call[position]) for position in positions), strict=True)
        examples += [tuple(zip(positions, content, strict=True)) for content in contents]
    return examples


def _telling_parts(examples: Collection[_Example]) -> set[tuple[int, bytes]]:
    """Return the parts of examples from tensors whose parts differ in all examples, unlike labels of a few classes."""
    counts = Counter(part for example in examples for part in example)
    shared = {position for (position, _content), count in counts.items() if count > 1}
    return {part for part in counts if part[0] not in shared} if len(examples) > 1 else set()


def _rows(array: Array) -> list[bytes]:
    if array.dtype.hasobject:
        return [repr(row.tolist() if isinstance(row, np.ndarray) else row).encode() for row in array]
    return [row.tobytes() for row in np.ascontiguousarray(array)]


def _is_equal(left: Array, right: Array) -> bool:
    same = left.dtype == right.dtype and left.shape == right.shape
    return same and bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"))
