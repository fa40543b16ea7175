"""Reasons why a report cannot pass because a declared difference leaves something uncompared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.verdict.root_causes import DATA, NUMERIC, WEIGHTS

_BY_ELIMINATION = ("batch-coupled-loss",)
"""Causes that are named because nothing else fits. The size of their effect is unknown."""
_COMPARED = (*NUMERIC, "STATE-EQ", "METRIC-EQ", "MOVES", "DATA-COVER")


def behind(found: Sequence[Finding], declared: Sequence[Finding]) -> Iterator[str]:
    """Yield reasons why a defect may hide behind findings that ``expect=`` declares and no other run verified."""
    for cause in dict.fromkeys(finding.cause for finding in declared):
        ours = [finding for finding in declared if finding.cause == cause]
        of_weights = sorted((f for f in ours if f.check in WEIGHTS), key=lambda f: f.step or 0)
        first = [f for f in of_weights if f.step == of_weights[0].step]
        if first and first[0].step == 0:
            yield f"{first[0].check}: {cause} is declared, and no step that begins with other weights can be compared"
        elif first and not any(is_recomputed(f) for f in first):
            yield (
                f"{first[0].check}: {cause} is declared in step {first[0].step}, and nothing recomputes the size of "
                "its effect, so that a second defect behind it would not be seen"
            )
        elif first and any(_is_of_step(f, first[0]) for f in found):
            yield (
                f"STATE-EQ: {cause} is declared in step {first[0].step}, and whether the state that differs then "
                "follows from it is not known"
            )
        for finding in ours:
            if finding.check == "STATE-EQ" and cause == "state-not-aggregated" and not finding.exact:
                yield (
                    f"STATE-EQ: {cause} is declared, and nothing shows that {finding.variable} differs from one device "
                    "for this reason"
                )
        for finding in ours:
            if finding.check in (*DATA, "RESUME", "NONFINITE", "REPLICA-EQ") and _hides(finding, found):
                at = f" in step {finding.step}" if finding.step else ""
                yield (
                    f"{finding.check}: {cause} is declared{at}, and numbers that differ from there on cannot be "
                    "compared with one device"
                )
                break


def is_recomputed(finding: Finding) -> bool:
    """Return whether the declared cause explains the whole difference, or is tolerated as an approximation."""
    return finding.approximation or (finding.exact and finding.cause not in _BY_ELIMINATION)


def _is_of_step(state: Finding, weights: Finding) -> bool:
    return state.check == "STATE-EQ" and state.cause is None and state.step == weights.step


def _hides(declared: Finding, found: Sequence[Finding]) -> bool:
    """Return whether numbers differ that may or may not follow from a declared finding."""
    if declared.cause == "state-not-aggregated":
        return False
    return any(
        f is not declared
        and f.check in _COMPARED
        and f.cause != declared.cause
        and (f.step or 0) >= (declared.step or 0)
        for f in found
    )
