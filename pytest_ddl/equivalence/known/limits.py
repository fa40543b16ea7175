"""Recognize runs that end because the framework cannot do something under the strategy."""

from __future__ import annotations

from pytest_ddl.equivalence.checks.run import CHECK as RUN
from pytest_ddl.equivalence.checks.run import is_consequence
from pytest_ddl.equivalence.diagnosis.limitations import Limitation, known_limitation
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.known.behavior import Recognize


def is_limit(limitation: Limitation) -> Recognize:
    """Return a function that says whether every rank that failed by itself failed because of a limitation."""

    def recognize(finding: Finding, comparison: Comparison) -> bool:
        reference, distributed = comparison.records
        errors = [error for _rank, error in distributed.errors if not is_consequence(error)]
        known = bool(errors) and all(known_limitation(error) is limitation for error in errors)
        # What also raises under a strategy with one device does not come from the replicas.
        return finding.check == RUN and known and not reference.errors and reference.refused is None

    return recognize
