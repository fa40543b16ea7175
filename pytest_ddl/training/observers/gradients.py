"""Gradients on their way from the tape to the optimizer, per replica, and planted ones that are not finite.

``tf.GradientTape.gradient`` and the ``apply`` methods of the optimizers' classes are replaced for the time of a
run. What they are given and give back goes on untouched; a copy leaves by one ``tf.numpy_function`` per call.
Gradients that reach the optimizer as the tape gave them leave once and are recorded in both stages.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_ddl.records import Array, GradientRecord, GradientStage
from pytest_ddl.training import adapter, observing, values
from pytest_ddl.training.observation import LARGEST
from pytest_ddl.training.observers.base import Observer

LARGEST_RUN = 8 * LARGEST
"""Bytes of all gradients of a run beyond which no more are recorded: they travel to the controller."""
_METHODS = ("apply", "apply_gradients")


@dataclass(frozen=True)
class _Source:
    """A variable that a gradient belongs to, as the program named it; found among the watched ones later."""

    variable: Any
    handle: Any

    @property
    def keys(self) -> tuple[int, ...]:
        return (id(self.variable), *([] if self.handle is None else [id(self.handle)]))


@dataclass(frozen=True)
class _Part:
    """One gradient of a call: which arrays it is passed as, 0 for ``None``, 2 for ``tf.IndexedSlices``."""

    source: _Source
    arrays: int
    shape: tuple[int, ...]


@dataclass
class _Site:
    """One call of the program as it was traced; tells its gradients each time that it is executed."""

    number: int
    stage: GradientStage
    parts: tuple[_Part, ...]
    follows: list[tuple[_Site, tuple[int | None, ...]]] = field(default_factory=list)
    """Calls that hand on gradients of this one: for each of their parts, the position of the part here."""


@dataclass(frozen=True)
class _Event:
    site: _Site
    replica: int
    arrays: tuple[Array | None, ...]


class Gradients(Observer):
    """Fills :attr:`~pytest_ddl.records.StepRecord.gradients`."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._events: list[_Event] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._origin: dict[int, tuple[Any, _Site, int]] = {}
        """id of a gradient -> the gradient (kept alive), the call that gave it, and its position there."""
        self._patched: dict[tuple[type, str], Any] = {}
        self._applying = threading.local()
        self._wrapped: set[int] = set()
        """Optimizers inside another one: what they are handed is not the program's doing."""
        self._index: dict[int, int] = {}
        self._indexed = -1
        self._bytes = 0

    # -- what is replaced ---------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        import tensorflow as tf

        original = tf.GradientTape.gradient
        # Allowlisted for AutoGraph as the original is: by the module in its name.
        tf.GradientTape.gradient = functools.wraps(original)(self._watching_tape(original))
        self._patch_optimizers()
        try:
            yield
        finally:
            tf.GradientTape.gradient = original
            for (owner, name), method in self._patched.items():
                setattr(owner, name, method)
            self._patched.clear()

    def before_replica(self) -> None:
        self._patch_optimizers()  # the program may have imported tf_keras, or made a class, by now

    def _watching_tape(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tape, target, sources, *args, **kwargs)
            return self._safely(self._computed, result, sources, result)

        return gradient

    def _patch_optimizers(self) -> None:
        for root in _optimizer_roots():
            for owner in (*root.__mro__[:-1], *_subclasses(root)):
                for name in _METHODS:
                    method = vars(owner).get(name)
                    if inspect.isfunction(method) and (owner, name) not in self._patched:
                        self._patched[owner, name] = method
                        setattr(owner, name, self._watching_optimizer(method, name))

    def _watching_optimizer(self, original: Any, name: str) -> Callable[..., Any]:
        import tensorflow as tf

        unconverted = tf.autograph.experimental.do_not_convert
        enter, leave = unconverted(self._enter), unconverted(self._leave)

        def applying(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = enter(optimizer, name, args, kwargs)
            result = original(optimizer, *args, **kwargs)
            leave()
            return result

        # Not functools.wraps: AutoGraph would convert the source of what ``__wrapped__`` names.
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(applying, attribute, getattr(original, attribute))
        applying.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return applying

    def _enter(self, optimizer: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        depth = getattr(self._applying, "depth", 0)
        self._applying.depth = depth + 1
        if depth or id(optimizer) in self._wrapped:
            return args, kwargs
        inner = getattr(optimizer, "inner_optimizer", None)
        if inner is not None:
            self._wrapped.add(id(inner))
        if name == "apply_gradients":
            # Programs pass zip(...), which can be read once.
            if args:
                args = (list(args[0]), *args[1:])
            elif "grads_and_vars" in kwargs:
                kwargs = {**kwargs, "grads_and_vars": list(kwargs["grads_and_vars"])}
        self._safely(self._applied, None, optimizer, name, args, kwargs)
        return args, kwargs

    def _leave(self) -> None:
        self._applying.depth -= 1

    def _safely(self, function: Callable[..., Any], otherwise: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:  # an exception here would become one of the program's
            self.recorder.note(f"gradients could not be recorded: {type(error).__name__}: {error}")
            return otherwise

    # -- what is told -------------------------------------------------------------------------

    def _computed(self, sources: Any, result: Any) -> Any:
        import tensorflow as tf

        if not _in_replica_context():
            return result
        pairs = list(zip(tf.nest.flatten(sources), _flat(result), strict=True))
        if not any(_is_variable(source) for source, _gradient in pairs):
            return result
        if self.settings.inject:
            result = self._planted(pairs, result)
            pairs = [(source, gradient) for (source, _), gradient in zip(pairs, _flat(result), strict=True)]
        self._tell(GradientStage.COMPUTED, [pair for pair in pairs if _is_variable(pair[0])])
        return result

    def _applied(self, optimizer: Any, name: str, args: Any, kwargs: Any) -> None:
        if not _in_replica_context():
            return
        if name == "apply":
            gradients = args[0] if args else kwargs["grads"]
            given = args[1] if len(args) > 1 else kwargs.get("trainable_variables")
            pairs = list(zip(gradients, given or adapter.weights_of(optimizer), strict=False))
        else:
            pairs = list(args[0] if args else kwargs["grads_and_vars"])
        self._tell(GradientStage.APPLIED, [(variable, gradient) for gradient, variable in pairs])

    def _tell(self, stage: GradientStage, pairs: Sequence[tuple[Any, Any]]) -> None:
        parts = tuple(_part(variable, gradient) for variable, gradient in pairs)
        site = _Site(next(self._numbers), stage, parts)
        if stage is GradientStage.APPLIED and self._hand_on(site, pairs):
            return
        tensors = [tensor for _variable, gradient in pairs for tensor in _tensors(gradient)]
        if sum(_size(tensor) for tensor in tensors) > LARGEST:
            self.recorder.note("gradients of one step are too large to be recorded")
            return
        if adapter.within_xla():
            self.recorder.note("gradients inside a tf.function(jit_compile=True) are not recorded")
            return
        if stage is GradientStage.COMPUTED:
            for position, (_variable, gradient) in enumerate(pairs):
                if gradient is not None:
                    self._origin[id(gradient)] = (gradient, site, position)
        if not tensors:
            return

        def record(replica: Any, *arrays: Any) -> None:
            self._safely(self._executed, None, site, int(replica), arrays)

        observing.tell(record, tensors)

    def _hand_on(self, site: _Site, pairs: Sequence[tuple[Any, Any]]) -> bool:
        """Tie a call to the one whose very gradients it hands on; False where it has others."""
        import tensorflow as tf

        found = [None if gradient is None else self._origin.get(id(gradient)) for _variable, gradient in pairs]
        known = [entry for entry in found if entry is not None]
        present = sum(gradient is not None for _variable, gradient in pairs)
        if not known or len(known) != present or len({id(entry[1]) for entry in known}) != 1:
            return False
        origin = known[0][1]
        positions = tuple(None if entry is None else entry[2] for entry in found)
        if tf.executing_eagerly():
            with self._lock:
                event = next((event for event in reversed(self._events) if event.site is origin), None)
                if event is not None:
                    self._events.append(_follow(event, site, positions))
            return event is not None
        if known[0][0].graph is not tf.compat.v1.get_default_graph():
            return False  # handed on under a condition: its own executions count
        origin.follows.append((site, positions))
        return True

    def _executed(self, site: _Site, replica: int, arrays: Sequence[Any]) -> None:
        copies: list[Array | None] = []
        cursor = 0
        for part in site.parts:
            given = arrays[cursor : cursor + part.arrays]
            cursor += part.arrays
            copies.append(None if not given else values.copy_of(given[0]) if len(given) == 1 else _dense(part, given))
        event = _Event(site, replica, tuple(copies))
        with self._lock:
            self._bytes += sum(copy.nbytes for copy in copies if copy is not None)
            if self._bytes > LARGEST_RUN:
                self.recorder.note("gradients of the later steps are not recorded: they are too large together")
                return
            self._events.append(event)
            self._events += [_follow(event, *follower) for follower in site.follows]

    # -- what is planted ----------------------------------------------------------------------

    def _planted(self, pairs: Sequence[tuple[Any, Any]], result: Any) -> Any:
        """The gradients, with those that ``settings.inject`` names overwritten in the steps that it names."""
        import tensorflow as tf

        sources = [_source(source) if _is_variable(source) else None for source, _gradient in pairs]

        def chosen(replica: Any) -> Any:
            return np.array(self._safely(self._to_plant, [0.0] * len(pairs), int(replica), sources), np.float64)

        replica = tf.cast(observing.replica_id(), tf.int32)
        planted = tf.numpy_function(chosen, [replica], tf.float64)
        planted.set_shape([len(pairs)])
        flat = [
            _overwritten(gradient, planted[position]) if source is not None else gradient
            for position, (source, (_variable, gradient)) in enumerate(zip(sources, pairs, strict=True))
        ]
        return tf.nest.pack_sequence_as(result, flat) if isinstance(result, list | tuple | dict) else flat[0]

    def _to_plant(self, replica: int, sources: Sequence[_Source | None]) -> list[float]:
        """For each source what its gradient is overwritten with in this step; 0 for nothing."""
        step = self.recorder.completed + 1
        chosen = {
            injection.variable: injection.value
            for injection in self.settings.inject
            if injection.step == step and (injection.replica in (None, replica) or self.settings.is_reference)
        }
        indices = [None if source is None else self._index_of(source) for source in sources]
        return [0.0 if index is None else chosen.get(index, 0.0) for index in indices]

    # -- what is recorded ---------------------------------------------------------------------

    def end_step(self) -> Mapping[str, Any]:
        with self._lock:
            events, self._events = self._events, []
        self._applying.depth = 0
        for key in [key for key, (tensor, _s, _p) in self._origin.items() if not hasattr(tensor, "graph")]:
            del self._origin[key]
        return {"gradients": self._safely(self._records, (), events)}

    def discard(self) -> None:
        self.end_step()

    def _records(self, events: Sequence[_Event]) -> tuple[GradientRecord, ...]:
        found = []
        calls: dict[tuple[int, GradientStage], int] = {}
        for event in sorted(events, key=lambda event: (event.replica, event.site.number)):
            key = event.replica, event.site.stage
            arrays, sparse = {}, set()
            for part, array in zip(event.site.parts, event.arrays, strict=True):
                index = self._index_of(part.source)
                if index is None:
                    continue
                arrays[index] = array
                if part.arrays > 1:
                    sparse.add(index)
            if arrays:
                calls[key] = calls.get(key, -1) + 1
                found.append(GradientRecord(*key, calls[key], arrays, frozenset(sparse)))
        return tuple(found)

    def _index_of(self, source: _Source) -> int | None:
        watched = self.recorder.watched
        if len(watched) != self._indexed:
            index: dict[int, int] = {}
            for item in watched:
                for key in _keys(self.context.strategy, item.variable):
                    index.setdefault(key, item.record.index)
            self._index, self._indexed = index, len(watched)
        return next((self._index[key] for key in source.keys if key in self._index), None)


def _optimizer_roots() -> Iterator[type]:
    """The base classes of the optimizers that are loaded."""
    import tensorflow as tf

    yield tf.compat.v1.train.Optimizer
    for name in ("keras", "tf_keras"):
        module = getattr(sys.modules.get(name), "optimizers", None)
        for owner in (module, getattr(module, "legacy", None)):
            root = getattr(owner, "Optimizer", None)
            if isinstance(root, type):
                yield root


def _subclasses(root: type) -> Iterator[type]:
    children: list[type] = root.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)


def _in_replica_context() -> bool:
    import tensorflow as tf

    return tf.distribute.get_replica_context() is not None


def _is_variable(item: Any) -> bool:
    return hasattr(item, "assign") and hasattr(item, "shape")


def _flat(result: Any) -> list[Any]:
    import tensorflow as tf

    return list(tf.nest.flatten(result))


def _source(variable: Any) -> _Source:
    actual = values.backing(variable)
    return _Source(actual, _handle(actual))


def _handle(variable: Any) -> Any:
    """What all wrappers of one replica's component share; ``None`` for a variable that has none."""
    try:
        return variable.handle
    except (AttributeError, ValueError):
        return None


def _keys(strategy: Any, variable: Any) -> list[int]:
    if variable is None:
        return []
    found = [id(variable)]
    for part in strategy.experimental_local_results(variable):
        found += [id(part), *([] if (handle := _handle(part)) is None else [id(handle)])]
    return found


def _part(variable: Any, gradient: Any) -> _Part:
    return _Part(_source(variable), len(_tensors(gradient)), tuple(int(size) for size in variable.shape))


def _tensors(gradient: Any) -> list[Any]:
    """The tensors as which a gradient is told."""
    if gradient is None:
        return []
    if hasattr(gradient, "indices") and hasattr(gradient, "values"):
        return [gradient.values, gradient.indices]
    return [gradient]


def _size(tensor: Any) -> int:
    """Bytes of a tensor, 0 where the shape is not known while tracing."""
    elements = tensor.shape.num_elements() if tensor.shape.rank is not None else None
    return int((elements or 0) * tensor.dtype.size)


def _dense(part: _Part, given: Sequence[Any]) -> Array:
    rows = values.copy_of(given[0])
    dense = np.zeros(part.shape, rows.dtype)
    np.add.at(dense, given[1], rows)
    return dense


def _follow(event: _Event, site: _Site, positions: tuple[int | None, ...]) -> _Event:
    arrays = tuple(None if position is None else event.arrays[position] for position in positions)
    return _Event(site, event.replica, arrays)


def _overwritten(gradient: Any, planted: Any) -> Any:
    """The gradient itself while ``planted`` is 0; else all of it that value."""
    import tensorflow as tf

    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_overwritten(gradient.values, planted), gradient.indices, gradient.dense_shape)
    return tf.where(tf.equal(planted, 0.0), gradient, tf.cast(planted, gradient.dtype))
