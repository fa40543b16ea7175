"""Report and describe the gradient calls of a program: which gradient belongs to which variable, and its arrays.

The methods of tapes and optimizers are replaced during a run. They still receive the same arguments, and AutoGraph
converts the same functions as without the replacement.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_ddl.records import Array, GradientStage, GradientSum
from pytest_ddl.training import current_call, values
from pytest_ddl.training.replacing import Replacements, named_like


@dataclass(frozen=True)
class GradientSource:
    """Variable of a gradient, as the program passed it; it is matched with the watched variables later."""

    variable: Any
    handle: Any

    @property
    def keys(self) -> tuple[int, ...]:
        return (id(self.variable), *([] if self.handle is None else [id(self.handle)]))


@dataclass(frozen=True)
class GradientPart:
    """One gradient of a call, with the number of its arrays: 0 for ``None``, 2 for ``tf.IndexedSlices``, else 1."""

    source: GradientSource
    arrays: int
    shape: tuple[int, ...]


@dataclass
class Site:
    """One gradient call of the program as it was traced; each of its executions gives an :class:`Event`."""

    number: int
    stage: GradientStage
    parts: tuple[GradientPart, ...]
    follows: list[tuple[Site, tuple[int | None, ...]]] = field(default_factory=list)
    """Calls that pass on gradients of this call, with the position here of each of their parts."""
    summed: GradientSum = GradientSum.UNKNOWN
    function: int = 0
    """Id of the outermost function in which the call is; 0 for eager execution."""


@dataclass(frozen=True)
class Event:
    site: Site
    replica: int
    arrays: tuple[Array | None, ...]
    call: int | None = None
    """Number of the call of a replica function; see :mod:`pytest_ddl.training.current_call`."""


def source_of(variable: Any) -> GradientSource:
    actual = values.backing(variable)
    return GradientSource(actual, _handle(actual))


def _handle(variable: Any) -> Any:
    """Return the handle that all wrappers of one replica's component share, or ``None`` if there is none."""
    try:
        return variable.handle
    except (AttributeError, ValueError):
        return None


def keys_of(strategy: Any, variable: Any) -> list[int]:
    if variable is None:
        return []
    keys = [id(variable)]
    # If a partitioner split a variable over parameter servers, gradients belong to its shards.
    for part in values.components(strategy, variable):
        keys += [id(part), *([] if (handle := _handle(part)) is None else [id(handle)])]
    return keys


def part_of(variable: Any, gradient: Any) -> GradientPart:
    return GradientPart(source_of(variable), len(tensors_of(gradient)), tuple(int(size) for size in variable.shape))


def tensors_of(gradient: Any) -> list[Any]:
    """Return the tensors that represent a gradient."""
    if gradient is None:
        return []
    if hasattr(gradient, "indices") and hasattr(gradient, "values"):
        return [gradient.values, gradient.indices]
    return [gradient]


def size_of(tensor: Any) -> int:
    """Return the bytes of a tensor, or 0 if its shape is not known while tracing."""
    elements = tensor.shape.num_elements() if tensor.shape.rank is not None else None
    return int((elements or 0) * tensor.dtype.size)


def dense(part: GradientPart, given: Sequence[Any]) -> Array:
    rows = values.copy_of(given[0])
    dense = np.zeros(part.shape, rows.dtype)
    np.add.at(dense, given[1], rows)
    return dense


def follow(event: Event, site: Site, positions: tuple[int | None, ...]) -> Event:
    arrays = tuple(None if position is None else event.arrays[position] for position in positions)
    return Event(site, event.replica, arrays, event.call)


def outermost_function() -> int:
    """Return the id of the graph of the outermost ``tf.function`` that is being traced; 0 for eager execution."""
    import tensorflow as tf

    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None and getattr(outer := getattr(graph, "outer_graph", None), "building_function", False):
        graph = outer
    return id(graph) if graph is not None else 0


def in_order(events: Sequence[Event]) -> list[tuple[int, Event]]:
    """Return the events by replica and place in the program, each with the number of the function call it is from.

    Functions are called one after the other, so their events arrive in order. Those of one function may not.
    """
    calls, last = -1, None
    numbered = []
    for event in events:
        if event.site.function != last:
            calls, last = calls + 1, event.site.function
        numbered.append((calls, event))
    return sorted(numbered, key=lambda item: (item[1].replica, item[1].site.number))


_METHODS = ("apply", "apply_gradients")
_FRAMEWORKS = ("keras", "tf_keras", "tensorflow")


