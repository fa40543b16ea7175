"""Strategy ``one_device``: everything on a single device. The other strategies are compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ddl.strategies.base import StrategyDefinition
from pytest_ddl.strategies.machine import make_logical_devices
from pytest_ddl.strategies.spec import BuildContext, StrategySpec


class OneDevice(StrategyDefinition):
    name = "one_device"
    summary = "tf.distribute.OneDeviceStrategy; the reference that others are compared with"
    defaults: Mapping[str, int | str] = {}

    def num_replicas(self, spec: StrategySpec) -> int:
        return 1

    def build(self, context: BuildContext) -> Any:
        import tensorflow as tf

        (device,) = make_logical_devices(context.device, 1)
        return tf.distribute.OneDeviceStrategy(device)
