"""Count the half precision operations on the longest path of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXACT = (
    "Abs", "BroadcastTo", "ConcatV2", "Const", "Equal", "ExpandDims", "Fill", "GatherV2", "Greater", "GreaterEqual",
    "Identity", "IdentityN", "IsFinite", "IsInf", "IsNan", "Less", "LessEqual", "MaxPool", "Maximum", "Minimum", "Neg",
    "NotEqual", "OnesLike", "Pack", "Pad", "PadV2", "Placeholder", "PreventGradient", "ReadVariableOp", "Relu",
    "ReluGrad", "Reshape", "ReverseV2", "Select", "SelectV2", "Shape", "Sign", "Slice", "Split", "SplitV", "Squeeze",
    "StopGradient", "StridedSlice", "Tile", "Transpose", "Unpack", "Where", "ZerosLike",
)  # fmt: skip
"""Operation types that do not round."""


def longest_chain(nodes: Any, functions: Mapping[str, Any]) -> int:
    """Count the rounding operations in half precision on the longest path from an input to an output.

    Each rounding multiplies a result by ``1 + d``. Higham and Mary give a bound for the product of k such factors. Here
    k is this count; for a sum, it is the length of the sum. A loop's body counts once, because the number of its passes
    may depend on the data.

    :param nodes: the ``NodeDef`` of a graph.
    :param functions: the ``FunctionDef`` of each function in the graph's library, by name.
    """
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
    import tensorflow as tf

    kind = node.attr["DstT"].type or node.attr["T"].type or node.attr["dtype"].type
    half = (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum)
    return kind in half and node.op not in _EXACT


def called_functions(node: Any, functions: Mapping[str, Any]) -> list[str]:
    """Return the names of the functions in a graph's library that a node calls."""
    names = [node.op]
    for attribute in node.attr.values():
        kind = attribute.WhichOneof("value")
        if kind == "func":
            names.append(attribute.func.name)
        elif kind == "list":
            names += [function.name for function in attribute.list.func]
    return [name for name in names if name in functions]
