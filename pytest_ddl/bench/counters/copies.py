"""Count the tensors that a step copies between devices, from the graph that each device received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any


def copies_of(partitions: Iterable[Any]) -> Counter[str]:
    """Count the copied tensors in one execution of a function, by direction; the body of a loop counts once.

    TensorFlow splits a graph into one per device, with a ``_Send`` and a ``_Recv`` for each tensor that crosses over.
    With ``_HostSend`` and ``_HostRecv``, the tensor is in host memory at that end (Abadi et al. 2016, TensorFlow: a
    system for large-scale machine learning, section 3.3). ``host_to_device`` and ``device_to_host`` have a CPU at one
    end. ``device_to_device`` has none, or two, as between replicas on virtual CPUs. ``between_tasks`` leaves the
    process. A pair that only orders operations carries no tensor and is not counted.

    :param partitions: the ``GraphDef`` of each device.
    """
    nodes = [node for graph in partitions for node in _all_nodes(graph)]
    # GPUs keep small integers in host memory; a tensor that moves from host memory to host memory is not copied.
    in_host = {_key(node) for node in nodes if node.op == "_HostRecv"}
    sent = [node for node in nodes if node.op in ("_Send", "_HostSend") and _carries(node)]
    directions = (_direction(node, _key(node) in in_host) for node in sent)
    return Counter(direction for direction in directions if direction)


def _all_nodes(graph: Any) -> list[Any]:
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]


def _key(node: Any) -> tuple[bytes, ...]:
    return tuple(node.attr[name].s for name in ("tensor_name", "send_device", "recv_device"))


def _carries(node: Any) -> bool:
    """Return True if a value is sent; a dummy that only orders operations is named after the one that it waits for."""
    return not any("/ctrl/_" in name for name in node.input)


def _direction(node: Any, to_host: bool) -> str:
    """Return the name of a direction; empty if nothing is copied."""
    sender, receiver = (node.attr[name].s.decode() for name in ("send_device", "recv_device"))
    if sender == receiver:
        return ""
    if sender.rsplit("/device:", 1)[0] != receiver.rsplit("/device:", 1)[0]:
        return "between_tasks"
    from_cpu, to_cpu = (":CPU:" in device for device in (sender, receiver))
    if from_cpu and to_cpu:
        return "device_to_device"
    starts, ends = from_cpu or node.op == "_HostSend", to_cpu or to_host
    if starts and ends:
        return ""
    return "host_to_device" if starts else "device_to_host" if ends else "device_to_device"