def sum_of(optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> GradientSum:
    """Return what an optimizer does with the gradients of the replicas.

    :param args: arguments of ``apply_gradients``. ``tf_keras`` has an argument that asks not to add them up.
    """
    for name in (*_METHODS, "aggregate_gradients"):
        owner = next((owner for owner in type(optimizer).__mro__ if name in vars(owner)), None)
        if owner is not None and owner.__module__.split(".")[0] not in _FRAMEWORKS:
            return GradientSum.UNKNOWN
    if getattr(optimizer, "inner_optimizer", None) is not None:
        return GradientSum.UNKNOWN
    skips = kwargs.get("skip_gradients_aggregation", args[2] if len(args) > 2 else False)
    adds = not skips and kwargs.get("experimental_aggregate_gradients", True)
    return GradientSum.ADDED if adds else GradientSum.TAKEN


class GradientHooks:
    """Hooks that report every gradient of a tape or graph, and every outermost ``apply`` of an optimizer."""

    def __init__(
        self,
        computed: Callable[[Any, Any, Any], Any],
        applied: Callable[[Any, str, tuple[Any, ...], dict[str, Any]], None],
        differentiated: Callable[[Any], None],
    ) -> None:
        self._computed = computed
        """Called with the target, the sources and the result; returns the result that the program gets."""
        self._applied = applied
        """Called with the optimizer, the name of its method, and the arguments."""
        self._differentiated = differentiated
        """Called with the sources of derivatives that are no gradients: a Jacobian, or those of forward mode."""
        self._replaced = Replacements()
        self._applying = threading.local()
        self._wrapped: set[int] = set()
        """Ids of optimizers inside another one. The outer optimizer calls them, not the program."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the hooks while the context is open."""
        import tensorflow as tf

        original = tf.GradientTape.gradient
        with self._replaced:
            # functools.wraps copies the module name, by which AutoGraph decides not to convert the original.
            watching = functools.wraps(original)(self._watching_tape(original))
            self._replaced.put(tf.GradientTape, "gradient", watching)
            for name in ("jacobian", "batch_jacobian"):
                rows = getattr(tf.GradientTape, name)
                self._replaced.put(tf.GradientTape, name, functools.wraps(rows)(self._watching_jacobian(rows)))
            for module in (tf, tf.compat.v1):
                given = module.gradients
                self._replaced.put(module, "gradients", functools.wraps(given)(self._watching_graph(given)))
            begin = tf.autodiff.ForwardAccumulator.__init__
            watching = functools.wraps(begin)(self._watching_forward(begin))
            self._replaced.put(tf.autodiff.ForwardAccumulator, "__init__", watching)
            self.replace_optimizers()
            yield

    def _watching_tape(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tape, target, sources, *args, **kwargs)
            return result if self._within_jacobian() else self._computed(target, sources, result)

        return gradient

    def _within_jacobian(self) -> bool:
        return bool(getattr(self._applying, "jacobians", 0))

    def _watching_jacobian(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def jacobian(tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            # It calls tape.gradient for its rows, which are no gradients of the program.
            self._applying.jacobians = getattr(self._applying, "jacobians", 0) + 1
            try:
                result = original(tape, target, *args, **kwargs)
            finally:
                self._applying.jacobians -= 1
            self._differentiated(args[0] if args else kwargs.get("sources", kwargs.get("source")))
            return result

        return jacobian

    def _watching_graph(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def gradients(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
            return self._computed(ys, xs, original(ys, xs, *args, **kwargs))

        return gradients

    def _watching_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(accumulator: Any, primals: Any, *args: Any, **kwargs: Any) -> None:
            original(accumulator, primals, *args, **kwargs)
            self._differentiated(primals)

        return begin

    def replace_optimizers(self) -> None:
        """Replace the methods of all optimizer classes that exist now; a program may define or import more later."""
        for root in _optimizer_roots():
            for owner in (*root.__mro__[:-1], *subclasses(root)):
                for name in _METHODS:
                    method = vars(owner).get(name)
                    if inspect.isfunction(method) and not self._replaced.holds(owner, name):
                        self._replaced.put(owner, name, self._watching_optimizer(method, name))

    def _watching_optimizer(self, original: Any, name: str) -> Callable[..., Any]:
        import tensorflow as tf

        unconverted = tf.autograph.experimental.do_not_convert
        enter, leave = unconverted(self._enter), unconverted(self._leave)

        def applying(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = enter(optimizer, name, args, kwargs)
            result = original(optimizer, *args, **kwargs)
            leave()
            return result

        return named_like(original, applying)

    def _enter(self, optimizer: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        depth = getattr(self._applying, "depth", 0)
        self._applying.depth = depth + 1
        if not depth:
            current_call.enter_optimizer()
        if depth or id(optimizer) in self._wrapped:
            return args, kwargs
        inner = getattr(optimizer, "inner_optimizer", None)
        if inner is not None:
            self._wrapped.add(id(inner))
        if name == "apply_gradients":
            # Programs pass zip(...), which can be read only once.
            if args:
                args = (list(args[0]), *args[1:])
            elif "grads_and_vars" in kwargs:
                kwargs = {**kwargs, "grads_and_vars": list(kwargs["grads_and_vars"])}
        self._applied(optimizer, name, args, kwargs)
        return args, kwargs

    def _leave(self) -> None:
        self._applying.depth -= 1
        if not self._applying.depth:
            current_call.leave_optimizer()

    def forget(self) -> None:
        """Reset the call depth after a step: a call that raised did not decrease it."""
        self._applying.depth = 0


def _optimizer_roots() -> Iterator[type]:
    """Yield the base class of the optimizers of each framework that is imported."""
    import tensorflow as tf

    yield tf.compat.v1.train.Optimizer
    for name in ("keras", "tf_keras"):
        module = getattr(sys.modules.get(name), "optimizers", None)
        for owner in (module, getattr(module, "legacy", None)):
            root = getattr(owner, "Optimizer", None)
            if isinstance(root, type):
                yield root


def subclasses(root: type) -> Iterator[type]:
    children: list[type] = root.__subclasses__()
    for child in children:
        yield child
        yield from subclasses(child)
