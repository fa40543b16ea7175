"""What a traced graph holds, functions that it calls included: operations, collectives, bytes. Deterministic."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pytest_ddl.records import CollectiveRecord, GraphRecord
from pytest_ddl.training.loops import passes_of
from pytest_ddl.training.roundings import called_functions, longest_chain

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
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
_ONCE = ("PartitionedCall", "StatefulPartitionedCall", "RemoteCall")
"""Operations that run the function that they are given once; of others it is not known how often."""
_ITERATORS = ("IteratorGetNext", "MultiDeviceIteratorGetNextFromShard", "OptionalGetValue", "IteratorGetNextAsOptional")


@dataclass
class _Content:
    """What one execution of a graph or function runs."""

    operations: Counter[str] = field(default_factory=Counter)
    collectives: list[tuple[str, CollectiveRecord]] = field(default_factory=list)
    """With the device of each."""
    elements: list[str] = field(default_factory=list)
    """What it takes from iterators."""
    times: Counter[tuple[str, CollectiveRecord]] = field(default_factory=Counter)
    """The collectives, each as often as the loops around it have it run."""
    on_host: int = 0
    """Operations ``ON_HOST``, as often as loops have them run."""
    conditional: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Device and kind of collectives that not every branch has, as often as loops have them run."""
    unknown: set[str] = field(default_factory=set)
    """Loops with something to count of which it is not known how often they run, by name."""

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
    """What one execution of a graph does, loops unrolled."""

    record: GraphRecord
    """As :func:`analyse` gives it: a loop's body once."""
    collectives: Mapping[CollectiveRecord, int]
    """Of one device, each as often as it runs; a branch counts as its larger side, a loop that may end early whole."""
    conditional: Mapping[str, int] = field(default_factory=dict)
    """Kind -> of these, those that are in a branch."""
    host_calls: int = 0
    """Operations ``ON_HOST`` that run."""
    unknown: tuple[str, ...] = ()
    """Names of loops, with a collective or a call to the host, that count as one pass: how many is not known."""


def executed(graph: Any, step: int = 0) -> Executed:
    """Count what a ``tf.Graph`` executes, each loop's body as often as it runs where constants tell that."""
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
    """Count what a ``tf.Graph`` holds. A branch counts as its larger side, a loop's body once.

    :param graph: the outermost graph of a traced function.
    :param step: the step in which it was traced.
    :param asked: what the program asked for while it was traced.
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
    types = sorted(kind for kind in content.operations if kind in COUNTED or kind in KINDS)
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
                known[name] = _Content()  # a function that calls itself ends here
                known[name] = _content(functions[name].node_def, functions, known, name)
            called.append(known[name])
        if node.op in _BRANCHES and called:
            called = [_larger(called)]
        times = 1
        if node.op not in (*_ONCE, *_BRANCHES) and node.op not in functions and any(map(_is_gated, called)):
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
    """The branch that does most, and what of it is not in all of them."""
    largest = reduce(lambda one, other: other if _size(other) > _size(one) else one, branches)
    counts = [_by_kind(branch) for branch in branches]
    extra = _by_kind(largest) - reduce(operator.and_, counts)
    return replace(largest, conditional=largest.conditional | extra)


def _by_kind(content: _Content) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for (device, item), number in content.times.items():
        counts[device, item.kind] += number
    return counts


def _size(content: _Content) -> tuple[int, int]:
    return content.times.total(), content.operations.total()


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


def _busiest(content: _Content) -> str:
    """In one process every replica has its own copy of each collective: those of one device are counted."""
    counts: Counter[str] = Counter()
    for (device, _item), number in content.times.items():
        counts[device] += number
    return max(counts, key=lambda device: counts[device], default="")


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
