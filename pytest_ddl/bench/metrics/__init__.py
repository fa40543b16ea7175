"""Metrics of launches: functions with their formulas and sources, listed in one registry.

>>> from pytest_ddl.bench.metrics import METRICS, estimate
>>> METRICS["throughput"].dual
'seconds_per_1k_examples'
"""

from __future__ import annotations

# Each module registers its metrics when it is imported. Tables list them in this order.
# isort: off
from pytest_ddl.bench.metrics import speed, of_pair, costs, communication, usl, batch_size, convergence  # noqa: F401

# isort: on
from pytest_ddl.bench.metrics.estimates import Estimate, baseline_of, estimate, interval
from pytest_ddl.bench.metrics.registry import METRICS, Column, Metric, NoNumberError, metric, metric_named

__all__ = [
    "METRICS",
    "Column",
    "Estimate",
    "Metric",
    "NoNumberError",
    "baseline_of",
    "estimate",
    "interval",
    "metric",
    "metric_named",
]
