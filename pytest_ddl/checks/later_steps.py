"""Steps after a declared difference: does every update still come from the gradients in the same way?

Weights that differ from one device cannot be compared with it any more. Updates of the distributed run can still be
compared with the gradients that its own replicas computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_ddl.checks.behind import is_recomputed
from pytest_ddl.checks.candidates.parts import share_of
from pytest_ddl.checks.case import Case
from pytest_ddl.checks.findings import Finding
from pytest_ddl.checks.observe import shared_steps
from pytest_ddl.checks.tolerance import Tolerance
from pytest_ddl.checks.used_rate import is_of_slots
from pytest_ddl.records import TrainingRecord

_OF_WEIGHTS = ("STEP-EQ", "UNEVEN-EQ")


def unlike_before(
    reference: TrainingRecord, distributed: TrainingRecord, tolerance: Tolerance, declared: Sequence[Finding]
) -> Iterator[str]:
    """Yield a reason if the steps after a declared difference of weights cannot be judged by its formula."""
    last = shared_steps(reference, distributed)
    differing = [f for f in declared if f.check in _OF_WEIGHTS and f.step and is_recomputed(f) and not f.approximation]
    finding = min(differing, key=lambda f: f.step or 0, default=None)
    if finding is None or finding.step is None or finding.step >= last:
        return
    first, cause = finding.step, finding.cause

    def share(step: int) -> float | None:
        found = share_of(Case(reference, distributed, tolerance, step))
        return found if found is not None and is_of_slots(distributed, step, tolerance) else None

    usual = share(first)
    if usual is None:
        yield (
            f"STEP-EQ: {cause} is declared in step {first}, and the steps after it cannot be compared: the update "
            "is not a plain sum of the gradients of the replicas"
        )
        return
    odd = next((step for step in range(first + 1, last + 1) if share(step) != usual), None)
    if odd is not None:
        yield (
            f"STEP-EQ: {cause} is declared in step {first}, and step {odd} differs by something else: its update is "
            "not made of the gradients of the replicas as before"
        )
