"""Recognize batch normalization of Keras 3, whose replicas keep moving statistics of their own."""

from __future__ import annotations

from pytest_ddl.equivalence.checks.replica_equality import CHECK as REPLICA_EQ
from pytest_ddl.equivalence.checks.state import CHECK as STATE_EQ
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.moving_statistics import are_of_replicas, is_moving_statistic
from pytest_ddl.equivalence.findings import Finding


def is_of_replicas(finding: Finding, comparison: Comparison) -> bool:
    """Return whether only moving statistics of Keras differ, and each replica has those of its own examples.

    What else differs is found by a comparison with batch normalization synchronized, also of these statistics.
    """
    distributed = comparison.distributed
    if finding.check not in (REPLICA_EQ, STATE_EQ) or not finding.step or distributed.num_replicas < 2:
        return False
    of_keras = is_moving_statistic(distributed, finding.variable or "")
    return of_keras and are_of_replicas(comparison, finding.step)
