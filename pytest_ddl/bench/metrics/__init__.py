"""Metrics of launches: formulas with their sources, listed in one registry.

>>> from pytest_ddl.bench.metrics import METRICS, estimate
>>> METRICS["throughput"].dual
'seconds_per_1k_examples'
"""

from __future__ import annotations

from pytest_ddl.bench.metrics.absent import NoNumberError
from pytest_ddl.bench.metrics.estimates import Estimate, baseline_of, estimate, interval, scaling_names
from pytest_ddl.bench.metrics.registry import METRICS, Metric, metric

__all__ = [
    "METRICS",
    "Estimate",
    "Metric",
    "NoNumberError",
    "baseline_of",
    "estimate",
    "interval",
    "metric",
    "scaling_names",
]
