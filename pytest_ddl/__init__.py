"""pytest-ddl: test whether distributed TensorFlow training is correct and fast.

The public names are loaded on first use, so importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddl.lazy import loaded_on_use

if TYPE_CHECKING:
    from pytest_ddl.cluster.cluster import ClusterError
    from pytest_ddl.cluster.explain import RankError
    from pytest_ddl.cluster.handle import ClusterHandle
    from pytest_ddl.cluster.ship import ShippingError
    from pytest_ddl.cluster.worker import current_rank, current_strategy
    from pytest_ddl.comparisons import Equivalence, FitEquivalence, ScriptEquivalence
    from pytest_ddl.equivalence.checks.registry import Check
    from pytest_ddl.equivalence.evidence.tolerance import Tolerance
    from pytest_ddl.equivalence.findings import CheckResult, Finding, Outcome
    from pytest_ddl.equivalence.roles import Role
    from pytest_ddl.equivalence.runs.question import ArgumentError
    from pytest_ddl.equivalence.verdict.report import DivergenceError, Report
    from pytest_ddl.faults.api import check_training
    from pytest_ddl.faults.rank.fault import Fault
    from pytest_ddl.faults.report import FaultReport, RecoveryError
    from pytest_ddl.faults.sweep import Sweep
    from pytest_ddl.guarding.guard import Guard, GuardError, guard
    from pytest_ddl.records import TrainingRecord
    from pytest_ddl.training.run import Run

__version__ = "0.1.0"

_HOMES = {
    "ArgumentError": "pytest_ddl.equivalence.runs.question",
    "Check": "pytest_ddl.equivalence.checks.registry",
    "CheckResult": "pytest_ddl.equivalence.findings",
    "ClusterError": "pytest_ddl.cluster.cluster",
    "ClusterHandle": "pytest_ddl.cluster.handle",
    "DivergenceError": "pytest_ddl.equivalence.verdict.report",
    "Equivalence": "pytest_ddl.comparisons",
    "Fault": "pytest_ddl.faults.rank.fault",
    "FaultReport": "pytest_ddl.faults.report",
    "Finding": "pytest_ddl.equivalence.findings",
    "FitEquivalence": "pytest_ddl.comparisons",
    "Guard": "pytest_ddl.guarding.guard",
    "GuardError": "pytest_ddl.guarding.guard",
    "Outcome": "pytest_ddl.equivalence.findings",
    "RankError": "pytest_ddl.cluster.explain",
    "RecoveryError": "pytest_ddl.faults.report",
    "Report": "pytest_ddl.equivalence.verdict.report",
    "Role": "pytest_ddl.equivalence.roles",
    "Run": "pytest_ddl.training.run",
    "ScriptEquivalence": "pytest_ddl.comparisons",
    "ShippingError": "pytest_ddl.cluster.ship",
    "Sweep": "pytest_ddl.faults.sweep",
    "Tolerance": "pytest_ddl.equivalence.evidence.tolerance",
    "TrainingRecord": "pytest_ddl.records",
    "check_training": "pytest_ddl.faults.api",
    "current_rank": "pytest_ddl.cluster.worker",
    "current_strategy": "pytest_ddl.cluster.worker",
    "guard": "pytest_ddl.guarding.guard",
}

__all__ = [
    "ArgumentError",
    "Check",
    "CheckResult",
    "ClusterError",
    "ClusterHandle",
    "DivergenceError",
    "Equivalence",
    "Fault",
    "FaultReport",
    "Finding",
    "FitEquivalence",
    "Guard",
    "GuardError",
    "Outcome",
    "RankError",
    "RecoveryError",
    "Report",
    "Role",
    "Run",
    "ScriptEquivalence",
    "ShippingError",
    "Sweep",
    "Tolerance",
    "TrainingRecord",
    "check_training",
    "current_rank",
    "current_strategy",
    "guard",
]

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES, "__version__")
