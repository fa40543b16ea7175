"""Benchmarks of distributed training: measure a training function and compute metrics from the result.

The names below are imported on first use, so that importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddl.lazy import loaded_on_use

if TYPE_CHECKING:
    from pytest_ddl.bench.collectives import measure_collectives
    from pytest_ddl.bench.launching.ranks import BenchError
    from pytest_ddl.bench.launching.records import BenchSpec, Counters, EnergyReading, Launch, RankTiming
    from pytest_ddl.bench.matrix import Matrix, measure
    from pytest_ddl.bench.metrics import METRICS, estimate
    from pytest_ddl.bench.training_to_target import steps_to_target

_HOMES = {
    "METRICS": "pytest_ddl.bench.metrics",
    "BenchError": "pytest_ddl.bench.launching.ranks",
    "BenchSpec": "pytest_ddl.bench.launching.records",
    "Counters": "pytest_ddl.bench.launching.records",
    "EnergyReading": "pytest_ddl.bench.launching.records",
    "Launch": "pytest_ddl.bench.launching.records",
    "Matrix": "pytest_ddl.bench.matrix",
    "RankTiming": "pytest_ddl.bench.launching.records",
    "estimate": "pytest_ddl.bench.metrics",
    "measure": "pytest_ddl.bench.matrix",
    "measure_collectives": "pytest_ddl.bench.collectives",
    "steps_to_target": "pytest_ddl.bench.training_to_target",
}

__all__ = [
    "METRICS",
    "BenchError",
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

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES)
