"""pytest-ddl: test whether distributed TensorFlow training is correct and fast.

The public names are loaded on first use, so importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddl.lazy import loaded_on_use

if TYPE_CHECKING:
    from pytest_ddl.cluster.cluster import ClusterError
    from pytest_ddl.cluster.explain import RankError
    from pytest_ddl.cluster.ship import ShippingError
    from pytest_ddl.cluster.worker import current_rank, current_strategy
    from pytest_ddl.equivalence.findings import Finding
    from pytest_ddl.equivalence.report import DivergenceError, Report
    from pytest_ddl.equivalence.runs.comparer import check_training

__version__ = "0.1.0"

_HOMES = {
    "ClusterError": "pytest_ddl.cluster.cluster",
    "DivergenceError": "pytest_ddl.equivalence.report",
    "Finding": "pytest_ddl.equivalence.findings",
    "RankError": "pytest_ddl.cluster.explain",
    "Report": "pytest_ddl.equivalence.report",
    "ShippingError": "pytest_ddl.cluster.ship",
    "check_training": "pytest_ddl.equivalence.runs.comparer",
    "current_rank": "pytest_ddl.cluster.worker",
    "current_strategy": "pytest_ddl.cluster.worker",
}

__all__ = [
    "ClusterError",
    "DivergenceError",
    "Finding",
    "RankError",
    "Report",
    "ShippingError",
    "check_training",
    "current_rank",
    "current_strategy",
]

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES, "__version__")
