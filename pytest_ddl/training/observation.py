"""What one step's replica functions consumed: collected from any thread, told per step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddl.records import BatchRecord
from pytest_ddl.training import fingerprint

LARGEST = 64 * 2**20
"""Bytes of a batch beyond which only its size is observed: hashing more would slow the run down."""


@dataclass
class _Events:
    batches: list[tuple[int, tuple[int, ...] | None, tuple[int | str, ...] | None, float | None]] = field(
        default_factory=list
    )
    told: list[tuple[int | str, ...]] = field(default_factory=list)


class Observations:
    """Filled from inside the step by threads of TensorFlow; emptied between steps by :meth:`take`."""

    def __init__(self, failed: Callable[[str], None] = lambda _text: None) -> None:
        self.failed = failed
        """Called with what could not be observed."""
        self._lock = threading.Lock()
        self._events: dict[int, _Events] = {}

    def batch(
        self,
        replica: int,
        size: int,
        fingerprints: tuple[int, ...] | None,
        ids: tuple[int | str, ...] | None,
        loss: float | None,
    ) -> None:
        with self._lock:
            self._events.setdefault(replica, _Events()).batches.append((size, fingerprints, ids, loss))

    def tell(self, replica: int, ids: tuple[int | str, ...]) -> None:
        """Ids that the program told by ``run.examples``."""
        with self._lock:
            self._events.setdefault(replica, _Events()).told.append(ids)

    def take(self) -> tuple[BatchRecord, ...]:
        """The batches since the last call, by replica and then in order."""
        with self._lock:
            events, self._events = self._events, {}
        return tuple(record for replica in sorted(events) for record in _records(replica, events[replica]))


def _records(replica: int, events: _Events) -> list[BatchRecord]:
    told = events.told
    if told and len(told) != len(events.batches):
        # Told more or less often than once per call: the ids of the step belong together.
        joined = tuple(item for ids in told for item in ids)
        told = [joined, *[()] * (len(events.batches) - 1)]
    if told and not events.batches:
        return [BatchRecord(replica, size=len(told[0]), example_ids=told[0])]
    return [
        BatchRecord(replica, size, fingerprints, told[position] if told else ids, loss)
        for position, (size, fingerprints, ids, loss) in enumerate(events.batches)
    ]


def as_ids(values: NDArray[Any]) -> tuple[int | str, ...]:
    """Example ids as built-in values; texts are decoded."""
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind in "OSU":
        return tuple(_as_text(item) for item in flat.tolist())
    return tuple(int(item) for item in flat)


def _as_text(item: Any) -> str:
    return item.decode(errors="replace") if isinstance(item, bytes) else str(item)


@dataclass(frozen=True)
class Part:
    """One tensor of a batch as it was laid out when the step was traced."""

    kind: str
    """``dense``, ``sparse`` (indices, values, shape) or ``ragged`` (values, row ids, row count)."""
    position: int
    """Its place in the structure; ``-1`` for tensors that carry example ids besides."""
    arrays: int
    """How many arrays it is passed as."""
    is_ids: bool = False


def digest(
    parts: tuple[Part, ...], arrays: list[NDArray[Any]]
) -> tuple[int, tuple[int, ...] | None, tuple[int | str, ...] | None]:
    """The size, the fingerprints and the ids of a batch."""
    size: int | None = None
    ids: tuple[int | str, ...] | None = None
    hashes: list[fingerprint.Hashes] = []
    affordable = sum(array.nbytes for array in arrays) <= LARGEST
    cursor = 0
    for part in parts:
        given = arrays[cursor : cursor + part.arrays]
        cursor += part.arrays
        rows = _rows_of(part, given)
        if rows is None or (size is not None and rows != size):
            continue  # a scalar, or something whose rows are not the examples
        size = rows
        if part.is_ids:
            ids = as_ids(given[0])
        if affordable:
            hashes.append(_hash(part, given, rows))
    if size is None:
        return 0, None, None
    return size, fingerprint.combine(hashes) if hashes else None, ids


def _rows_of(part: Part, given: list[NDArray[Any]]) -> int | None:
    if part.kind == "dense":
        return len(given[0]) if given[0].ndim else None
    return int(np.asarray(given[2]).reshape(-1)[0])


def _hash(part: Part, given: list[NDArray[Any]], rows: int) -> fingerprint.Hashes:
    if part.kind == "dense":
        return fingerprint.hash_rows(given[0], part.position)
    if part.kind == "sparse":
        indices, entries = given[0], given[1]
        return fingerprint.hash_entries(entries, indices[:, 0], indices[:, 1:], rows, part.position)
    entries, row_ids = given[0], given[1].astype(np.int64)
    first = np.searchsorted(row_ids, np.arange(rows))
    within = np.arange(len(row_ids)) - first[row_ids] if len(row_ids) else np.zeros(0, dtype=np.int64)
    return fingerprint.hash_entries(entries, row_ids, within, rows, part.position)
