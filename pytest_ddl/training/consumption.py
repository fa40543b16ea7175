"""Collect the batches and losses of the replica functions of a step.

Each replica function passes its batch and its loss to a callback. The callback runs in each execution of the function,
even if another thread traced it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddl.records import BatchRecord
from pytest_ddl.step_records import BatchOrigin, InputRecord
from pytest_ddl.training import fingerprint
from pytest_ddl.training.callback_ops import add_callback
from pytest_ddl.training.elements import Elements

LARGEST = 64 * 2**20
"""Maximum bytes of a batch to hash; of a larger batch only the size is observed, so that the run stays fast."""
EXAMPLE_ID = "example_id"
"""Key of the ids of the examples in a batch."""


@dataclass
class _Events:
    batches: list[BatchRecord] = field(default_factory=list)
    named: list[tuple[int | str, ...]] = field(default_factory=list)


class Consumption:
    """Collection that TensorFlow's threads fill during a step, and that :meth:`take` empties between steps."""

    def __init__(self, failed: Callable[[str], None] = lambda _text: None) -> None:
        self.failed = failed
        """Callback that receives a text about what could not be observed."""
        self.elements = Elements()
        self._lock = threading.Lock()
        self._events: dict[int, _Events] = {}

    def batch(self, record: BatchRecord) -> None:
        with self._lock:
            self._events.setdefault(record.replica, _Events()).batches.append(record)

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
    if not named:
        return events.batches
    return [replace(seen, example_ids=ids) for seen, ids in zip(events.batches, named, strict=True)]


def shared_out(batches: tuple[BatchRecord, ...], steps: int) -> list[tuple[BatchRecord, ...]]:
    """Return the batches by step, in their order. If they cannot be divided evenly, the last step gets all."""
    if len(batches) % steps:
        return [*[()] * (steps - 1), batches]
    size = len(batches) // steps
    return [batches[size * step : size * (step + 1)] for step in range(steps)]


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


Origins = Sequence[BatchOrigin]
"""Origin of each part."""


def digest(
    parts: tuple[Part, ...], arrays: list[NDArray[Any]], origins: Origins | None = None, replica: int = 0
) -> BatchRecord:
    """Return the size, the fingerprints and the ids of the batch of a replica.

    Only parts with the surest origin count: parts of an element, or else what was computed from one.
    """
    seen = _with_rows(parts, arrays, [BatchOrigin.ELEMENT] * len(parts) if origins is None else origins)
    surest = next((kind for kind in BatchOrigin if any(one.origin is kind for one in seen)), None)
    if surest is None:
        return BatchRecord(replica, size=0)  # nothing but scalars
    counted = [one for one in seen if one.origin is surest]
    size = counted[0].rows
    named = [one for one in seen if one.part.is_ids and one.rows == size]
    hashes = [_hash(one) for one in counted] if sum(one.bytes for one in counted) <= LARGEST else []
    examples = [at for at in range(len(hashes)) if counted[at].rows == size]
    # A single part has no more to say than the batch.
    plain = [tuple(map(int, hashed)) for hashed in hashes] if len(counted) > 1 else []
    return BatchRecord(
        replica,
        size,
        fingerprint.combine([hashes[at] for at in examples]) if examples else None,
        as_ids(named[0].arrays[0]) if named else None,
        columns=tuple(plain[at] for at in examples) if len(examples) > 1 else (),
        inputs=tuple(InputRecord(one.shape[:2], plain[at] if plain else None) for at, one in enumerate(counted)),
        origin=surest,
        numbers=max(array.size for one in counted for array in one.arrays),
    )


@dataclass(frozen=True)
class _SeenPart:
    """Part of a batch in one execution of a step."""

    part: Part
    arrays: list[NDArray[Any]]
    origin: BatchOrigin
    shape: tuple[int, ...]
    """Shape, or only the number of its rows if these are not dense; empty for a scalar."""

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


def _with_rows(parts: tuple[Part, ...], arrays: list[NDArray[Any]], origins: Origins) -> list[_SeenPart]:
    """Return the parts of a batch that have rows; a scalar has none."""
    # Pieces beside what was computed from the batch show only a part of each example.
    as_derived = BatchOrigin.SELECTED if BatchOrigin.DERIVED in origins else None
    rest, seen = iter(arrays), []
    for part, origin in zip(parts, origins, strict=True):
        given = list(islice(rest, part.arrays))
        shape = given[0].shape if part.kind == "dense" else (int(np.asarray(given[2]).reshape(-1)[0]),)
        if shape:
            seen.append(_SeenPart(part, given, BatchOrigin.DERIVED if origin is as_derived else origin, shape))
    return seen


def _hash(seen: _SeenPart) -> fingerprint.Hashes:
    part, given, rows = seen.part, seen.arrays, seen.rows
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
    parts, tensors, items = describe(given)
    loss = _loss_of(result)
    if not parts and loss is None:
        return
    sources = [consumption.elements.source(item) for item in items]

    def record(replica: Any, *arrays: Any) -> None:
        has_loss = loss is not None
        value = float(arrays[-1]) if has_loss else None
        try:
            origins = [consumption.elements.origin(source) for source in sources]
            seen = digest(parts, list(arrays[: len(arrays) - has_loss]), origins, int(replica))
        except Exception as error:  # an exception here would be raised in the user's step
            consumption.failed(f"a batch could not be observed: {type(error).__name__}: {error}")
            return
        consumption.batch(replace(seen, loss=value))

    add_callback(record, [*tensors, *([] if loss is None else [loss])])


def observe_ids(consumption: Consumption, ids: Any) -> None:
    """Record the ids of the examples that this replica consumes in this step."""
    import tensorflow as tf

    def record(replica: Any, values: Any) -> None:
        consumption.name(int(replica), as_ids(values))

    add_callback(record, [tf.convert_to_tensor(ids)])


def describe(given: Any) -> tuple[tuple[Part, ...], list[Any], list[Any]]:
    """Return a description of each part of a batch, the tensors that represent them, and the parts themselves."""
    import tensorflow as tf

    parts: list[Part] = []
    tensors: list[Any] = []
    items: list[Any] = []
    ids = _find_ids(given)
    for position, item in enumerate(tf.nest.flatten(given)):
        if isinstance(item, tf.SparseTensor):
            kind, values = "sparse", [item.indices, item.values, item.dense_shape]
        elif isinstance(item, tf.RaggedTensor):
            rows = item if item.ragged_rank == 1 else item.merge_dims(1, item.ragged_rank)
            kind, values = "ragged", [rows.values, rows.value_rowids(), rows.nrows()]
        elif isinstance(item, tf.Tensor) and item.dtype not in (tf.resource, tf.variant):
            kind, values = "dense", [item]
        else:
            continue
        parts.append(Part(kind, position, len(values), is_ids=kind == "dense" and item is ids))
        tensors += values
        items.append(item)
    return tuple(parts), tensors, items


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
