"""Find the root causes among findings, and their order. Consequences of an earlier cause are not reported again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_ddl.equivalence.checks.registry import ROLES
from pytest_ddl.equivalence.findings import Finding, Symptom
from pytest_ddl.equivalence.roles import Role, Roles
from pytest_ddl.equivalence.verdict.precedence import EXPLAINED, MUST_FOLLOW, UNSPECIFIC, decided

_BEFORE_A_STOP = Role.DATA | Role.GRADIENTS | Role.UPDATES | Role.REPLICAS
"""Checks whose findings about earlier steps come before an exception or a hang."""

_OF_THE_FORWARD_PASS = ("batch-coupled-loss", "replica-computes-otherwise")
"""Causes that say only that a replica computes something else, for example because it reads a wrong state."""


def root_causes(
    findings: Sequence[Finding],
    is_excused: Callable[[Finding], bool] = lambda _finding: False,
    roles: Roles = ROLES,
) -> list[Finding]:
    """Return one finding per root cause, the worst first: consequences of an earlier cause are dropped.

    An excused finding drops a finding that is not excused only if the second must follow from the first. Otherwise a
    declared difference would hide a second defect.
    """
    kept: list[Finding] = []
    verified: list[Finding] = []
    stops = [finding.step or 0 for finding in findings if roles.have(finding, Role.STOPPING)]
    fewer = [finding.step or 0 for finding in findings if finding.cause == "unequal-steps"]

    wrong_state = {f.step for f in findings if roles.have(f, Role.STATE) and f.exact and f.cause not in UNSPECIFIC}
    regrouped = [f.step or 0 for f in findings if f.cause is None and roles.have(f, Role.EXAMPLES)]

    def key(finding: Finding) -> tuple[int, float, int, int]:
        tier, step, vague, position = _rank(finding, roles, min(stops, default=0))
        if fewer and roles.have(finding, Role.LOSS | Role.METRICS) and step > 1:
            # Epochs of another length reset at another step what fit shows. In the first step none has ended.
            return tier, max(step, min(fewer) + 0.5), vague, position
        if finding.cause == "unequal-steps" and roles.have(finding, Role.BATCHES):
            # Shards of unequal lengths make other global batches before the shorter one ends.
            return tier, min([step, *regrouped]), vague, position
        if finding.step in wrong_state and finding.cause in _OF_THE_FORWARD_PASS and not finding.exact:
            # The forward pass may have read the state. Its own rule is known, and this cause is a guess.
            return tier, step, max(vague, 1), position
        return tier, step, vague, position

    for finding in sorted(findings, key=key):
        explained = any(
            decided(EXPLAINED, earlier, finding, roles)
            and (not is_excused(earlier) or is_excused(finding) or decided(MUST_FOLLOW, earlier, finding, roles))
            for earlier in (*kept, *verified)
        )
        if not explained:
            kept.append(finding)
        elif finding.verified:
            # It is not listed again, but it explains what else differs in its own step.
            verified.append(finding)
    return kept


def _rank(finding: Finding, roles: Roles, stopped: int) -> tuple[int, int, int, int]:
    """Return a sort key: first what stopped the run, then by step (specific causes and data first), then slowness.

    Wrong data and wrong weights of a step before the one in which the run stopped come first: they may be the reason.
    """
    tier = 2 if finding.symptom == Symptom.SLOW.value else 0 if roles.have(finding, Role.STOPPING) else 1
    if tier == 1 and roles.have(finding, _BEFORE_A_STOP) and (finding.step or 0) < stopped:
        tier = 0
    if roles.have(finding, Role.FILES):
        # Shared files damage what is read later. If a rank failed on the file, that is the reason.
        tier = 0 if finding.symptom == Symptom.CRASH.value else 2
    vague = 0 if roles.have(finding, Role.DATA) else (finding.cause in UNSPECIFIC) + (finding.cause is None)
    if vague == 1 and roles.have(finding, Role.LOSS | Role.METRICS):
        vague = 3  # a reported value says less than a weight whose cause is not known
    return tier, finding.step if finding.step is not None else 0, vague, roles.position(finding)
