"""How often a loop of a graph runs, told without running it: its whole numbers are followed from pass to pass."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MOST = 10_000
"""Passes that are followed; a loop of more is one of unknown length."""

Number = int | None
"""A whole number or a truth value (0, 1), ``None`` where it is not known before the graph runs."""

_OF_TWO: Mapping[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "AddV2": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Maximum": max,
    "Minimum": min,
    "Less": operator.lt,
    "LessEqual": operator.le,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}


def passes_of(node: Any, nodes: Mapping[str, Any], functions: Mapping[str, Any]) -> int | None:
    """Passes that a ``While`` takes, at most, where it may also end early; ``None`` where that is not known.

    :param node: its ``NodeDef``.
    :param nodes: those of the graph or function that it is part of, by name.
    :param functions: the ``FunctionDef`` of each function of the graph's library.
    """
    library = _Library(functions)
    ends, body = (library[node.attr[name].func.name] for name in ("cond", "body"))
    outside = _Scope(library, nodes, {})
    state = [outside.number(name) for name in _data(node)]
    for taken in range(MOST):
        if ends(state)[0] == 0:
            return taken
        after = body(state)
        if after == state:  # of what is known nothing changes: it is something else that ends the loop
            return None
        state = after
    return None


class _Library(dict[str, "_Function"]):
    """Functions of a graph by name, each read when it is asked for."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        super().__init__()
        self._definitions = definitions

    def __missing__(self, name: str) -> _Function:
        self[name] = _Function(self, self._definitions[name])
        return self[name]


class _Function:
    """A function of the library, of its whole numbers."""

    def __init__(self, library: _Library, definition: Any) -> None:
        self._library = library
        self._nodes = {node.name: node for node in definition.node_def}
        self._inputs = [argument.name for argument in definition.signature.input_arg]
        self._outputs = [definition.ret[argument.name] for argument in definition.signature.output_arg]
        self._constants: dict[str, Number] = {}

    def __call__(self, given: Sequence[Number]) -> list[Number]:
        scope = _Scope(self._library, self._nodes, dict(zip(self._inputs, given, strict=True)), self._constants)
        return [scope.number(name) for name in self._outputs]


class _Scope:
    """Values of the nodes of one graph, given what it is called with."""

    def __init__(
        self,
        library: _Library,
        nodes: Mapping[str, Any],
        known: dict[str, Number],
        constants: dict[str, Number] | None = None,
    ) -> None:
        self._library, self._nodes, self._known = library, nodes, known
        self._constants: dict[str, Number] = {} if constants is None else constants

    def number(self, name: str) -> Number:
        """Of a tensor, ``node``, ``node:0`` as graphs have it or ``node:output:0`` as functions do."""
        name, _, output = name.partition(":")
        if name in self._known:
            return self._known[name]
        if output.rpartition(":")[2] not in ("", "0"):  # what is followed has one output, or the first says it
            return None
        self._known[name] = None  # a graph with a cycle ends here
        node = self._nodes.get(name)
        if node is not None:
            self._known[name] = self._of(node)
        return self._known[name]

    def _of(self, node: Any) -> Number:
        if node.op == "Const":
            if node.name not in self._constants:
                self._constants[node.name] = _constant(node)
            return self._constants[node.name]
        if node.op in ("If", "StatelessIf"):
            return self._branch(node)
        if not _is_whole(node):
            return None
        given = [self.number(name) for name in _data(node)]
        if node.op == "LogicalAnd":
            return 0 if 0 in given else None if None in given else 1
        if node.op == "LogicalOr":
            return 1 if any(given) else None if None in given else 0
        if None in given or not given:
            return None
        if node.op in ("Identity", "Cast"):
            return given[0]
        if node.op == "LogicalNot":
            return int(not given[0])
        if node.op in _OF_TWO:
            try:
                return int(_OF_TWO[node.op](*given))  # type: ignore[arg-type]
            except ZeroDivisionError:
                return None
        return None

    def _branch(self, node: Any) -> Number:
        """AutoGraph makes ``and``, and the end of a loop with a ``break``, a branch with one output."""
        taken, *given = (self.number(name) for name in _data(node))
        if taken is None:
            return None
        branch = self._library[node.attr["then_branch" if taken else "else_branch"].func.name]
        return next(iter(branch(given)), None)


def _data(node: Any) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def _is_whole(node: Any) -> bool:
    """Whether a node gives or takes whole numbers or truth values, as far as it says."""
    import tensorflow as tf

    types = [node.attr[name].type for name in ("T", "SrcT", "DstT") if name in node.attr]
    return all(kind and (tf.as_dtype(kind).is_integer or tf.as_dtype(kind).is_bool) for kind in types)


def _constant(node: Any) -> Number:
    import tensorflow as tf

    tensor = node.attr["value"].tensor
    kind = tf.as_dtype(tensor.dtype)
    if tensor.tensor_shape.dim or not (kind.is_integer or kind.is_bool):
        return None
    return int(tf.make_ndarray(tensor))
