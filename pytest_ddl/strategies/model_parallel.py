"""Strategy ``model_parallel``: one program over a DTensor mesh, with variables sharded over the axes of the mesh."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pytest_ddl.strategies.base import Machine, StrategyDefinition
from pytest_ddl.strategies.machine import make_logical_devices
from pytest_ddl.strategies.spec import BuildContext, Capabilities, StrategySpec, Task, Topology

_AXIS = re.compile(r"^(?P<name>[A-Za-z_]\w*):(?P<size>\d+)$")


def parse_mesh(text: str) -> dict[str, int]:
    """Parse ``batch:2;model:2`` into ``{"batch": 2, "model": 2}``, in the order of the text.

    :raises ValueError: if the text is not a mesh. The message names the wrong part and how to correct it.
    """
    axes: dict[str, int] = {}
    for part in (part.strip() for part in text.split(";")):
        match = _AXIS.match(part)
        if match is None:
            raise ValueError(f"mesh={text!r}: {part!r} is not an axis; write name:size, as in batch:2;model:2")
        name, size = match["name"], int(match["size"])
        if size < 1:
            raise ValueError(f"mesh={text!r}: axis {name!r} has size {size}; the smallest is 1")
        if name in axes:
            raise ValueError(f"mesh={text!r}: axis {name!r} appears twice; name every axis once")
        if name in ("unsharded", "match", "any"):
            raise ValueError(f"mesh={text!r}: {name!r} has another meaning in DTensor; choose another axis name")
        axes[name] = size
    return axes


class ModelParallel(StrategyDefinition):
    name = "model_parallel"
    aliases: tuple[str, ...] = ("mp",)
    summary = "DTensor over a mesh of devices: batches sharded over 'batch', variables by strategy.layout_map"
    capabilities = Capabilities(global_view=True)
    # The smallest mesh that splits both batches and variables. With model:1 a layout rule would have no effect,
    # so a wrong rule would pass.
    defaults: Mapping[str, int | str] = {"mesh": "batch:2;model:2"}

    def check(self, spec: StrategySpec) -> str | None:
        try:
            parse_mesh(str(spec.shape["mesh"]))
        except ValueError as problem:
            return str(problem)
        return None

    def unavailable(self, spec: StrategySpec, device: str, machine: Machine) -> str | None:
        needed = self._devices(spec)
        if device == "gpu" and 0 < machine.gpus < needed:
            # NCCL refuses two ranks on one physical GPU, so virtual GPUs do not help here.
            return f"mesh {spec.shape['mesh']} needs {needed} physical GPUs, this machine has {machine.gpus}"
        return super().unavailable(spec, device, machine)

    def topology(self, spec: StrategySpec) -> Topology:
        return Topology(ranks=(Task("worker", 0),), devices_per_process=self._devices(spec))

    def num_replicas(self, spec: StrategySpec) -> int:
        """Return 1, because a DTensor program sees the global batch and global variables."""
        return 1

    def build(self, context: BuildContext) -> Any:
        from pytest_ddl.strategies.model_parallel_strategy import ModelParallelStrategy

        axes = parse_mesh(str(context.spec.shape["mesh"]))
        return ModelParallelStrategy(axes, make_logical_devices(context.device, math.prod(axes.values())))

    def _devices(self, spec: StrategySpec) -> int:
        return math.prod(parse_mesh(str(spec.shape["mesh"])).values())
