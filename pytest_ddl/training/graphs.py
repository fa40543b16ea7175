"""Count operations, collectives and bytes of a traced graph and of the functions that it calls."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pytest_ddl.records import CollectiveRecord, GraphRecord
from pytest_ddl.training.loops import data_inputs, passes_of
from pytest_ddl.training.roundings import called_functions, longest_chain

ON_HOST = (
    "PyFunc", "PyFuncStateless", "EagerPyFunc", "PrintV2", "WriteSummary", "WriteScalarSummary",
    "WriteHistogramSummary", "WriteImageSummary", "WriteAudioSummary", "WriteRawProtoSummary",
)  # fmt: skip
"""Operation types that always run on the host: they call Python, print or write a summary."""
COUNTED = ("IsFinite", "IsInf", "IsNan", "CheckNumerics", "CheckNumericsV2", "AddN", *ON_HOST)
"""Operation types that ``GraphRecord.operations`` counts in addition to the collectives."""

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
"""Operation type -> kind of collective. A ``reduce`` to one device by ``AddN`` and copies has no collective."""

_OPS = {"Add": "SUM", "Mul": "PRODUCT", "Min": "MIN", "Max": "MAX"}
REDUCES = ("all_reduce", "reduce", "reduce_scatter")
"""Kinds whose bytes ``GraphRecord.reduced_bytes`` counts."""
_INPUTS = ("Placeholder",)
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
_ONCE = ("PartitionedCall", "StatefulPartitionedCall", "RemoteCall")
"""Operation types that run their function exactly once; for other types the number of runs is not known."""
_ITERATORS = ("IteratorGetNext", "MultiDeviceIteratorGetNextFromShard", "OptionalGetValue", "IteratorGetNextAsOptional")


@dataclass
class _Content:
    """Content of a graph or function, as one execution runs it."""

    operations: Counter[str] = field(default_factory=Counter)
    collectives: list[tuple[str, CollectiveRecord]] = field(default_factory=list)
    """Pairs of device and collective."""
    elements: list[str] = field(default_factory=list)
    """Texts with the shapes of the elements that it takes from iterators."""
    times: Counter[tuple[str, CollectiveRecord]] = field(default_factory=Counter)
    """Pair of device and collective -> number of executions, including passes of loops."""
    on_host: int = 0
    """Number of executions of ``ON_HOST`` operations, including passes of loops."""
    conditional: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Pair of device and kind -> number of executions of collectives that not every branch has."""
    unknown: set[str] = field(default_factory=set)
    """Names of loops that contain something to count and whose number of passes is not known."""

    def add(self, other: _Content, times: int = 1) -> None:
        self.operations.update(other.operations)
        self.collectives += other.collectives
        self.elements += other.elements
        self.times.update({item: number * times for item, number in other.times.items() if times})
        self.on_host += other.on_host * times
        self.conditional.update({item: number * times for item, number in other.conditional.items() if times})
        self.unknown |= other.unknown


@dataclass(frozen=True)
class Executed:
    """Counts of what one execution of a graph runs, with all passes of its loops."""

    record: GraphRecord
    """Record from :func:`analyse`, which counts a loop's body once."""
    collectives: Mapping[CollectiveRecord, int]
    """Collective -> number of executions on one device.

    A branch counts as its larger side, and a loop that may end early counts with all its passes.
    """
    conditional: Mapping[str, int] = field(default_factory=dict)
    """Kind -> number of these executions that happen only in some of the branches."""
    host_calls: int = 0
    """Number of executions of ``ON_HOST`` operations."""
    unknown: tuple[str, ...] = ()
    """Names of loops with a collective or a host call whose number of passes is not known, and is counted as one."""


def executed(graph: Any, step: int = 0) -> Executed:
    """Count what a ``tf.Graph`` executes; a loop counts with all its passes if constants determine their number."""
    record, content = _analysed(graph, step, ())
    device = _busiest(content)
    return Executed(
        record=record,
        collectives={item: number for (where, item), number in content.times.items() if where == device},
        conditional={kind: number for (where, kind), number in content.conditional.items() if where == device},
        host_calls=content.on_host,
        unknown=tuple(sorted(content.unknown)),
    )


def analyse(graph: Any, step: int, asked: tuple[CollectiveRecord, ...] = ()) -> GraphRecord:
    """Count what a ``tf.Graph`` contains. A branch counts as its larger side, a loop's body once.

    :param graph: outermost graph of a traced function.
    :param step: step in which it was traced.
    :param asked: collectives that the program requested while it was traced.
    """
    return _analysed(graph, step, asked)[0]


