"""CentralStorageStrategy: variables on one device, computation on several, in one process."""

from __future__ import annotations

from typing import Any

from pytest_ddl.strategies.machine import make_logical_devices
from pytest_ddl.strategies.mirrored import Mirrored
from pytest_ddl.strategies.spec import BuildContext, Capabilities


class CentralStorage(Mirrored):
    name = "central_storage"
    summary = "tf.distribute.experimental.CentralStorageStrategy: variables on one device, replicas on several"
    capabilities = Capabilities(reduces_by_copies=True)
    arguments = ("compute_devices", "parameter_device")

    def build(self, context: BuildContext) -> Any:
        import tensorflow as tf

        devices = make_logical_devices(context.device, context.spec.number("replicas"))
        arguments = {"compute_devices": devices, "parameter_device": "CPU:0", **context.arguments(*self.arguments)}
        return tf.distribute.experimental.CentralStorageStrategy(**arguments)
