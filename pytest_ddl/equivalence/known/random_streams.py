"""Recognize the random streams of Keras 3, whose seed generators give every replica the same seeds."""

from __future__ import annotations

from pytest_ddl.equivalence.checks.seed import ACROSS_REPLICAS
from pytest_ddl.equivalence.checks.seed import CHECK as SEED
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.findings import Finding


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
