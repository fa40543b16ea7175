"""Collect the batches and losses of the replica functions of a step.

Each replica function passes its batch and its loss to a callback. The callback runs in each execution of the function,
even if another thread traced it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddl.records import BatchRecord
from pytest_ddl.training import fingerprint
from pytest_ddl.training.callback_ops import add_callback

LARGEST = 64 * 2**20
"""Maximum bytes of a batch to hash; of a larger batch only the size is observed, so that the run stays fast."""
EXAMPLE_ID = "example_id"
"""Key of the ids of the examples in a batch."""


@dataclass(frozen=True)
class Digest:
    """What is recorded of the examples of a batch; see :class:`~pytest_ddl.records.BatchRecord`."""

    size: int = 0
    fingerprints: tuple[int, ...] | None = None
    ids: tuple[int | str, ...] | None = None
    columns: tuple[tuple[int, ...], ...] = ()


@dataclass
class _Events:
    batches: list[tuple[Digest, float | None]] = field(default_factory=list)
    named: list[tuple[int | str, ...]] = field(default_factory=list)


class Consumption:
    """Collection that TensorFlow's threads fill during a step, and that :meth:`take` empties between steps."""

    def __init__(self, failed: Callable[[str], None] = lambda _text: None) -> None:
        self.failed = failed
        """Callback that receives a text about what could not be observed."""
        self._lock = threading.Lock()
        self._events: dict[int, _Events] = {}

    def batch(self, replica: int, examples: Digest, loss: float | None) -> None:
        with self._lock:
            self._events.setdefault(replica, _Events()).batches.append((examples, loss))

    def name(self, replica: int, ids: tuple[int | str, ...]) -> None:
        """Add the ids that the program gave to ``run.examples``."""
        with self._lock:
            self._events.setdefault(replica, _Events()).named.append(ids)

    def take(self) -> tuple[BatchRecord, ...]:
        """Return the batches since the last call, by replica and then in order."""
        with self._lock:
            events, self._events = self._events, {}
        return tuple(record for replica in sorted(events) for record in _records(replica, events[replica]))


def _records(replica: int, events: _Events) -> list[BatchRecord]:
    named = events.named
    if named and len(named) != len(events.batches):
        # run.examples was not called once per batch, so ids cannot be matched with batches: join those of the step.
        joined = tuple(item for ids in named for item in ids)
        named = [joined, *[()] * (len(events.batches) - 1)]
    if named and not events.batches:
        return [BatchRecord(replica, size=len(named[0]), example_ids=named[0])]
    return [
        BatchRecord(replica, seen.size, seen.fingerprints, named[position] if named else seen.ids, loss, seen.columns)
        for position, (seen, loss) in enumerate(events.batches)
    ]


def as_ids(values: NDArray[Any]) -> tuple[int | str, ...]:
    """Return example ids as built-in values; byte strings are decoded."""
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind in "OSU":
        return tuple(item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in flat.tolist())
    return tuple(int(item) for item in flat)


@dataclass(frozen=True)
class Part:
    """Description of one tensor of a batch, made when the step was traced."""

    kind: str
    """``dense``, ``sparse`` (indices, values, shape) or ``ragged`` (values, row ids, row count)."""
    position: int
    """Index in the flattened structure of the batch."""
    arrays: int
    """Number of arrays that represent it."""
    is_ids: bool = False


def digest(parts: tuple[Part, ...], arrays: list[NDArray[Any]]) -> Digest:
    """Return the size, the fingerprints and the ids of a batch."""
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
        return Digest()
    columns = tuple(tuple(map(int, column)) for column in hashes) if len(hashes) > 1 else ()
    return Digest(size, fingerprint.combine(hashes) if hashes else None, ids, columns)


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


def observe_call(consumption: Consumption, given: Any, result: Any) -> None:
    """Record one call of a replica function: its batch, and its loss if it returned one."""
    parts, tensors = describe(given)
    loss = _loss_of(result)
    if not parts and loss is None:
        return

    def record(replica: Any, *arrays: Any) -> None:
        has_loss = loss is not None
        value = float(arrays[-1]) if has_loss else None
        try:
            examples = digest(parts, list(arrays[: len(arrays) - has_loss]))
        except Exception as error:  # an exception here would be raised in the user's step
            consumption.failed(f"a batch could not be observed: {type(error).__name__}: {error}")
            return
        consumption.batch(int(replica), examples, value)

    add_callback(record, [*tensors, *([] if loss is None else [loss])])


def observe_ids(consumption: Consumption, ids: Any) -> None:
    """Record the ids of the examples that this replica consumes in this step."""
    import tensorflow as tf

    def record(replica: Any, values: Any) -> None:
        consumption.name(int(replica), as_ids(values))

    add_callback(record, [tf.convert_to_tensor(ids)])


def describe(given: Any) -> tuple[tuple[Part, ...], list[Any]]:
    """Return the tensors of a batch, and a description of how to read them."""
    import tensorflow as tf

    parts: list[Part] = []
    tensors: list[Any] = []
    ids = _find_ids(given)
    for position, item in enumerate(tf.nest.flatten(given)):
        if isinstance(item, tf.SparseTensor):
            kind, values = "sparse", [item.indices, item.values, item.dense_shape]
        elif isinstance(item, tf.RaggedTensor) and item.ragged_rank == 1:
            kind, values = "ragged", [item.values, item.value_rowids(), item.nrows()]
        elif isinstance(item, tf.Tensor) and item.dtype not in (tf.resource, tf.variant):
            kind, values = "dense", [item]
        else:
            continue
        parts.append(Part(kind, position, len(values), is_ids=kind == "dense" and item is ids))
        tensors += values
    return tuple(parts), tensors


def _find_ids(given: Any) -> Any:
    """Return the first entry with the key ``example_id`` in nested dicts, lists and tuples."""
    if isinstance(given, dict):
        if EXAMPLE_ID in given:
            return given[EXAMPLE_ID]
        given = list(given.values())
    if isinstance(given, list | tuple):
        for item in given:
            found = _find_ids(item)
            if found is not None:
                return found
    return None


def _loss_of(result: Any) -> Any:
    """Return the floating scalar that a replica function returned, by itself or as the first of several."""
    import tensorflow as tf

    first = result[0] if isinstance(result, list | tuple) and result else result
    if not isinstance(first, tf.Tensor) or not first.dtype.is_floating:
        return None
    return first if first.shape.rank == 0 else None
