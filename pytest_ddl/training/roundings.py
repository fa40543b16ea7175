"""Count the half precision operations on the longest path of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXACT = frozenset((
    "Abs", "BroadcastTo", "ConcatV2", "Const", "Equal", "ExpandDims", "Fill", "GatherV2", "Greater", "GreaterEqual",
    "Identity", "IdentityN", "IsFinite", "IsInf", "IsNan", "Less", "LessEqual", "MaxPool", "Maximum", "Minimum", "Neg",
    "NotEqual", "OnesLike", "Pack", "Pad", "PadV2", "Placeholder", "PreventGradient", "ReadVariableOp", "Relu",
    "ReluGrad", "Reshape", "ReverseV2", "Select", "SelectV2", "Shape", "Sign", "Slice", "Split", "SplitV", "Squeeze",
    "StopGradient", "StridedSlice", "Tile", "Transpose", "Unpack", "Where", "ZerosLike",
))  # fmt: skip
"""Operation types that do not round."""
_HALF = (19, 14)
"""``DT_HALF`` and ``DT_BFLOAT16`` of TensorFlow's ``DataType``, whose numbers never change."""
_ARGUMENTS: dict[str, tuple[str, ...]] = {}
"""Operation type -> its arguments that are functions or lists. The definition of the operation gives their types."""


def longest_chain(nodes: Any, functions: Mapping[str, Any]) -> int:
    """Count the rounding operations in half precision on the longest path from an input to an output.

    Each rounding multiplies a result by ``1 + d``. Higham and Mary give a bound for the product of k such factors. Here
    k is this count; for a sum, it is the length of the sum. A loop's body counts once, because the number of its passes
    may depend on the data.

    :param nodes: the ``NodeDef`` of a graph.
    :param functions: the ``FunctionDef`` of each function in the graph's library, by name.
    """
    if not any(map(_rounds, nodes)) and not any(any(map(_rounds, inner.node_def)) for inner in functions.values()):
        return 0  # as for most programs, whose paths need not be followed
    return _chain(nodes, functions, {})


def _chain(nodes: Any, functions: Mapping[str, Any], known: dict[str, int]) -> int:
    # TensorFlow writes a node after the nodes of its inputs. So one pass is enough; a cycle counts once.
    length: dict[str, int] = {}
    for node in nodes:
        inner = [0]
        for name in called_functions(node, functions):
            if name not in known:
                known[name] = 0  # ends the recursion of a function that calls itself
                known[name] = _chain(functions[name].node_def, functions, known)
            inner.append(known[name])
        before = max((length.get(name.lstrip("^").split(":")[0], 0) for name in node.input), default=0)
        length[node.name] = before + max(inner) + _rounds(node)
    return max(length.values(), default=0)


def _rounds(node: Any) -> bool:
    if node.op in _EXACT:
        return False
    given = node.attr
    return (given["DstT"].type or given["T"].type or given["dtype"].type) in _HALF


def called_functions(node: Any, functions: Mapping[str, Any]) -> list[str]:
    """Return the names of the functions in a graph's library that a node calls."""
    if node.op in functions:
        names, arguments = [node.op], _arguments(node)
    else:
        if node.op not in _ARGUMENTS:
            _ARGUMENTS[node.op] = _arguments(node)
        names, arguments = [], _ARGUMENTS[node.op]
    for argument in arguments:
        value = node.attr[argument]
        # One of the two is empty.
        names += [value.func.name, *(function.name for function in value.list.func)]
    return [name for name in names if name in functions]


def _arguments(node: Any) -> tuple[str, ...]:
    """Return the names of the arguments that are functions or lists, without what TensorFlow notes for itself."""
    kinds = {name: node.attr[name].WhichOneof("value") for name in node.attr if not name.startswith("_")}
    return tuple(name for name, kind in kinds.items() if kind in ("func", "list"))
