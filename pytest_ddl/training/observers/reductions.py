"""Record inputs and results of the reductions that the program itself requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from pytest_ddl.notes import NoteKind
from pytest_ddl.records import CollectiveRecord, ReductionRecord
from pytest_ddl.training import adapter, frames
from pytest_ddl.training.lines import ALL_REDUCE, GATHER, REDUCE
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.observers.collectives import dtype_of, shape_of
from pytest_ddl.training.observers.gradients import GradientObserver
from pytest_ddl.training.observers.graphs import GraphObserver
from pytest_ddl.training.replacing import Replacements

LARGEST = 2**16
"""Maximum number of elements of a tensor whose values are recorded."""


class ReductionObserver(Observer):
    """Observer that fills ``StepRecord.reductions`` and ``GraphRecord.asked``; it skips reductions of frameworks."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        import tensorflow as tf

        self._lock = threading.Lock()
        self._records: dict[int, list[ReductionRecord]] = {}
        strategy, extended = self.context.strategy, self.context.strategy.extended
        with ExitStack() as stack:
            for owner, name, watch in (
                (tf.distribute.ReplicaContext, "all_reduce", self._all_reduced),
                (tf.distribute.ReplicaContext, "all_gather", self._gathered),
                (strategy, "reduce", self._reduced),
                (strategy, "gather", self._gathered),
                (extended, "reduce_to", self._reduced),
                (extended, "batch_reduce_to", self._batch_reduced),
            ):
                if hasattr(owner, name):
                    stack.enter_context(_watched(owner, name, self._cautious(watch)))
            yield

    def _cautious(self, watch: Callable[..., None]) -> Callable[..., None]:
        def cautious(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
            try:
                where = frames.called_by_program()
                if where:
                    watch(where, args, kwargs, result)
            except Exception as error:  # an exception here would be raised in the program's step
                self.recorder.note(
                    NoteKind.REDUCTIONS, f"a reduction could not be observed: {type(error).__name__}: {error}"
                )

        return cautious

    # -- one method for each signature ----------------------------------------------------------

    def _all_reduced(self, where: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        import tensorflow as tf

        op, value = _argument(args, kwargs, 1, "reduce_op"), _argument(args, kwargs, 2, "value")
        given, received = tf.nest.flatten(value), tf.nest.flatten(result)
        gradients = next((item for item in self.recorder.observers if isinstance(item, GradientObserver)), None)
        if gradients is not None:
            gradients.add_reduction(ALL_REDUCE, given, where)
        self._asked("all_reduce", _name(op), given, where)
        context = tf.distribute.get_replica_context()
        self._observe(_name(op), [context.replica_id_in_sync_group], [[tensor] for tensor in given], received, where)

    def _reduced(self, where: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        op, value = _argument(args, kwargs, 0, "reduce_op"), _argument(args, kwargs, 1, "value")
        if kwargs.get("axis") is None and not (len(args) > 2 and isinstance(args[2], int)):
            self._cross_replica(_name(op), [value], [result], where)

    def _batch_reduced(self, where: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        op = _argument(args, kwargs, 0, "reduce_op")
        pairs = _argument(args, kwargs, 1, "value_destination_pairs")
        self._cross_replica(_name(op), [pair[0] for pair in pairs], list(result), where)

    def _gathered(self, where: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        import tensorflow as tf

        value = kwargs.get("value", next((item for item in args if not hasattr(item, "strategy")), None))
        parts = [self.context.strategy.experimental_local_results(item)[0] for item in tf.nest.flatten(value)]
        gradients = next((item for item in self.recorder.observers if isinstance(item, GradientObserver)), None)
        if gradients is not None:
            gradients.add_reduction(GATHER, parts, where)
        self._asked("all_gather", "", parts, where)

    def _cross_replica(self, op: str, values: Sequence[Any], results: Sequence[Any], where: str) -> None:
        self.recorder.lines.add(REDUCE, where)
        strategy = self.context.strategy
        given = [list(strategy.experimental_local_results(value)) for value in values]
        self._asked("all_reduce", op, [parts[0] for parts in given], where)
        local = max(1, self.context.num_replicas // max(1, self.context.num_ranks))
        ids = [self.context.rank * local + position for position in range(local)]
        kept = [(parts, result) for parts, result in zip(given, results, strict=True) if len(parts) == local]
        received = [strategy.experimental_local_results(result)[0] for _parts, result in kept]
        self._observe(op, ids, [parts for parts, _result in kept], received, where)

    # -- shared by these methods ------------------------------------------------------------------------

    def _asked(self, kind: str, op: str, tensors: Sequence[Any], where: str) -> None:
        graphs = next((item for item in self.recorder.observers if isinstance(item, GraphObserver)), None)
        if graphs is None or not _first_replica():
            return
        graphs.asked([CollectiveRecord(kind, op, shape_of(tensor), dtype_of(tensor), where) for tensor in tensors])

    def _observe(
        self, op: str, ids: Sequence[Any], given: Sequence[Sequence[Any]], received: Sequence[Any], where: str
    ) -> None:
        """Record one reduction for each tensor and local replica, in each execution of the graph or eagerly."""
        import tensorflow as tf

        kept = [
            (parts, result)
            for parts, result in zip(given, received, strict=True)
            if all(_small(tensor) for tensor in (*parts, result))
        ]
        if not kept:
            return

        def record(*arrays: Any) -> None:
            replicas, rest = [int(item) for item in arrays[: len(ids)]], arrays[len(ids) :]
            size = len(ids) + 1
            for start in range(0, len(rest), size):
                *parts, result = (np.array(item) for item in rest[start : start + size])
                if result.size == 1:
                    self.recorder.lines.receive(where, float(result.reshape(())))
                for replica, part in zip(replicas, parts, strict=True):
                    self._keep(replica, op, part, result)

        tensors = [*ids, *(tensor for parts, result in kept for tensor in (*parts, result))]
        if tf.executing_eagerly():
            record(*[tensor.numpy() if hasattr(tensor, "numpy") else tensor for tensor in tensors])
            return
        inputs = [tf.stop_gradient(tf.convert_to_tensor(tensor)) for tensor in tensors]
        tf.numpy_function(record, inputs, [], stateful=True)

    def _keep(self, replica: int, op: str, given: Any, received: Any) -> None:
        with self._lock:
            records = self._records.setdefault(replica, [])
            records.append(ReductionRecord(replica, len(records), op, str(given.dtype), given, received))

    def end_step(self) -> Mapping[str, Any]:
        with self._lock:
            records, self._records = self._records, {}
        return {"reductions": tuple(item for replica in sorted(records) for item in records[replica])}


@contextmanager
def _watched(owner: Any, name: str, after: Callable[..., None]) -> Iterator[None]:
    """Call ``after(args, kwargs, result)`` after each call of a method of a class or an object."""
    import tensorflow as tf

    original = getattr(owner, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        after(args, kwargs, result)
        return result

    with Replacements().put(owner, name, tf.autograph.experimental.do_not_convert(method)):
        yield


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return kwargs[name] if name in kwargs else args[position]


def _name(op: Any) -> str:
    return str(getattr(op, "value", op)).upper()


def _first_replica() -> bool:
    """Return True in the first replica of the process, and outside replicas."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context is None or adapter.is_first_local_replica(context)


def _small(tensor: Any) -> bool:
    import tensorflow as tf

    if not isinstance(tensor, tf.Tensor) or not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        return False
    count = tensor.shape.num_elements()
    return count is not None and count <= LARGEST
