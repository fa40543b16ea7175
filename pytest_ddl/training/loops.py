"""Count the passes of a graph's loop without running the graph. Compute only its whole numbers, for each pass."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MOST = 10_000
"""Maximum number of passes to follow; the length of a longer loop counts as unknown."""

Number = int | None
"""A whole number or a truth value (0, 1); ``None`` if it is not known before the graph runs."""

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
    """Return the number of passes of a ``While``, or ``None`` if it is not known.

    If the loop may also end early, the number is the maximum.

    :param node: the ``NodeDef`` of the ``While``.
    :param nodes: the nodes of the graph or function that contains it, by name.
    :param functions: the ``FunctionDef`` of each function of the graph's library.
    """
    library = _Library(functions)
    ends, body = (library[node.attr[name].func.name] for name in ("cond", "body"))
    outside = _Scope(library, nodes, {})
    state = [outside.number(name) for name in data_inputs(node)]
    for taken in range(MOST):
        if ends(state)[0] == 0:
            return taken
        after = body(state)
        if after == state:  # no known number changes, so an unknown one ends the loop
            return None
        state = after
    return None


class _Library(dict[str, "_Function"]):
    """Functions of a graph by name; each is read at its first use."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        super().__init__()
        self._definitions = definitions

    def __missing__(self, name: str) -> _Function:
        self[name] = _Function(self, self._definitions[name])
        return self[name]


class _Function:
    """A function of the library, evaluated on whole numbers."""

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
    """Values of the nodes of one graph or function, for given inputs."""

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
        """Return the value of a tensor: ``node`` or ``node:0`` as in graphs, ``node:output:0`` as in functions."""
        name, _, output = name.partition(":")
        if name in self._known:
            return self._known[name]
        if output.rpartition(":")[2] not in ("", "0"):  # only first outputs are followed
            return None
        self._known[name] = None  # ends the recursion in a graph with a cycle
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
        given = [self.number(name) for name in data_inputs(node)]
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
        """Return the first output of a branch. AutoGraph writes ``and`` and the check of a ``break`` as branches."""
        taken, *given = (self.number(name) for name in data_inputs(node))
        if taken is None:
            return None
        branch = self._library[node.attr["then_branch" if taken else "else_branch"].func.name]
        return next(iter(branch(given)), None)


def data_inputs(node: Any) -> list[str]:
    """Return the names of the tensors that a node takes, without its control inputs."""
    return [name for name in node.input if not name.startswith("^")]


def _is_whole(node: Any) -> bool:
    """Return True if all types that a node declares are integers or booleans."""
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
