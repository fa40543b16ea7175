"""Recognize limits of a framework, random streams and batch normalization of Keras 3; see :mod:`.catalogue`."""

from __future__ import annotations

from pytest_ddl.equivalence.checks.replica_equality import CHECK as REPLICA_EQ
from pytest_ddl.equivalence.checks.run import CHECK as RUN
from pytest_ddl.equivalence.checks.run import is_consequence
from pytest_ddl.equivalence.checks.seed import ACROSS_REPLICAS
from pytest_ddl.equivalence.checks.seed import CHECK as SEED
from pytest_ddl.equivalence.checks.state import CHECK as STATE_EQ
from pytest_ddl.equivalence.diagnosis.candidates.shared import draws_of
from pytest_ddl.equivalence.diagnosis.limitations import Limitation, known_limitation
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.moving_statistics import are_of_replicas, is_moving_statistic
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.known.behavior import Recognize
from pytest_ddl.records import TrainingRecord


def is_limit(limitation: Limitation) -> Recognize:
    """Return a function that says whether every rank that failed by itself failed because of a limitation."""

    def recognize(finding: Finding, comparison: Comparison) -> bool:
        reference, distributed = comparison.records
        errors = [(rank, error) for rank, error in distributed.errors if not is_consequence(error)]
        known = bool(errors) and all(known_limitation(e, rank.optimizers) is limitation for rank, e in errors)
        # What also raises under a strategy with one device does not come from the replicas.
        return finding.check == RUN and known and not reference.errors and reference.refused is None

    return recognize


def is_seed_generator(finding: Finding, comparison: Comparison) -> bool:
    """Return whether all operations that repeat are random functions of Keras that draw from its ``SeedGenerator``.

    A seed that the program gives as a number, and any random function of TensorFlow itself, is the program's own. What
    else differs is found by a comparison without random numbers.
    """
    distributed = comparison.distributed
    if finding.check != SEED or finding.cause != ACROSS_REPLICAS or not finding.operations:
        return False
    draws = [
        draw
        for rank in distributed.ranks
        for step in rank.steps
        for draw in step.draws
        if draw.position in finding.operations
    ]
    return bool(draws) and all(draw.generator for draw in draws)


def may_be_of_replicas(finding: Finding, distributed: TrainingRecord) -> bool:
    """Return whether moving statistics of Keras differ. Runs on each replica's examples show whether they should."""
    of_state = finding.check in (REPLICA_EQ, STATE_EQ) and distributed.num_replicas > 1
    return of_state and is_moving_statistic(distributed, finding.variable or "")


def is_of_replicas(finding: Finding, comparison: Comparison) -> bool:
    """Return whether only moving statistics of Keras differ, and each replica has those of its own examples.

    What else differs is found by a comparison with batch normalization synchronized, also of these statistics.
    """
    distributed = comparison.distributed
    if not finding.step or not may_be_of_replicas(finding, distributed):
        return False
    # If random numbers differ from one device, so do the statistics behind them, and no run can show whose they are.
    random = not distributed.neutralized and bool(draws_of(*comparison.records))
    return random or are_of_replicas(comparison, finding.step)
