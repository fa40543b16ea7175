"""BATCH: in each step the replicas' batches add up to the global batch."""

from __future__ import annotations

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.evidence.observe import shared_steps, sizes
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.findings import CheckResult, Finding
from pytest_ddl.equivalence.outcomes import failed, no_steps, not_applicable, not_observed, passed
from pytest_ddl.records import TrainingRecord

CHECK = "BATCH"


def check_batch(
    reference: TrainingRecord,
    distributed: TrainingRecord,
    tolerance: Tolerance,
) -> CheckResult:
    """Compare the number of examples per step with one device, or else with the declared global batch size."""
    steps = shared_steps(reference, distributed)
    if steps == 0:
        return no_steps(CHECK, distributed)
    compared = 0
    for step in range(1, steps + 1):
        found, expected = sizes(distributed, step), sum(sizes(reference, step).values())
        if not expected and not any(found.values()):
            continue  # the step makes its own data
        declared = distributed.global_batch_size
        if not expected and declared and not (step == steps and sum(found.values()) < declared):
            expected = declared
        if not found or not expected:
            continue
        compared += 1
        if sum(found.values()) != expected:
            return failed(CHECK, [_finding(step, found, expected)])
    if compared == 0:
        return not_applicable(CHECK, not_observed(distributed, "batch sizes were"))
    return passed(CHECK, f"{compared} global batches")


def _finding(step: int, found: dict[int, int], expected: int) -> Finding:
    total = sum(found.values())
    parts = ", ".join(f"replica {replica}: {size}" for replica, size in sorted(found.items()))
    return Finding(
        check=CHECK,
        message=f"the global batch of step {step} has {total} examples instead of {expected}",
        cause="global-batch-wrong",
        step=step,
        error=float(abs(total - expected)),
        fix=fix_of("global-batch-wrong"),
        observed=f"{total} ({parts})",
        expected=str(expected),
        evidence=f"{total / expected:.4g} x the expected number of examples",
    )
