"""Find the tensors of a program that are parts of an element of an iterator.

A program passes more to ``strategy.run`` than its batch: masks, weights of classes, a learning rate, outputs of a
teacher. Only the parts of an element are examples for certain.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_ddl.step_records import BatchOrigin
from pytest_ddl.training import adapter

_MOST_ANCESTORS = 5000
"""Maximum number of operations to search for the element that a tensor was computed from."""
_MOVING = {
    "Cast": 0,
    "ExpandDims": 0,
    "GatherNd": 0,
    "GatherV2": 0,
    "Identity": 0,
    "Reshape": 0,
    "ReverseV2": 0,
    "Roll": 0,
    "Slice": 0,
    "Split": 1,
    "SplitV": 0,
    "Squeeze": 0,
    "StridedSlice": 0,
    "Transpose": 0,
    "Unpack": 0,
}
"""Operations that give pieces of a tensor as they are -> which of their inputs it is; the others say which pieces."""


@dataclass(frozen=True)
class ElementSource:
    """Tensors that represent an argument, and tensors of the same graph that it was computed from."""

    tensors: Sequence[Any]
    computed_from: Sequence[Any]
    piece_of: Sequence[Any] = ()
    """Tensors of the same graph of which each of ``tensors`` is a piece; empty if one was computed otherwise."""


class Elements:
    """Collection of the tensors of all elements that iterators of the program have given so far.

    An element that is passed to a ``tf.function`` arrives there as placeholders. Their origin is known only when
    the function is called, which is after it was traced. So :meth:`origin` is asked in each execution.
    """

    def __init__(self) -> None:
        self._given: dict[int, weakref.ref[Any]] = {}
        self._passed: dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}
        """Id of a placeholder -> the placeholder, and the tensor that the last call of its function passed to it."""

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Collect the elements that the program takes while the context is open."""
        with ExitStack() as stack:
            stack.enter_context(adapter.given_elements(self.add))
            stack.enter_context(adapter.passed_tensors(self._passing))
            yield

    def add(self, element: Any) -> None:
        """Add the tensors of an element, of all replicas."""
        for tensor in tensors_of(element):
            self._given[id(tensor)] = weakref.ref(tensor, self._forget(id(tensor)))

    def source(self, item: Any) -> ElementSource:
        """Return what :meth:`origin` needs to know of a tensor; call it while the graph of the tensor is traced."""
        own = tensors_of(item)
        direct = any(self._is_given(tensor) for tensor in own)
        ancestors = [] if direct else _ancestors_of(own)
        computed = [it for it in ancestors if self._is_given(it) or _is_input(it)]
        drawn = any("Random" in it.op.type for it in ancestors)
        return ElementSource(own, computed, () if direct or drawn else self._pieces(own))

    def origin(self, source: ElementSource) -> BatchOrigin:
        """Return how a tensor is related to an element, in the execution that runs now."""
        if any(map(self._is_given, source.tensors)):
            return BatchOrigin.ELEMENT
        if source.piece_of and all(map(self._is_given, source.piece_of)):
            return BatchOrigin.SELECTED
        if any(map(self._is_given, source.computed_from)):
            return BatchOrigin.DERIVED
        return BatchOrigin.ARGUMENT

    def _pieces(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the tensors of which the given ones are pieces, back to elements or inputs; empty if one is none."""
        pieces = []
        for tensor in tensors:
            while not (self._is_given(tensor) or hasattr(tensor, "numpy") or _is_input(tensor)):
                if tensor.op.type not in _MOVING:
                    return []
                tensor = tensor.op.inputs[_MOVING[tensor.op.type]]
            pieces.append(tensor)
        return pieces

    def _is_given(self, tensor: Any) -> bool:
        for _ in range(100):  # functions within functions
            known = self._given.get(id(tensor))
            if known is not None and known() is tensor:
                return True
            link = self._passed.get(id(tensor))
            if link is None or link[0]() is not tensor:
                return False
            tensor = link[1]()
        return False

    def _passing(self, inputs: Sequence[Any], arguments: Sequence[Any]) -> None:
        """Remember which tensors a call passes to the inputs of a function."""
        for placeholder, argument in zip(inputs, arguments, strict=False):
            if id(argument) in self._given or id(argument) in self._passed or _is_input(argument):
                self._passed[id(placeholder)] = weakref.ref(placeholder), weakref.ref(argument)
            else:
                self._passed.pop(id(placeholder), None)

    def _forget(self, key: int) -> Any:
        """Return a callback that removes a tensor that is gone: Python may use its id again."""

        def gone(reference: Any) -> None:
            if self._given.get(key) is reference:
                del self._given[key]

        return gone


def tensors_of(structure: Any) -> list[Any]:
    """Return the tensors in a structure, also those of composite tensors and of the values of all replicas."""
    import tensorflow as tf

    tensors = tf.nest.flatten(structure, expand_composites=True)
    return [item for item in tensors if isinstance(item, tf.Tensor)]


def _is_input(tensor: Any) -> bool:
    """Return True for an input of a function that is being traced."""
    return not hasattr(tensor, "numpy") and tensor.op.type == "Placeholder"


def _ancestors_of(tensors: Sequence[Any]) -> list[Any]:
    """Return what tensors were computed from, as far as it is in the same graph."""
    waiting = [tensor for tensor in tensors if not hasattr(tensor, "numpy")]
    seen: dict[int, Any] = {}
    while waiting and len(seen) < _MOST_ANCESTORS:
        for tensor in waiting.pop().op.inputs:
            if id(tensor) not in seen:
                seen[id(tensor)] = tensor
                waiting.append(tensor)
    return list(seen.values())
