"""Give a reference the global batches that another run consumed, composed of the reference's own examples.

A record of a run has only the fingerprints of the examples that it consumed. The examples themselves come from
the reference's dataset, so a replay contains no example that one device would not train on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddl.training import fingerprint

MOST_ELEMENTS = 2000
"""Maximum number of dataset elements to search for an example, because a repeated dataset has no end."""

Row = tuple[NDArray[Any], ...]


class ReplayError(RuntimeError):
    """Error if the global batches of another run cannot be composed of this dataset's examples."""


def replayed(dataset: Any, batches: Sequence[Sequence[int]], completed: Callable[[], int]) -> Any:
    """Return a dataset whose k-th element has the examples with the fingerprints ``batches[completed() + k]``.

    Each iteration starts at the current step of the run, and is as long as an iteration of ``dataset``.
    """
    import tensorflow as tf

    source = _Examples(dataset)
    signature = tf.nest.map_structure(_open_ended, dataset.element_spec)

    def elements() -> Iterator[Any]:
        first = completed()
        for position in range(first, len(batches) if source.length is None else first + source.length):
            yield source.element(batches[position] if position < len(batches) else ())

    made = tf.data.Dataset.from_generator(elements, output_signature=signature)
    return made if source.length is None else made.apply(tf.data.experimental.assert_cardinality(source.length))


def _open_ended(spec: Any) -> Any:
    import tensorflow as tf

    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank == 0:
        raise ReplayError(f"its batches contain {spec}, and only dense tensors of examples can be put together again")
    return tf.TensorSpec(None if spec.shape.rank is None else [None, *spec.shape[1:]], spec.dtype)


class UnknownExampleError(ReplayError):
    """Error if this dataset, read to its end, does not contain an example that the other run consumed."""


class _Examples:
    """Examples of a dataset by their fingerprints, read only as far as needed."""

    def __init__(self, dataset: Any) -> None:
        import tensorflow as tf

        cardinality = int(dataset.cardinality())
        self._structure = dataset.element_spec
        self._rows: dict[int, Row] = {}
        self._unread = islice(iter(dataset), MOST_ELEMENTS)
        self._nest = tf.nest
        self._any: Row | None = None
        self._ended = 0 <= cardinality <= MOST_ELEMENTS
        self.length = cardinality if 0 <= cardinality <= MOST_ELEMENTS else None
        if self.length is None and cardinality != tf.data.INFINITE_CARDINALITY:
            elements = sum(1 for _ in iter(self._read_one, False))
            self._ended = elements < MOST_ELEMENTS
            self.length = elements if self._ended else None

    def element(self, names: Sequence[int]) -> Any:
        """Return the examples with these fingerprints, as one element of the dataset."""
        rows = [self._row(name) for name in names]
        if not rows:
            rows = [self._row(None)]  # beyond the compared steps any example will do
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
        return self._nest.pack_sequence_as(self._structure, columns)

    def _row(self, name: int | None) -> Row:
        while (self._any is None if name is None else name not in self._rows) and self._read_one():
            pass
        found = self._any if name is None else self._rows.get(name)
        if found is None:
            if self._ended:
                raise UnknownExampleError("an example that the strategy consumed is not among those of one device")
            raise ReplayError(f"an example that the strategy consumed is not in the first {MOST_ELEMENTS} batches")
        return found

    def _read_one(self) -> bool:
        element = next(self._unread, None)
        if element is None:
            return False
        columns = [np.asarray(tensor.numpy()) for tensor in self._nest.flatten(element)]
        hashes = fingerprint.combine([fingerprint.hash_rows(column, at) for at, column in enumerate(columns)])
        for row, name in enumerate(hashes):
            self._rows.setdefault(name, tuple(column[row] for column in columns))
            self._any = self._any or self._rows[name]
        return True
