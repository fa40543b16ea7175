"""Strategy ``multi_worker_mirrored``: synchronous replicas in several processes on localhost."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from pytest_ddl.strategies.base import Machine, StrategyDefinition
from pytest_ddl.strategies.machine import make_logical_devices
from pytest_ddl.strategies.spec import BuildContext, StrategySpec, Task, Topology


class MultiWorkerMirrored(StrategyDefinition):
    name = "multi_worker_mirrored"
    aliases = ("mwms",)
    summary = "tf.distribute.MultiWorkerMirroredStrategy: worker processes on localhost, replicas per worker"
    arguments = ("communication_options",)
    defaults: Mapping[str, int | str] = {"workers": 2, "replicas": 1}

    def unavailable(self, spec: StrategySpec, device: str, machine: Machine) -> str | None:
        if spec.number("replicas") > 1 and device == "cpu":
            return (
                f"replicas={spec.number('replicas')} per worker needs GPUs: "
                "TensorFlow gives a multi-worker task exactly one CPU replica"
            )
        return super().unavailable(spec, device, machine)

    def topology(self, spec: StrategySpec) -> Topology:
        workers = spec.number("workers")
        return Topology(
            ranks=tuple(Task("worker", index) for index in range(workers)),
            devices_per_process=spec.number("replicas"),
            ports=workers,
        )

    def num_replicas(self, spec: StrategySpec) -> int:
        return spec.number("workers") * spec.number("replicas")

    def build(self, context: BuildContext) -> Any:
        import tensorflow as tf

        workers, replicas = context.spec.number("workers"), context.spec.number("replicas")
        make_logical_devices(context.device, replicas, process=context.task.index, processes=workers)
        os.environ["TF_CONFIG"] = json.dumps(
            {
                "cluster": {"worker": list(context.addresses)},
                "task": {"type": context.task.type, "index": context.task.index},
            }
        )
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=context.timeout)
        arguments = {"communication_options": options, **context.arguments(*self.arguments)}
        return tf.distribute.MultiWorkerMirroredStrategy(**arguments)
