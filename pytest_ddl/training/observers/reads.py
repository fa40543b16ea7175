"""Record what concurrent calls of replica functions read from variables, or give them what those of another run read.

A gradient belongs to the weights that its call has read. Other calls may change the weights at any time, also between
two reads. So each read is recorded by itself. Scalars that a call gets are recorded too: they identify the scheduled
closure. So are the values that a call itself assigns to weights, without an optimizer.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pytest_ddl.notes import NoteKind
from pytest_ddl.records import Array, VariableKind
from pytest_ddl.run_facts import ReadsOfCall, RunFacts
from pytest_ddl.training import adapter, current_call
from pytest_ddl.training.callback_ops import add_callback
from pytest_ddl.training.consumption import LARGEST
from pytest_ddl.training.coordinator import uses_coordinator
from pytest_ddl.training.elements import tensors_of
from pytest_ddl.training.gradient_calls import GradientSource, keys_of, source_of, subclasses
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.replacing import Replacements

_METHODS = ("value", "read_value", "sparse_read", "gather_nd")
_ASSIGNING = ("assign", "assign_add", "assign_sub")
_IN_BRANCH = 1_000_000
"""Place of a read in a branch or loop. It may run several times, in any order."""
_OWNER = "BaseResourceVariable"
"""Class that reads. All variables of TensorFlow that hold a value by themselves have these methods of it."""
_PLAIN = "ResourceVariable"
"""Subclass with assignments of its own, which do not call those of the owner."""


class Reads(Observer):
    """Observer of all reads in calls of replica functions. An optimizer's own reads are left out."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        settings = self.settings
        concurrent = uses_coordinator(self.context.strategy) and not settings.one_by_one
        self._is_on = concurrent or (settings.keep_calls and settings.is_reference)
        self._lock = threading.Lock()
        self._reads: list[tuple[int, GradientSource, int, Array]] = []
        """Number of the call, variable, number of earlier reads of it in the call, and the value."""
        self._assigned: list[tuple[int, GradientSource, int, Array]] = []
        """Number of the call, variable, number of earlier assignments in the call, and what is assigned or added."""
        self._scalars: dict[int, tuple[float, ...]] = {}
        self._takes_more = False
        self._hidden: list[GradientSource] = []
        """Variables that are read where the number of the call is not known."""
        self._repeated: list[GradientSource] = []
        """Variables that are read in branches or loops."""
        self._bytes = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        import tensorflow as tf

        with Replacements() as replaced:
            if self._is_on:
                owner = next(owner for owner in subclasses(tf.Variable) if owner.__name__ == _OWNER)
                for name in _METHODS:
                    replaced.put(owner, name, self._watching(vars(owner)[name]))
                for one in (owner, *(other for other in subclasses(owner) if other.__name__ == _PLAIN)):
                    for name in (name for name in _ASSIGNING if name in vars(one)):
                        replaced.put(one, name, self._assigning(vars(one)[name]))
            yield

    def before_replica(self, given: Any) -> Any:
        """Record the scalars of a call, also those that it takes from the function that calls it.

        Return the graph of the call, the number of its operations, and the tensors whose values are recorded.
        """
        import tensorflow as tf

        call = current_call.number() if self._is_on else None
        if call is None:
            return None
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        items = [*tf.nest.flatten(given), *getattr(graph, "inputs", ())]
        scalars = {id(item): item for item in items if isinstance(item, tf.Tensor) and _is_number(item)}
        known = {id(item) for item in (call, *scalars.values(), *tensors_of(given))}

        def record(_replica: Any, number: Any, *values: Any) -> None:
            with self._lock:
                self._scalars[int(number)] = tuple(map(float, values))

        add_callback(record, [call, *scalars.values()])
        return None if graph is None else (graph, len(graph.get_operations()), known)

    def after_replica(self, token: Any, result: Any) -> None:
        """Find out whether the call computes from tensors that are neither its arguments nor constants."""
        import tensorflow as tf

        if token is None:
            return
        graph, before, known = token
        own = graph.get_operations()[before:]
        names = {operation.name for operation in own}
        for operation in own:
            self._takes_more = self._takes_more or operation.type.startswith("IteratorGetNext")
            for item in operation.inputs:
                is_outside = item.op.name not in names and item.dtype not in (tf.resource, tf.variant)
                if is_outside and id(item) not in known and item.op.type != "Const":
                    self._takes_more = True

    def _watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import tensorflow as tf

        feed = self.settings.feed

        def read(variable: Any, *args: Any, **kwargs: Any) -> Any:
            value = original(variable, *args, **kwargs)
            if current_call.in_optimizer() or adapter.within_xla():
                return value
            call, source = current_call.number(), source_of(variable)
            if call is None:
                if current_call.is_unknown():
                    self._hidden.append(source)
                return value
            in_branch = current_call.in_branch()
            place = _IN_BRANCH if in_branch else current_call.position_of_read(source.keys[-1])
            if in_branch:
                self._repeated.append(source)
            self._record(self._reads, call, source, place, value)
            return value if feed is None or feed.reads is None else self._given(feed.reads, call, source, place, value)

        return functools.wraps(original)(tf.autograph.experimental.do_not_convert(read))

    def _assigning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import tensorflow as tf

        def assign(variable: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
            call = None if current_call.in_optimizer() or adapter.within_xla() else current_call.number()
            if call is not None:
                given = tf.convert_to_tensor(given, variable.dtype)
                self._record(self._assigned, call, source_of(variable), current_call.position_of_read(0), given)
            return original(variable, given, *args, **kwargs)

        return functools.wraps(original)(tf.autograph.experimental.do_not_convert(assign))

    def _record(
        self,
        records: list[tuple[int, GradientSource, int, Array]],
        call: Any,
        source: GradientSource,
        place: int,
        value: Any,
    ) -> None:
        def record(_replica: Any, number: Any, array: Any) -> None:
            with self._lock:
                self._bytes += np.asarray(array).nbytes
                if self._bytes <= 8 * LARGEST:
                    records.append((int(number), source, place, np.array(array)))
                else:
                    self.recorder.note(NoteKind.GRADIENTS, "what later closures read is not recorded: it is too large")

        add_callback(record, [call, value])

    def _given(self, reads: Sequence[ReadsOfCall], call: Any, source: GradientSource, place: int, value: Any) -> Any:
        """Return the value that another run has read in place of this one, with the same gradient."""
        import tensorflow as tf

        def now(number: Any, own: Array) -> Array:
            values = reads[number].get(self._key(source), ()) if number < len(reads) else ()
            value = values[place] if place < len(values) else values[-1] if values and place == _IN_BRANCH else own
            return value if value.shape == own.shape and value.dtype == own.dtype else own

        fed = tf.numpy_function(now, [call, tf.stop_gradient(value)], value.dtype, stateful=True)
        fed.set_shape(value.shape)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def replaced(_value: Any) -> Any:
            return tf.identity(fed), lambda upstream: upstream

        return replaced(value)

    def _key(self, source: GradientSource) -> int | str:
        """Return the index of a weight that is trained, or the name of another variable."""
        for item in self.recorder.watched:
            is_weight = item.record.kind is VariableKind.TRAINABLE
            if is_weight and source.keys[-1] in keys_of(self.context.strategy, item.variable):
                return item.record.index
        return str(getattr(source.variable, "name", "a variable"))

    def end_run(self) -> Mapping[str, Any]:
        with self._lock:
            reads, assigned = (sorted(of, key=lambda one: (one[0], one[2])) for of in (self._reads, self._assigned))
        if not self._scalars or not (self.recorder.asynchronous or self.settings.keep_calls):
            return {}
        hidden, repeated = (tuple(map(self._key, of)) for of in (self._hidden, self._repeated))
        facts: RunFacts = {
            "reads": self._by_call(reads),
            "assigned": self._by_call(assigned),
            "scalars": tuple(self._scalars[at] for at in range(len(self._scalars))),
            "hidden": hidden,
            "repeated": repeated,
            "takes_more": self._takes_more,
        }
        return {"facts": facts}

    def _by_call(self, given: Sequence[tuple[int, GradientSource, int, Array]]) -> tuple[ReadsOfCall, ...]:
        calls: list[dict[int | str, tuple[Array, ...]]] = [{} for _ in self._scalars]
        keys = {source.keys[-1]: self._key(source) for _call, source, _place, _array in given}
        for call, source, _place, array in given:
            key = keys[source.keys[-1]]
            calls[call][key] = (*calls[call].get(key, ()), array)
        return tuple(calls)


def _is_number(tensor: Any) -> bool:
    return tensor.shape.rank == 0 and bool(tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool)
