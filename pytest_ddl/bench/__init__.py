"""How fast is distributed training: from a training function to numbers that can be trusted.

The names below are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ddl.bench.collectives import measure_collectives
    from pytest_ddl.bench.matrix import Matrix, measure
    from pytest_ddl.bench.metrics import METRICS, estimate
    from pytest_ddl.bench.records import Counters, EnergyReading, Launch, RankTiming
    from pytest_ddl.bench.spec import BenchSpec
    from pytest_ddl.bench.training_to_target import steps_to_target

_HOMES = {
    "METRICS": "pytest_ddl.bench.metrics",
    "BenchSpec": "pytest_ddl.bench.spec",
    "Counters": "pytest_ddl.bench.records",
    "EnergyReading": "pytest_ddl.bench.records",
    "Launch": "pytest_ddl.bench.records",
    "Matrix": "pytest_ddl.bench.matrix",
    "RankTiming": "pytest_ddl.bench.records",
    "estimate": "pytest_ddl.bench.metrics",
    "measure": "pytest_ddl.bench.matrix",
    "measure_collectives": "pytest_ddl.bench.collectives",
    "steps_to_target": "pytest_ddl.bench.training_to_target",
}

__all__ = [
    "METRICS",
    "BenchSpec",
    "Counters",
    "EnergyReading",
    "Launch",
    "Matrix",
    "RankTiming",
    "estimate",
    "measure",
    "measure_collectives",
    "steps_to_target",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