def _analysed(graph: Any, step: int, asked: tuple[CollectiveRecord, ...]) -> tuple[GraphRecord, _Content]:
    definition = graph.as_graph_def(add_shapes=True)
    functions = {function.signature.name: function for function in definition.library.function}
    name = str(getattr(graph, "name", ""))
    content = _content(definition.node, functions, {}, name)
    given = [f"{_shape(node.attr['shape'].shape)}{_dtype(node)}" for node in definition.node if node.op in _INPUTS]
    device = _busiest(content)
    collectives = tuple(item for where, item in content.collectives if where == device)
    types = sorted(kind for kind in +content.operations if kind in COUNTED or kind in KINDS)
    record = GraphRecord(
        function=name,
        step=step,
        nodes=content.operations.total(),
        signature=(*given, *content.elements),
        collectives=collectives,
        asked=asked,
        reduced_bytes=sum(bytes_of(item) for item in collectives if item.kind in REDUCES),
        operations={kind: content.operations[kind] for kind in types},
        half=longest_chain(definition.node, functions),
    )
    return record, content


def _content(nodes: Any, functions: Mapping[str, Any], known: dict[str, _Content], where: str) -> _Content:
    content = _Content()
    named = {node.name: node for node in nodes}
    for node in nodes:
        content.operations[node.op] += 1
        if _finds_zeros_and_nans(node, named):
            content.operations.update({"IsNan": -1, "IsNan and Equal": 1})
        content.on_host += node.op in ON_HOST
        if node.op in KINDS:
            found = node.device, _collective(node, where, _pack(node, named))
            content.collectives.append(found)
            content.times[found] += 1
        elif node.op in _ITERATORS:
            content.elements.append(f"{node.op} {[_shape(shape) for shape in node.attr['output_shapes'].list.shape]}")
        called = []
        for name in called_functions(node, functions):
            if name not in known:
                known[name] = _Content()  # ends the recursion of a function that calls itself
                known[name] = _content(functions[name].node_def, functions, known, name)
            called.append(known[name])
        if node.op in _BRANCHES and called:
            called = [_larger(called)]
        times = 1
        if called and node.op not in (*_ONCE, *_BRANCHES) and node.op not in functions and any(map(_is_gated, called)):
            passes = passes_of(node, named, functions) if node.op in _LOOPS else None
            if passes is None:
                content.unknown.add(node.name)
            times = 1 if passes is None else passes
        for inner in called:
            content.add(inner, times)
    return content


def _is_gated(content: _Content) -> bool:
    return bool(content.times or content.on_host)


def _larger(branches: list[_Content]) -> _Content:
    """Return the largest branch. Its ``conditional`` has the collectives that not all branches have."""
    largest = reduce(lambda one, other: other if _size(other) > _size(one) else one, branches)
    counts = [_by_kind(branch) for branch in branches]
    extra = _by_kind(largest) - reduce(operator.and_, counts)
    return replace(largest, conditional=largest.conditional | extra)


def _by_kind(content: _Content) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for (device, item), number in content.times.items():
        counts[device, item.kind] += number
    return counts


def _finds_zeros_and_nans(node: Any, named: Mapping[str, Any]) -> bool:
    """Return whether a node finds the zeros and NaNs of one tensor together.

    Keras 3 divides a sparse gradient in this way (``keras/src/backend/tensorflow/sparse.py``). It decides nothing about
    steps whose gradients are not finite.
    """
    if node.op != "LogicalOr":
        return False
    tests = {source.op: source for source in (_input(node, named, place) for place in (0, 1)) if source is not None}
    return tests.keys() == {"Equal", "IsNan"} and tests["Equal"].input[0] == tests["IsNan"].input[0]


def _size(content: _Content) -> tuple[int, int]:
    return content.times.total(), content.operations.total()


def _pack(node: Any, named: Mapping[str, Any]) -> tuple[str, ...]:
    """Describe the tensors that TensorFlow packed into a reduction; return ``()`` for a single tensor.

    TensorFlow flattens and concatenates them directly before the reduction.
    """
    source = _input(node, named)
    while source is not None and source.op == "Identity":
        source = _input(source, named)
    if source is None or source.op != "ConcatV2":
        return ()
    flat = [_input(source, named, position) for position in range(len(data_inputs(source)) - 1)]
    if len(flat) < 2:
        return ()
    parts = []
    for one in flat:
        tensor = _input(one, named) if one is not None and one.op == "Reshape" else one
        shapes = list(tensor.attr["_output_shapes"].list.shape) if tensor is not None else []
        # With several outputs, it is not known which of the shapes belongs to the tensor.
        parts.append(f"{_shape(shapes[0]) if len(shapes) == 1 else '? '}{_dtype(node)}")
    return tuple(parts)


def _input(node: Any, named: Mapping[str, Any], position: int = 0) -> Any:
    names = data_inputs(node)
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


def _busiest(content: _Content) -> str:
    """Return the device with most collectives; each replica in a process has its own copy, so only one counts."""
    counts: Counter[str] = Counter()
    for (device, _item), number in content.times.items():
        counts[device] += number
    return max(counts, key=lambda device: counts[device], default="")


def collectives_of(nodes: Any) -> list[CollectiveRecord]:
    """Return the collectives among the nodes of one device, without those in functions."""
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
    """Return the bytes that one replica puts into a collective, or 0 if the shape is not static."""
    import tensorflow as tf

    if item.shape is None or None in item.shape:
        return 0
    return reduce(lambda size, dim: size * (dim or 0), item.shape, int(tf.dtypes.as_dtype(item.dtype).size))
