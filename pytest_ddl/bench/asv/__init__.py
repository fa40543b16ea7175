"""Benchmarks of a training function for asv: declare them in one line, and run them commit by commit.

The names below are imported on first use, because asv imports this package in every process that it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddl.lazy import loaded_on_use

if TYPE_CHECKING:
    from pytest_ddl.bench.asv.suite import is_quick, training_suite

_HOMES = {"is_quick": "pytest_ddl.bench.asv.suite", "training_suite": "pytest_ddl.bench.asv.suite"}

__all__ = ["is_quick", "training_suite"]

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES)
