"""What a traced graph holds, functions that it calls included: operations, collectives, bytes. Deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pytest_ddl.records import CollectiveRecord, GraphRecord

ON_HOST = (
    "PyFunc", "PyFuncStateless", "EagerPyFunc", "PrintV2", "WriteSummary", "WriteScalarSummary",
    "WriteHistogramSummary", "WriteImageSummary", "WriteAudioSummary", "WriteRawProtoSummary",
)  # fmt: skip
"""Operation types that call Python, print or write a summary: wherever the rest runs, these do on the host."""
COUNTED = ("IsFinite", "IsInf", "IsNan", "CheckNumerics", "CheckNumericsV2", "AddN", *ON_HOST)
"""Operation types that are told in ``GraphRecord.operations`` besides the collectives."""

KINDS: Mapping[str, str] = {
    "CollectiveReduce": "all_reduce",
    "CollectiveReduceV2": "all_reduce",
    "CollectiveReduceV3": "all_reduce",
    "NcclAllReduce": "all_reduce",
    "NcclReduce": "reduce",
    "CollectiveGather": "all_gather",
    "CollectiveGatherV2": "all_gather",
    "CollectiveReduceScatterV2": "reduce_scatter",
    "CollectiveAllToAllV2": "all_to_all",
    "CollectiveAllToAllV3": "all_to_all",
    "CollectiveBcastSend": "broadcast",
    "CollectiveBcastRecv": "broadcast",
    "CollectiveBcastSendV2": "broadcast",
    "CollectiveBcastRecvV2": "broadcast",
    "NcclBroadcast": "broadcast",
}
"""Operation type -> kind of collective. A Python-side ``reduce`` to one device (``AddN`` and copies) has none."""

_OPS = {"Add": "SUM", "Mul": "PRODUCT", "Min": "MIN", "Max": "MAX"}
REDUCES = ("all_reduce", "reduce", "reduce_scatter")
"""Kinds whose bytes are ``GraphRecord.reduced_bytes``."""
_INPUTS = ("Placeholder",)
_ITERATORS = ("IteratorGetNext", "MultiDeviceIteratorGetNextFromShard", "OptionalGetValue", "IteratorGetNextAsOptional")


@dataclass
class _Content:
    """What one execution of a graph or function runs."""

    operations: Counter[str] = field(default_factory=Counter)
    collectives: list[tuple[str, CollectiveRecord]] = field(default_factory=list)
    """With the device of each."""
    elements: list[str] = field(default_factory=list)
    """What it takes from iterators."""

    def add(self, other: _Content) -> None:
        self.operations.update(other.operations)
        self.collectives += other.collectives
        self.elements += other.elements


def analyse(graph: Any, step: int, asked: tuple[CollectiveRecord, ...] = ()) -> GraphRecord:
    """Count what a ``tf.Graph`` executes. A branch counts as its larger side, a loop's body once.

    :param graph: the outermost graph of a traced function.
    :param step: the step in which it was traced.
    :param asked: what the program asked for while it was traced.
    """
    definition = graph.as_graph_def(add_shapes=True)
    functions = {function.signature.name: function.node_def for function in definition.library.function}
    name = str(getattr(graph, "name", ""))
    content = _content(definition.node, functions, {}, name)
    given = [f"{_shape(node.attr['shape'].shape)}{_dtype(node)}" for node in definition.node if node.op in _INPUTS]
    collectives = _of_one_device(content)
    types = sorted(kind for kind in content.operations if kind in COUNTED or kind in KINDS)
    return GraphRecord(
        function=name,
        step=step,
        nodes=content.operations.total(),
        signature=(*given, *content.elements),
        collectives=collectives,
        asked=asked,
        reduced_bytes=sum(bytes_of(item) for item in collectives if item.kind in REDUCES),
        operations={kind: content.operations[kind] for kind in types},
    )


def _content(nodes: Any, functions: Mapping[str, Any], known: dict[str, _Content], where: str) -> _Content:
    content = _Content()
    named = {node.name: node for node in nodes}
    for node in nodes:
        content.operations[node.op] += 1
        if node.op in KINDS:
            content.collectives.append((node.device, _collective(node, where, _pack(node, named))))
        elif node.op in _ITERATORS:
            content.elements.append(f"{node.op} {[_shape(shape) for shape in node.attr['output_shapes'].list.shape]}")
        called = []
        for name in _called(node, functions):
            if name not in known:
                known[name] = _Content()  # a function that calls itself ends here
                known[name] = _content(functions[name], functions, known, name)
            called.append(known[name])
        if node.op in ("If", "StatelessIf", "Case", "StatelessCase") and called:
            called = [reduce(lambda one, other: other if _size(other) > _size(one) else one, called)]
        for inner in called:
            content.add(inner)
    return content


def _size(content: _Content) -> tuple[int, int]:
    return len(content.collectives), content.operations.total()


def _called(node: Any, functions: Mapping[str, Any]) -> list[str]:
    names = [node.op]
    for attribute in node.attr.values():
        kind = attribute.WhichOneof("value")
        if kind == "func":
            names.append(attribute.func.name)
        elif kind == "list":
            names += [function.name for function in attribute.list.func]
    return [name for name in names if name in functions]


def _pack(node: Any, named: Mapping[str, Any]) -> tuple[str, ...]:
    """What TensorFlow packed into a reduction: it joins the flattened tensors right before; empty for a single one."""
    source = _input(node, named)
    while source is not None and source.op == "Identity":
        source = _input(source, named)
    if source is None or source.op != "ConcatV2":
        return ()
    flat = [_input(source, named, position) for position in range(len(_data(source)) - 1)]
    if len(flat) < 2:
        return ()
    parts = []
    for one in flat:
        tensor = _input(one, named) if one is not None and one.op == "Reshape" else one
        shapes = list(tensor.attr["_output_shapes"].list.shape) if tensor is not None else []
        # A tensor of another output than the first has another shape, but of the same list.
        parts.append(f"{_shape(shapes[0]) if len(shapes) == 1 else '? '}{_dtype(node)}")
    return tuple(parts)


def _data(node: Any) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def _input(node: Any, named: Mapping[str, Any], position: int = 0) -> Any:
    names = _data(node)
    return named.get(names[position].split(":")[0]) if len(names) > position else None


def _collective(node: Any, where: str, parts: tuple[str, ...] = ()) -> CollectiveRecord:
    shapes = node.attr["_output_shapes"].list.shape
    shape = shapes[0] if shapes else None
    dims = None
    if shape is not None and not shape.unknown_rank:
        dims = tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
    operation = node.attr["merge_op"].s.decode() or node.attr["reduction"].s.decode()
    op = _OPS.get(operation, operation.upper()) if KINDS[node.op] in REDUCES else ""
    return CollectiveRecord(KINDS[node.op], op, dims, _dtype(node), where, parts=parts)


def _of_one_device(content: _Content) -> tuple[CollectiveRecord, ...]:
    """In one process every replica has its own copy of each collective: those of the busiest device."""
    counts = Counter(device for device, _item in content.collectives)
    busiest = max(counts, key=lambda device: counts[device], default="")
    return tuple(item for device, item in content.collectives if device == busiest)


def collectives_of(nodes: Any) -> list[CollectiveRecord]:
    """The collectives among the nodes of one device, functions left out."""
    return [_collective(node, "") for node in nodes if node.op in KINDS]


def _shape(shape: Any) -> str:
    if shape.unknown_rank:
        return "? "
    return f"{'x'.join('?' if dim.size < 0 else str(dim.size) for dim in shape.dim) or 'scalar'} "


def _dtype(node: Any) -> str:
    import tensorflow as tf

    number = node.attr["T"].type or node.attr["dtype"].type
    return str(tf.dtypes.as_dtype(number).name) if number else ""


def bytes_of(item: CollectiveRecord) -> int:
    """Bytes of what one replica puts in; 0 where the shape is not static."""
    import tensorflow as tf

    if item.shape is None or None in item.shape:
        return 0
    return reduce(lambda size, dim: size * (dim or 0), item.shape, int(tf.dtypes.as_dtype(item.dtype).size))
