"""Strategy ``tpu``: all cores of a real TPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pytest_ddl.strategies.base import Machine, StrategyDefinition
from pytest_ddl.strategies.spec import BuildContext, StrategySpec


class Tpu(StrategyDefinition):
    name = "tpu"
    summary = "tf.distribute.TPUStrategy on all cores of the TPU that TPU_NAME names, or of a local TPU"
    defaults: Mapping[str, int | str] = {}

    def unavailable(self, spec: StrategySpec, device: str, machine: Machine) -> str | None:
        if machine.tpus == 0:
            return f"needs a TPU: {machine.tpu_reason or 'TensorFlow sees none'}"
        if device in ("cpu", "gpu"):
            return f"runs on TPUs only (device={device} was asked for)"
        return None

    def num_replicas(self, spec: StrategySpec) -> int:
        return 0

    def build(self, context: BuildContext) -> Any:
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME", "local"))
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
