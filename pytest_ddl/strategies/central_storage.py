"""Strategy ``central_storage``: variables on one device, computation on several devices, in one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ddl.strategies.base import StrategyDefinition
from pytest_ddl.strategies.machine import make_logical_devices
from pytest_ddl.strategies.spec import BuildContext, Capabilities, StrategySpec, Task, Topology


class CentralStorage(StrategyDefinition):
    name = "central_storage"
    summary = "tf.distribute.experimental.CentralStorageStrategy: variables on one device, replicas on several"
    capabilities = Capabilities(reduces_by_copies=True)
    arguments = ("compute_devices", "parameter_device")
    defaults: Mapping[str, int | str] = {"replicas": 2}

    def topology(self, spec: StrategySpec) -> Topology:
        return Topology(ranks=(Task("worker", 0),), devices_per_process=spec.number("replicas"))

    def num_replicas(self, spec: StrategySpec) -> int:
        return spec.number("replicas")

    def build(self, context: BuildContext) -> Any:
        import tensorflow as tf

        devices = make_logical_devices(context.device, context.spec.number("replicas"))
        arguments = {"compute_devices": devices, "parameter_device": "CPU:0", **context.arguments(*self.arguments)}
        return tf.distribute.experimental.CentralStorageStrategy(**arguments)
