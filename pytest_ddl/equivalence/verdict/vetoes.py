"""Take a cause back if another check of the same report contradicts it: no cause is better than a wrong one.

A veto changes the name of a difference, never whether there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from pytest_ddl.equivalence.checks.clip import CHECK as CLIP
from pytest_ddl.equivalence.checks.loss import CHECK as LOSS_EQ
from pytest_ddl.equivalence.evidence.observe import combines, is_uneven, sizes
from pytest_ddl.equivalence.findings import CheckResult, Finding, Grounds, Outcome
from pytest_ddl.equivalence.roles import Role, Roles
from pytest_ddl.records import TrainingRecord


@dataclass(frozen=True)
class Evidence:
    """Results and records of one comparison, from which a veto is read."""

    results: Sequence[CheckResult]
    reference: TrainingRecord
    distributed: TrainingRecord
    roles: Roles

    def passed(self, role: Role) -> str | None:
        """Return the name of a check with the role that passed, if none with it found something."""
        ours = [result for result in self.results if self.roles.have(result, role)]
        if any(result.outcome is not Outcome.PASS for result in ours):
            return None
        return ours[0].check if ours else None


Veto = Callable[[Finding, Evidence], str | None]


def _every_batch_is_even(finding: Finding, evidence: Evidence) -> str | None:
    steps = range(1, min(finding.step or 0, evidence.distributed.num_steps) + 1)
    observed = [step for step in steps if sizes(evidence.distributed, step)]
    if not observed or any(is_uneven(evidence.distributed, step) for step in observed):
        return None
    return "the replicas had equal numbers of examples in every step up to this one"


def _no_replica_is_empty(finding: Finding, evidence: Evidence) -> str | None:
    steps = range(1, min(finding.step or 0, evidence.distributed.num_steps) + 1)
    observed = [found for step in steps if (found := sizes(evidence.distributed, step))]
    if not observed or any(0 in found.values() for found in observed):
        return None
    return "every replica had examples in every step up to this one"


def _replicas_agree(finding: Finding, evidence: Evidence) -> str | None:
    check = evidence.passed(Role.REPLICAS)
    return f"{check} passes: all copies of every variable are equal" if check else None


def _guess_although_replicas_agree(finding: Finding, evidence: Evidence) -> str | None:
    # Variables that combine what the replicas assign agree whatever the replicas did.
    combined = any(v.name == finding.variable and combines(v) for v in evidence.distributed.variables)
    return None if finding.exact or combined else _replicas_agree(finding, evidence)


def _slots_agree(finding: Finding, evidence: Evidence) -> str | None:
    check = evidence.passed(Role.SLOTS) if evidence.roles.have(finding, Role.UPDATES) else None
    return f"{check} passes: counters and slots of the optimizer are those of one device" if check else None


def _everything_moves(finding: Finding, evidence: Evidence) -> str | None:
    check = evidence.passed(Role.MOTION)
    return f"{check} passes: the variable moves in other steps" if check else None


def _limits_are_obeyed(finding: Finding, evidence: Evidence) -> str | None:
    passes = any(result.check == CLIP and result.outcome is Outcome.PASS for result in evidence.results)
    return f"{CLIP} passes: the limit acts on the whole gradient" if passes and not finding.exact else None


def _nothing_was_drawn(finding: Finding, evidence: Evidence) -> str | None:
    ranks = (*evidence.reference.ranks, *evidence.distributed.ranks)
    if not ranks or not all(rank.draws_observed for rank in ranks):
        return None
    if any(step.draws for rank in ranks for step in rank.steps):
        return None
    return "the replica functions drew no random number"


def _weights_agree(finding: Finding, evidence: Evidence) -> str | None:
    check = evidence.passed(Role.UPDATES) if evidence.roles.have(finding, Role.LOSS | Role.METRICS) else None
    return f"{check} passes: the weights moved by the right gradient" if check else None


VETOES: tuple[tuple[tuple[str, ...], Veto], ...] = (
    (("mean-of-replica-means",), _every_batch_is_even),
    (("empty-replica",), _no_replica_is_empty),
    (("gradient-scaled-by-replica-count", "gradient-scaled-by-inverse-replica-count"), _weights_agree),
    (("gradient-not-aggregated", "non-finite-not-synchronised"), _guess_although_replicas_agree),
    (("replicas-diverged", "workers-diverged"), _replicas_agree),
    (("optimizer-state-mismatch",), _slots_agree),
    (("variable-did-not-move",), _everything_moves),
    (("gradient-clipped-before-aggregation", "clipping-lost"), _limits_are_obeyed),
    (("random-stream-differs-across-replicas", "random-stream-repeated-across-replicas"), _nothing_was_drawn),
)
"""Causes, and the function that says which observation contradicts them."""


def without_contradictions(
    findings: Sequence[Finding], declared: Collection[str], evidence: Evidence
) -> tuple[Finding, ...]:
    """Return the findings without causes that the rest of the report contradicts, or that only exclusion supports.

    A cause that ``expect=`` declares, or that is tolerated, keeps its name: the verdict depends on it.
    """
    return tuple(
        finding if finding.cause in declared or finding.approximation else _kept(finding, evidence)
        for finding in findings
    )


def _kept(finding: Finding, evidence: Evidence) -> Finding:
    also = tuple(cause for cause in finding.also if contradiction(replace(finding, cause=cause), evidence) is None)
    finding = replace(finding, also=also)
    why = contradiction(finding, evidence)
    if why is not None and finding.check == LOSS_EQ:
        # Whatever made it, the number that the program shows is wrong.
        return replace(_unnamed(finding, f"not {finding.cause}: {why}"), cause="reported-loss-wrong")
    if why is not None:
        return _unnamed(finding, f"not {finding.cause}: {why}")
    if finding.grounds is Grounds.EXCLUSION:
        return _unnamed(finding, f"{finding.cause} would fit, but nothing shows it")
    return finding


def contradiction(finding: Finding, evidence: Evidence) -> str | None:
    """Return the observation that contradicts the cause of a finding, or ``None``."""
    vetoes = [veto for causes, veto in VETOES if finding.cause in causes]
    return next((why for veto in vetoes if (why := veto(finding, evidence)) is not None), None)


def _unnamed(finding: Finding, why: str) -> Finding:
    text = "; ".join(part for part in (why, finding.evidence) if part)
    return replace(finding, cause=None, fix=None, evidence=text, exact=False, besides=())
