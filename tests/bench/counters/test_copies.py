"""Copies between devices, read off partitioned graphs that are given as plain values."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_ddl.bench.launching.counting import copies_of, kernels_of

LOCAL = "/job:localhost/replica:0/task:0/device:"


def node(op, sender, receiver, tensor="edge_1", source="dense/kernel"):
    attributes = {"tensor_name": tensor, "send_device": sender, "recv_device": receiver}
    return SimpleNamespace(
        op=op,
        input=[source] if "Send" in op else [],
        attr={name: SimpleNamespace(s=text.encode()) for name, text in attributes.items()},
    )


def graph(*nodes, functions=()):
    library = SimpleNamespace(function=[SimpleNamespace(node_def=list(one)) for one in functions])
    return SimpleNamespace(node=list(nodes), library=library)


@pytest.mark.parametrize(
    ("sender", "receiver", "direction"),
    [
        (f"{LOCAL}CPU:0", f"{LOCAL}GPU:0", "host_to_device"),
        (f"{LOCAL}GPU:1", f"{LOCAL}CPU:0", "device_to_host"),
        (f"{LOCAL}GPU:0", f"{LOCAL}GPU:1", "device_to_device"),
        (f"{LOCAL}CPU:0", f"{LOCAL}CPU:1", "device_to_device"),
        (f"{LOCAL}CPU:0", "/job:ps/replica:0/task:0/device:CPU:0", "between_tasks"),
    ],
)
def test_a_tensor_that_crosses_over_is_one_copy(sender, receiver, direction):
    parts = [graph(node("_Send", sender, receiver)), graph(node("_Recv", sender, receiver))]
    assert copies_of(parts) == {direction: 1}


def test_a_dummy_that_orders_operations_is_none():
    sender, receiver = f"{LOCAL}CPU:0", f"{LOCAL}CPU:1"
    assert copies_of([graph(node("_Send", sender, receiver, source="update_1/AssignVariableOp/ctrl/_3"))]) == {}


def test_what_stays_in_host_memory_at_both_ends_is_none():
    sender, receiver = f"{LOCAL}CPU:0", f"{LOCAL}GPU:0"
    assert copies_of([graph(node("_Send", sender, receiver)), graph(node("_HostRecv", sender, receiver))]) == {}
    assert copies_of([graph(node("_HostSend", receiver, sender)), graph(node("_Recv", receiver, sender))]) == {}


def test_what_a_device_sends_itself_is_none():
    assert copies_of([graph(node("_Send", f"{LOCAL}CPU:0", f"{LOCAL}CPU:0"))]) == {}


def test_functions_of_a_part_count():
    inner = node("_Send", f"{LOCAL}GPU:0", f"{LOCAL}CPU:0")
    assert copies_of([graph(functions=[[inner, inner]])]) == {"device_to_host": 2}


def test_what_computes_nothing_is_no_kernel():
    sender, receiver = f"{LOCAL}CPU:0", f"{LOCAL}GPU:0"
    ops = ("MatMul", "Const", "_Arg", "NoOp", "Relu", "_Retval")
    first = graph(*(node(op, sender, receiver) for op in ops), node("_Send", sender, receiver))
    second = graph(node("_Recv", sender, receiver), functions=[[node("AddV2", receiver, receiver)]])
    assert kernels_of([first, second]) == 3
    assert kernels_of([]) == 0
