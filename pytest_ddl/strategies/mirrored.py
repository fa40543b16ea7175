"""Strategy ``mirrored``: synchronous replicas in one process, one logical device each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ddl.strategies.base import StrategyDefinition
from pytest_ddl.strategies.machine import make_logical_devices
from pytest_ddl.strategies.spec import BuildContext, StrategySpec, Task, Topology


class Mirrored(StrategyDefinition):
    name = "mirrored"
    summary = "tf.distribute.MirroredStrategy on virtual CPUs, or real or virtual GPUs"
    arguments = ("devices", "cross_device_ops")
    defaults: Mapping[str, int | str] = {"replicas": 2}

    def topology(self, spec: StrategySpec) -> Topology:
        return Topology(ranks=(Task("worker", 0),), devices_per_process=spec.number("replicas"))

    def num_replicas(self, spec: StrategySpec) -> int:
        return spec.number("replicas")

    def build(self, context: BuildContext) -> Any:
        import tensorflow as tf

        devices = make_logical_devices(context.device, context.spec.number("replicas"))
        return tf.distribute.MirroredStrategy(**{"devices": devices, **context.arguments(*self.arguments)})
