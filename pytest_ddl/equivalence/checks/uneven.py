"""UNEVEN-EQ: steps whose batch does not split evenly over the replicas equal one device."""

from __future__ import annotations

from pytest_ddl.equivalence.checks.step_equality import explain
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.observe import is_uneven, sizes
from pytest_ddl.equivalence.findings import CheckResult
from pytest_ddl.equivalence.outcomes import failed, inconclusive, no_steps, not_applicable, not_observed, passed
from pytest_ddl.hints import Hint
from pytest_ddl.notes import NoteKind

CHECK = "UNEVEN-EQ"


def check_uneven(comparison: Comparison) -> CheckResult:
    """Judge only the steps in which replicas had different numbers of examples, or none."""
    reference, distributed = comparison.records
    steps = comparison.steps
    if steps == 0:
        return no_steps(CHECK, distributed, reference)
    if distributed.num_replicas == 1:
        return not_applicable(CHECK, "a single replica")
    if not any(sizes(distributed, step) for step in range(1, steps + 1)):
        return not_applicable(CHECK, not_observed(distributed, "batch sizes were", NoteKind.BATCHES))
    uneven = [step for step in range(1, steps + 1) if is_uneven(distributed, step)]
    if not uneven:
        return not_applicable(CHECK, "every batch split evenly over the replicas", Hint.ONLY_CHECK(CHECK))
    differing = comparison.differences()
    if differing.step is not None and differing.step in uneven:
        finding = explain(CHECK, comparison, differing.first)
        parts = list(sizes(distributed, differing.step).values())
        return failed(CHECK, [finding], f"step {differing.step} with {parts} examples: {finding.message}")
    judged = [step for step in uneven if differing.step is None or step < differing.step]
    if not judged:
        why = f"the weights differ before the first uneven batch (step {uneven[0]})"
        return inconclusive(CHECK, why, follows=True)
    if differing.undecided is not None or differing.not_finite is not None:
        return inconclusive(CHECK, "see STEP-EQ: the bound is too wide, or one device is not finite")
    return passed(CHECK, f"{len(judged)} uneven step(s)")
