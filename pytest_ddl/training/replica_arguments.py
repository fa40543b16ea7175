"""Keep the tensors that the calls of a replica function are given, or give them those of another run.

Scalars stay as they are: they are settings of a step, such as a learning rate, and no examples.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_ddl.records import Array
from pytest_ddl.run_facts import Call
from pytest_ddl.training.consumption import LARGEST
from pytest_ddl.training.settings import RunSettings


class OtherCallsError(Exception):
    """Exception in a run that is given the tensors of another one, and calls its replica functions differently."""


class ReplicaArguments:
    """Tensors of all calls of replica functions, in order. They are kept, replaced, both or neither."""

    def __init__(self, settings: RunSettings, of_coordinator: bool = False) -> None:
        """Prepare a run.

        :param of_coordinator: True if a coordinator runs the calls. They are then kept: they may be concurrent.
        """
        self._keeps = settings.keep_calls or of_coordinator
        self._feed = settings.feed.calls if settings.feed is not None else None
        self._lock = threading.Lock()
        self._kept: list[Call] = []
        self._given = self._seen = 0
        self._bytes = 0
        self._is_complete = True

    def kept(self) -> tuple[Call, ...] | None:
        """Return the tensors of each call; ``None`` if they were not asked for, or not all of them could be kept."""
        return tuple(self._kept) if self._keeps and self._is_complete else None

    def of_call(self, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """Return the arguments of a call in the run and its number, while a graph is traced or eagerly."""
        import tensorflow as tf

        if not self._keeps and self._feed is None:
            return args, kwargs, None
        number = None
        items = tf.nest.flatten((args, kwargs))
        tensors = [tensor for item in items for tensor in _tensors_of(item)]
        if self._feed is not None:
            number, tensors = self._fed(tensors)
            rest = list(tensors)
            items = [_rebuilt(item, [rest.pop(0) for _ in _tensors_of(item)]) for item in items]
            args, kwargs = tf.nest.pack_sequence_as((args, kwargs), items)
        if self._keeps:
            kept = tf.numpy_function(self._keep, [tf.stop_gradient(tensor) for tensor in tensors], tf.int64)
            number = kept if number is None else number
        return args, kwargs, number

    def _keep(self, *arrays: Any) -> Any:
        with self._lock:
            number, self._seen = self._seen, self._seen + 1
            self._bytes += sum(np.asarray(array).nbytes for array in arrays)
            if self._bytes > LARGEST:
                self._is_complete, self._kept = False, []
            if self._is_complete:
                self._kept.append(tuple(np.array(array) for array in arrays))
        return np.int64(number)

    def _fed(self, tensors: Sequence[Any]) -> tuple[Any, list[Any]]:
        import tensorflow as tf

        expected = [(tensor.dtype.as_numpy_dtype, tensor.shape) for tensor in tensors]

        def now() -> list[Any]:
            with self._lock:
                number, self._given = self._given, self._given + 1
            assert self._feed is not None
            if number >= len(self._feed):
                raise OtherCallsError(f"there are more than {len(self._feed)} calls of replica functions")
            arrays = self._feed[number]
            fits = len(arrays) == len(expected) and all(
                _fits(array, *one) for array, one in zip(arrays, expected, strict=True)
            )
            if not fits:
                raise OtherCallsError(f"call {number + 1} has tensors of other shapes or types")
            return [np.int64(number), *arrays]

        # A call without tensors also has a place among the calls of the other run.
        place, *values = tf.numpy_function(now, [], [tf.int64, *(tensor.dtype for tensor in tensors)], stateful=True)
        for replaced, tensor in zip(values, tensors, strict=True):
            replaced.set_shape(tensor.shape)
        return place, values


def _tensors_of(item: Any) -> list[Any]:
    """Return the tensors with at least one dimension that an argument consists of."""
    import tensorflow as tf

    parts = [item]
    if isinstance(item, tf.SparseTensor | tf.RaggedTensor):
        parts = tf.nest.flatten(item, expand_composites=True)
    return [part for part in parts if isinstance(part, tf.Tensor) and _is_data(part)]


def _is_data(tensor: Any) -> bool:
    import tensorflow as tf

    return tensor.dtype not in (tf.resource, tf.variant) and tensor.shape.rank != 0


def _rebuilt(item: Any, tensors: Sequence[Any]) -> Any:
    import tensorflow as tf

    if not tensors:
        return item
    if isinstance(item, tf.SparseTensor | tf.RaggedTensor):
        rest = list(tensors)
        parts = [rest.pop(0) if _is_data(part) else part for part in tf.nest.flatten(item, expand_composites=True)]
        return tf.nest.pack_sequence_as(item, parts, expand_composites=True)
    return tensors[0]


def _fits(array: Array, dtype: Any, shape: Any) -> bool:
    same = array.dtype == np.dtype(dtype) or array.dtype.kind in "OSU"
    return same and bool(shape.is_compatible_with(array.shape))
