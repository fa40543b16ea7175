"""Strategy ``parameter_server``: a coordinator, remote workers and parameter servers.

By default the servers are threads of the coordinator's process, which is fast and sufficient for training.
``processes=separate`` gives every server its own process. A test needs this to kill a server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pytest_ddl.strategies.adapter import coordinator_of
from pytest_ddl.strategies.base import StrategyDefinition
from pytest_ddl.strategies.machine import make_logical_devices, server_memory_fraction
from pytest_ddl.strategies.spec import BuildContext, Capabilities, StrategySpec, Task, Topology

PLACEMENTS = ("shared", "separate")


class ParameterServer(StrategyDefinition):
    name = "parameter_server"
    aliases = ("ps",)
    summary = "tf.distribute.ParameterServerStrategy with its coordinator; processes=separate for killable servers"
    capabilities = Capabilities(coordinator=True)
    arguments = ("variable_partitioner",)
    defaults: Mapping[str, int | str] = {"workers": 2, "ps": 1, "processes": "shared"}

    def check(self, spec: StrategySpec) -> str | None:
        if spec.shape["processes"] not in PLACEMENTS:
            return f"processes={spec.shape['processes']} is not one of {', '.join(PLACEMENTS)}"
        return None

    def topology(self, spec: StrategySpec) -> Topology:
        servers = tuple(
            Task(kind, index)
            for kind, number in (("worker", spec.number("workers")), ("ps", spec.number("ps")))
            for index in range(number)
        )
        separate = spec.shape["processes"] == "separate"
        return Topology(ranks=(Task("chief", 0),), servers=servers if separate else (), ports=len(servers))

    def num_replicas(self, spec: StrategySpec) -> int:
        return 1

    def build(self, context: BuildContext) -> Any:
        import tensorflow as tf

        make_logical_devices(context.device, 1)
        workers, servers = context.spec.number("workers"), context.spec.number("ps")
        addresses = context.addresses
        cluster = tf.train.ClusterSpec({"worker": list(addresses[:workers]), "ps": list(addresses[workers:])})
        if context.rank < 0:
            # While training is compared, the coordinator cannot switch off TensorFloat-32 in other processes.
            tf.config.experimental.enable_tensor_float_32_execution(False)
            return _start_server(cluster, context.task, workers)
        if not context.topology.servers:
            for kind, number in (("worker", workers), ("ps", servers)):
                for index in range(number):
                    _start_server(cluster, Task(kind, index), workers)
        # The coordinator is left out of the cluster spec, as in TensorFlow's in-process tutorial.
        # Its own server then takes any free port.
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
        strategy = tf.distribute.ParameterServerStrategy(resolver, **context.arguments(*self.arguments))
        _copy_from_each_server()
        return strategy


def join_scheduled(strategy: Any) -> None:
    """Wait for the closures that the coordinator of this strategy has scheduled, and raise their exceptions.

    Otherwise nobody would notice a closure that fails after the program's last ``join``.
    """
    coordinator = coordinator_of(strategy)
    if coordinator is not None:
        coordinator.join()


def closures_run(strategy: Any) -> bool:
    """Return whether closures have not ended. An error of one is left for the program."""
    coordinator = coordinator_of(strategy)
    try:
        return coordinator is not None and not coordinator.done()
    except Exception:
        return False


_COORDINATOR = "chief"
"""Job of the coordinator, which TensorFlow adds to a cluster without one."""

_COPIED_TYPES = (
    *("float32", "float64", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint8"),
    *("bool", "string"),
)
"""Types of the values that closures return. As there are 11, the number of copies is never a power of two."""


def _copy_from_each_server() -> None:
    """Copy a value of each common type from each task to the coordinator, before any thread of a coordinator runs.

    A coordinator copies the results of closures in one thread for each worker. TensorFlow turns a copy into a function
    of several devices, and the first copy of a type from a device appends that function to ``function_data_`` of its
    ``EagerClusterFunctionLibraryRuntime``. A full list moves to another place, while ``Run`` in another thread may
    still read an entry at the old one, outside of the lock (seen in TensorFlow 2.21). Then the coordinator is killed by
    SIGSEGV, or a copy fails with "Unable to parse request". It happens to correct programs, by chance.

    One thread makes these first copies here, so later copies append nothing. They also leave room in the list, whose
    size doubles whenever it is full. So the entries of other types, and those that are made again after a worker was
    lost and is back, do not move it either.
    """
    import tensorflow as tf

    for device in tf.config.list_logical_devices("CPU"):
        if f"/job:{_COORDINATOR}/" in device.name:
            continue
        for dtype in _COPIED_TYPES:
            with tf.device(device.name):
                value = tf.zeros([], dtype)
            # As the coordinator does it, because the name of the function contains the device.
            with tf.device(f"/job:{_COORDINATOR}"):
                tf.identity(value)


_SERVERS: list[Any] = []
"""All servers of this process. TensorFlow cannot stop a server, and the port of a collected one stays open."""


def _start_server(cluster: Any, task: Task, workers: int) -> Any:
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto()
    # Every closure occupies an inter-op thread, and the servers of one process share these threads. If there are too
    # few, the servers wait for each other for ever (TensorFlow's tutorial, "In-process cluster").
    config.inter_op_parallelism_threads = max(os.cpu_count() or 1, workers + 2)
    config.gpu_options.per_process_gpu_memory_fraction = server_memory_fraction()
    server = tf.distribute.Server(
        cluster, job_name=task.type, task_index=task.index, config=config, protocol="grpc", start=True
    )
    _SERVERS.append(server)
    return server
