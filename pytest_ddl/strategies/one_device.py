"""Strategy ``one_device``: everything on a single device. The other strategies are compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ddl.strategies.base import Machine, StrategyDefinition
from pytest_ddl.strategies.devices import make_logical_devices, missing_gpu
from pytest_ddl.strategies.spec import BuildContext, StrategySpec, Task, Topology


class OneDevice(StrategyDefinition):
    name = "one_device"
    summary = "tf.distribute.OneDeviceStrategy; the reference that others are compared with"
    defaults: Mapping[str, int | str] = {}

    def unavailable(self, spec: StrategySpec, device: str, machine: Machine) -> str | None:
        return missing_gpu(device, machine)

    def topology(self, spec: StrategySpec) -> Topology:
        return Topology(ranks=(Task("worker", 0),))

    def num_replicas(self, spec: StrategySpec) -> int:
        return 1

    def build(self, context: BuildContext) -> Any:
        import tensorflow as tf

        (device,) = make_logical_devices(context.device, 1)
        return tf.distribute.OneDeviceStrategy(device)
