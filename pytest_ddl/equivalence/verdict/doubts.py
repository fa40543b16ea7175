"""Reasons why a report cannot pass: what no check decided, and what was recorded and not compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_ddl.equivalence.checks.uneven import CHECK as UNEVEN
from pytest_ddl.equivalence.evidence.observe import shared_steps, sizes
from pytest_ddl.equivalence.findings import CheckResult, Doubt, Finding, Outcome
from pytest_ddl.equivalence.ledger import HARMLESS
from pytest_ddl.equivalence.roles import Role, Roles
from pytest_ddl.records import TrainingRecord

_SHOWN = 3


def undecided(
    results: Sequence[CheckResult], excused: Sequence[Finding], distributed: TrainingRecord, roles: Roles
) -> Iterator[Doubt]:
    """Yield why a verdict is missing, without the doubts that follow from a tolerated finding.

    A check is excused only if weights differ or the run failed earlier. Doubts of other kinds stay.
    """
    weights_differ = any(result.outcome is Outcome.FAIL and roles.have(result, Role.UPDATES) for result in results)
    crashed = any(roles.have(finding, Role.RUN) for finding in excused)

    def follows(result: CheckResult) -> bool:
        if crashed and (result.follows or distributed.num_steps == 0):
            return True
        return result.follows and bool(excused) and weights_differ

    for result in results:
        if result.outcome is Outcome.INCONCLUSIVE and not follows(result):
            yield Doubt(result.check, result.reason)


def uncompared(results: Sequence[CheckResult]) -> Iterator[Doubt]:
    """Yield the quantities that were recorded and not compared, and whose reason may hide a defect."""
    for result in results:
        left = [item for item in result.unjudged if item.reason not in HARMLESS]
        if left:
            more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
            yield Doubt(result.check, f"not compared: {', '.join(map(str, left[:_SHOWN]))}{more}")


def later(
    reference: TrainingRecord, distributed: TrainingRecord, unverified: Sequence[Finding], roles: Roles
) -> Iterator[Doubt]:
    """Yield a doubt if steps follow an excused difference of weights: nothing compares them with one device."""
    of_weights = [f for f in unverified if roles.have(f, Role.UPDATES | Role.REPLICAS) and f.step is not None]
    first = min(of_weights, key=lambda finding: finding.step or 0, default=None)
    if first is None or not first.step or first.cause == "state-not-aggregated":
        return  # weights that differ before the first step have a doubt of their own
    last = shared_steps(reference, distributed)
    if first.step < last:
        yield Doubt(
            first.check,
            f"{first.cause} is excused in step {first.step}, and the steps after it, up to step {last}, cannot be "
            "compared with one device, because they begin with other weights",
        )


def unseen(distributed: TrainingRecord, approximations: Sequence[Finding]) -> Iterator[Doubt]:
    """Yield empty replicas after an approximation, because their known defect cannot be judged there."""
    first = min((finding.step or 0 for finding in approximations), default=None)
    for step in range((first or 0) + 1, distributed.num_steps + 1):
        if first is not None and 0 in sizes(distributed, step).values():
            yield Doubt(
                UNEVEN,
                f"step {step} leaves a replica empty, and weights are not comparable after the approximation in step "
                f"{first}; test a batch with fewer examples than replicas separately",
            )
            return
