"""Rules of the computation: batches that are too small for the fixed costs of a step."""

from __future__ import annotations

from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence
from pytest_ddl.bench.advice.rules.registry import RuleFinding, rule

HALF = 4 / 3
"""Gain of twice the batch at which fixed costs are half of a step: 2 (a + b) / (a + 2 b) with a = b."""


@rule(
    "small-batch",
    "compute",
    looks_at="step time with twice the batch, per example",
    applies_if="fixed costs take more than half of a step (gain above 4/3), and the gain is above the noise",
    expected="measured: 2 x step time / step time with twice the batch",
    change=(
        "take a larger batch: double it until a step takes twice as long, then tune the learning rate again "
        "(steps_to_target measures whether training needs as many examples)"
    ),
    source="Hockney and Jesshope 1981, Parallel Computers (half-performance length); Shallue et al. 2019, JMLR 20(112)",
    knob="batch",
    rank=2,
)
def small_batch(evidence: AdviceEvidence) -> RuleFinding | None:
    gain = evidence.helps("batch")
    if gain is None or gain.low <= HALF:
        return None
    return RuleFinding(f"with twice the batch, an example is {gain}: most of a step does not depend on its batch", gain)
