"""Follow the body of a ``tf.vectorized_map``, which is traced once for all entries.

What the body draws is one tensor for one entry. Only after the conversion, there are the numbers of all entries.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_ddl.training import adapter
from pytest_ddl.training.replacing import Replacements, named_like

_MODULE, _FUNCTION = "ops.parallel_for.control_flow_ops", "_pfor_impl"


@dataclass
class Body:
    """Body of a map that is being traced."""

    graph: Any
    index: Any
    """Index of the entry, as a scalar tensor."""
    outer: Body | None
    """Body that contains the map, if it is inside another one."""
    tensors: list[Any] = field(default_factory=list)
    """Tensors of one entry, whose values for all entries are wanted."""
    wanted: list[Callable[[list[Any]], None]] = field(default_factory=list)
    """Functions to call with some of these, stacked over the entries."""
    counts: list[int] = field(default_factory=list)
    """Number of the tensors that each of these functions takes."""

    def indices(self) -> list[Any]:
        """Return the indices of the entries of all maps around here as int64 tensors, the outermost first."""
        import tensorflow as tf

        return [*(self.outer.indices() if self.outer else ()), tf.cast(self.index, tf.int64)]

    def then(self, receive: Callable[[list[Any]], None], tensors: list[Any]) -> None:
        """Call a function with the tensors of all entries, as soon as they exist."""
        self.tensors += tensors
        self.wanted.append(receive)
        self.counts.append(len(tensors))


class Bodies:
    """Body that the current thread is tracing."""

    def __init__(self, here: Any) -> None:
        self._here = here

    def now(self) -> Body | None:
        """Return the innermost body, or ``None`` outside a map."""
        return getattr(self._here, "body", None)

    def replace(self, replaced: Replacements) -> None:
        """Replace the function that vectorizes a loop.

        ``tensorflow.python.ops.parallel_for.control_flow_ops._pfor_impl`` (TF 2.4 to 2.21): ``tf.vectorized_map`` and
        the Jacobians of ``tf.GradientTape`` call it, and no public hook sees the index of an entry.
        """
        module = adapter.module_of(_MODULE, _FUNCTION)
        if module is not None:
            replaced.put(module, _FUNCTION, named_like(getattr(module, _FUNCTION), self._watching(module)))

    def _watching(self, module: Any) -> Callable[..., Any]:
        import tensorflow as tf

        original = getattr(module, _FUNCTION)

        def watching(loop_fn: Any, iters: Any, *args: Any, **kwargs: Any) -> Any:
            # A program can reach these only by functions that are not public.
            tiled = kwargs.get("parallel_iterations") is not None
            if tiled or args or "pfor_config" in inspect.signature(loop_fn).parameters:
                return original(loop_fn, iters, *args, **kwargs)
            bodies: list[Body] = []

            def traced(index: Any) -> Any:
                with self._inside(Body(tf.compat.v1.get_default_graph(), index, self.now())) as body:
                    bodies.append(body)
                    result = loop_fn(index)
                return result, body.tensors

            result, stacked = original(named_like(loop_fn, traced), iters, *args, **kwargs)
            rest = list(stacked)
            for receive, count in zip(bodies[0].wanted, bodies[0].counts, strict=True):
                receive([rest.pop(0) for _number in range(count)])
            return result

        return watching

    @contextmanager
    def _inside(self, body: Body) -> Iterator[Body]:
        outer, self._here.body = self.now(), body
        try:
            yield body
        finally:
            self._here.body = outer
