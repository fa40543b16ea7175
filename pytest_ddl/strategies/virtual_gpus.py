"""Process with virtual GPUs for the fixture ``virtual_gpus``. It has the interface of a strategy but is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ddl.strategies.base import Machine, StrategyDefinition
from pytest_ddl.strategies.machine import VIRTUAL_GPU_MEMORY_MB, split_device
from pytest_ddl.strategies.spec import BuildContext, StrategySpec


class VirtualGpus(StrategyDefinition):
    name = "virtual_gpus"
    summary = "virtual GPUs on the first physical one"
    defaults: Mapping[str, int | str] = {"count": 2, "memory_mb": VIRTUAL_GPU_MEMORY_MB}

    def unavailable(self, spec: StrategySpec, device: str, machine: Machine) -> str | None:
        return None if machine.gpus else f"needs a GPU to split: {machine.gpu_reason}"

    def num_replicas(self, spec: StrategySpec) -> int:
        return 0

    def build(self, context: BuildContext) -> Any:
        return split_device("GPU", context.spec.number("count"), context.spec.number("memory_mb"))
