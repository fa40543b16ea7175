"""Find the work of a step that comes from where data lies: copies between devices, and variables on a wrong device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pytest_ddl.training import values
from pytest_ddl.training.watching import Watched


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


def misplaced(strategy: Any, watched: Iterable[Watched]) -> tuple[str, ...]:
    """List watched variables on devices where their strategy does not keep variables, as ``name: device``.

    Right devices are the strategy's own parameter devices: those of the replicas, the one device of
    ``central_storage``, the servers of ``parameter_server``. If every replica has its own device for parameters, a
    variable that is not distributed lies on only one of them, and the others fetch it. So it is listed too. DTensor
    variables are placed by their layout, which the LAYOUT check verifies. Integer variables are skipped if replicas are
    on GPUs, because TensorFlow has many integer kernels only for the host.
    """
    extended = getattr(strategy, "extended", None)
    if extended is None:
        return ()
    replicas = {_canonical(device) for device in extended.worker_devices}
    allowed = {_canonical(device) for device in extended.parameter_devices}
    on_servers = _is_parameter_server(strategy)
    on_cpus = all(device.startswith("CPU:") for device in replicas)
    found = []
    for item in watched:
        variable = item.variable
        if variable is None or not (on_cpus or "float" in item.record.dtype):
            continue
        devices = _devices_of(strategy, variable)
        if on_servers:
            wrong = [device for device in devices if "/job:ps/" not in f"{device}/"]
        else:
            wrong = [device for device in devices if _canonical(device) not in allowed]
            shared = allowed == replicas and len(replicas) > 1
            if shared and not values.is_distributed(variable):
                wrong = wrong or devices
        if wrong:
            found.append(f"{item.record.name}: {', '.join(_short(device) for device in wrong)}")
    return tuple(found)


def _devices_of(strategy: Any, variable: Any) -> list[str]:
    if values.is_distributed(variable):
        return [str(part.device) for part in strategy.experimental_local_results(variable)]
    # A partitioned variable has several parts and no device of its own.
    parts = getattr(variable, "variables", None) or [variable]
    return [str(part.device) for part in parts if getattr(part, "device", None)]


def _canonical(device: str) -> str:
    """Return type and number of a device: ``CPU:0`` for ``/job:localhost/replica:0/task:0/device:CPU:0``."""
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(device if device.startswith("/") else f"/device:{device}")
    return f"{spec.device_type}:{spec.device_index or 0}"


def _short(device: str) -> str:
    job = next((part[4:] for part in device.split("/") if part.startswith("job:")), "")
    return _canonical(device) if job in ("", "localhost", "worker") else f"{job} {_canonical(device)}"


def _is_parameter_server(strategy: Any) -> bool:
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)
