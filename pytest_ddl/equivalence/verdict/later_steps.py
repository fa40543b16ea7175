"""Steps after a declared difference: check that every update still comes from the gradients in the same way.

Weights that differ from one device cannot be compared with it any more. But the updates of the distributed run can
still be compared with the gradients that its own replicas computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_ddl.equivalence.diagnosis.candidates.parts import share_of
from pytest_ddl.equivalence.diagnosis.case import Case
from pytest_ddl.equivalence.evidence.effective import moved
from pytest_ddl.equivalence.evidence.observe import of_kind, shared_steps
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.evidence.used_rate import is_of_slots
from pytest_ddl.equivalence.findings import Doubt, Finding
from pytest_ddl.equivalence.roles import Role, Roles
from pytest_ddl.equivalence.verdict.behind import is_recomputed
from pytest_ddl.records import TrainingRecord, VariableKind


def unlike_before(
    reference: TrainingRecord,
    distributed: TrainingRecord,
    tolerance: Tolerance,
    excused: Sequence[Finding],
    roles: Roles,
) -> Iterator[Doubt]:
    """Yield a reason if steps after an excused difference of weights cannot be judged, or differ by something else.

    After a tolerated approximation, only steps that show something else are a reason.
    """
    last = shared_steps(reference, distributed)
    differing = [finding for finding in excused if roles.have(finding, Role.UPDATES) and is_recomputed(finding)]
    finding = min(differing, key=lambda f: f.step or 0, default=None)
    if finding is None or not finding.step or finding.step >= last:
        return
    first, cause = finding.step, finding.cause

    def share(step: int) -> float | None:
        found = share_of(Case(reference, distributed, tolerance, step))
        return found if found is not None and is_of_slots(distributed, step, tolerance) else None

    def is_lost(step: int) -> bool:
        weights = of_kind(reference, VariableKind.TRAINABLE)
        return any(moved(reference, weight, step) for weight in weights) and not any(
            moved(distributed, weight, step) for weight in weights
        )

    usual = share(first)
    if usual is None:
        if not finding.approximation:
            yield Doubt(
                finding.check,
                f"{cause} is excused in step {first}, but the steps after it cannot be compared: the update is not a "
                "plain sum of the gradients of the replicas",
            )
        return
    later = range(first + 1, last + 1)
    if finding.approximation:
        odd = next((step for step in later if share(step) not in (None, usual) or is_lost(step)), None)
    else:
        odd = next((step for step in later if share(step) != usual), None)
    if odd is not None:
        yield Doubt(
            finding.check,
            f"{cause} is excused in step {first}, and step {odd} has another difference: its update does not come from "
            "the gradients of the replicas as before",
        )
