"""Counters of the work of a step, taken from the graphs that ran, and their comparison; exact on any machine.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddl.lazy import loaded_on_use

if TYPE_CHECKING:
    from pytest_ddl.bench.counters.changes import CounterChange, compare, compare_launches, uncounted
    from pytest_ddl.bench.launching.counting import reduction_ratio

_HOMES = {
    "CounterChange": "pytest_ddl.bench.counters.changes",
    "compare": "pytest_ddl.bench.counters.changes",
    "compare_launches": "pytest_ddl.bench.counters.changes",
    "reduction_ratio": "pytest_ddl.bench.launching.counting",
    "uncounted": "pytest_ddl.bench.counters.changes",
}

__all__ = ["CounterChange", "compare", "compare_launches", "reduction_ratio", "uncounted"]

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES)
