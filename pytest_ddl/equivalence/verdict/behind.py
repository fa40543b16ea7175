"""Reasons why a report cannot pass because a declared difference leaves something uncompared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_ddl.equivalence.findings import Doubt, Finding
from pytest_ddl.equivalence.roles import Role, Roles

_BY_ELIMINATION = ("batch-coupled-loss",)
"""Causes that are named because nothing else fits. The size of their effect is unknown."""
_CHANGE_LATER = Role.DATA | Role.RESUMPTION | Role.NONFINITE | Role.REPLICAS
"""Checks whose declared findings change all numbers after them."""


def behind(
    found: Sequence[Finding], declared: Sequence[Finding], tolerated: Sequence[Finding], roles: Roles
) -> Iterator[Doubt]:
    """Yield reasons why a defect may hide behind excused findings.

    :param declared: findings that ``expect=`` or a known behavior excuses and that no other run verified.
    :param tolerated: approximations of weights, verified or not.
    """
    yield from _states(found, [*declared, *tolerated], roles)
    yield from (
        Doubt(finding.check, f"{finding.cause} is tolerated, and nothing recomputes the size of its effect")
        for finding in found
        if finding.approximation and finding.cause == "mean-of-replica-means" and not finding.exact
    )
    for cause in dict.fromkeys(finding.cause for finding in declared):
        ours = [finding for finding in declared if finding.cause == cause]
        of_weights = sorted((f for f in ours if roles.have(f, Role.WEIGHTS)), key=lambda f: f.step or 0)
        first = [f for f in of_weights if f.step == of_weights[0].step]
        if first and first[0].step == 0:
            yield Doubt(
                first[0].check, f"{cause} is declared, and steps that begin with different weights cannot be compared"
            )
        elif first and not any(is_recomputed(f) for f in first):
            yield Doubt(
                first[0].check,
                f"{cause} is declared in step {first[0].step}, and nothing recomputes the size of its effect, so that "
                "a second defect behind it would not be seen",
            )
        for finding in ours:
            if roles.have(finding, Role.STATE) and cause == "state-not-aggregated" and not finding.exact:
                yield Doubt(
                    finding.check,
                    f"{cause} is declared, and nothing shows that {finding.variable} differs from one device for this "
                    "reason",
                )
        for finding in ours:
            if roles.have(finding, _CHANGE_LATER) and _hides(finding, found, roles):
                at = f" in step {finding.step}" if finding.step else ""
                yield Doubt(
                    finding.check,
                    f"{cause} is declared{at}, and numbers that differ from there on cannot be compared with one "
                    "device",
                )
                break


def _states(found: Sequence[Finding], excused: Sequence[Finding], roles: Roles) -> Iterator[Doubt]:
    """Yield states that differ in the step of an excused difference of weights, and are not recomputed from it."""
    of_weights = {finding.step: finding for finding in excused if roles.have(finding, Role.UPDATES)}
    for state in found:
        weights = of_weights.get(state.step)
        if weights is not None and roles.have(state, Role.STATE) and state.cause is None and not state.follows:
            yield Doubt(
                state.check,
                f"{weights.cause} is excused in step {state.step}, and it is not known whether {state.variable}, which "
                "differs in that step, follows from it",
            )


def is_recomputed(finding: Finding) -> bool:
    """Return whether the declared cause explains the whole difference, or is tolerated as an approximation."""
    return finding.approximation or (finding.exact and finding.cause not in _BY_ELIMINATION)


def _hides(declared: Finding, found: Sequence[Finding], roles: Roles) -> bool:
    """Return whether a later finding may, or may not, be a consequence of a declared one."""
    if declared.cause == "state-not-aggregated":
        return False
    return any(
        f is not declared
        and roles.have(f, Role.FOLLOWING | Role.EXAMPLES)
        and f.cause != declared.cause
        and (f.step or 0) >= (declared.step or 0)
        for f in found
    )
