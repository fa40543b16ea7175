"""Join the comparisons that were repeated with high and with low random numbers into one verdict.

If random numbers are constant, a program skips some code, for example the other branch or the masked examples. The
second comparison runs that code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_ddl.equivalence.evidence.effective import moved
from pytest_ddl.equivalence.evidence.observe import of_kind
from pytest_ddl.equivalence.findings import WORST_FIRST, CheckResult, Doubt, Finding, Outcome
from pytest_ddl.equivalence.report import Report
from pytest_ddl.records import VariableKind


@dataclass(frozen=True)
class Level:
    """One repeated comparison, with the parts that were switched off in it."""

    report: Report
    off: tuple[str, ...]
    change: str
    """Description in words of how the programs were run."""

    @cached_property
    def moving(self) -> frozenset[int]:
        """Indices of the trainable variables that move on one device."""
        record = self.report.reference
        if record is None:
            return frozenset()
        steps = range(1, record.num_steps + 1)
        trainable = of_kind(record, VariableKind.TRAINABLE)
        return frozenset(v.index for v in trainable if any(moved(record, v, step) for step in steps))

    def results(self) -> dict[str, CheckResult]:
        """Return the results by check. Each message says how the programs were run."""
        return {result.check: self._with_change(result) for result in self.report.results}

    def _with_change(self, result: CheckResult) -> CheckResult:
        found = tuple(replace(f, message=f"with {self.change}: {f.message}") for f in result.findings)
        return replace(result, reason=f"{result.reason} (with {self.change})", findings=found)


def joined(levels: Sequence[Level], check: str) -> CheckResult | None:
    """Join the results of a check: the findings of all levels, otherwise a doubt that no other level resolves."""
    given = [(level, level.results()[check]) for level in levels if level.report.result(check) is not None]
    left = [(level, result) for level, result in given if not _is_settled(level, check, levels)]
    if not left:
        return None
    _level, first = min(left, key=lambda pair: (WORST_FIRST.index(pair[1].outcome), -len(pair[0].moving)))
    found: list[Finding] = []
    for _level, result in given:
        known = {(finding.cause, finding.approximation) for finding in found}
        found += [finding for finding in result.findings if (finding.cause, finding.approximation) not in known]
    # A doubt that comes from replacing random numbers by a constant is no fault of the program.
    return replace(first, findings=tuple(found), in_program=False)


def doubts(level: Level, levels: Sequence[Level]) -> list[Doubt]:
    """Return why a level gives no verdict, without the checks that another level decides."""
    settled = {Doubt(r.check, r.reason) for r in level.report.results if _is_settled(level, r.check, levels)}
    return [doubt for doubt in level.report.doubts if doubt not in settled]


def most_informative(levels: Sequence[Level]) -> Level:
    """Return a level with findings if there is one, otherwise the level in which most variables move."""
    return max(levels, key=lambda level: (bool(level.report.findings), len(level.moving)))


def _is_settled(level: Level, check: str, levels: Sequence[Level]) -> bool:
    """Return whether another level decides what a check leaves open at this level.

    This holds only if all variables that move at this level move at the other one too. If a variable does not move, its
    update was not compared.
    """
    own = level.report.result(check)
    if own is None or own.outcome is not Outcome.INCONCLUSIVE:
        return False
    others = [(other, other.report.result(check)) for other in levels if other is not level]
    return any(
        result is not None and result.outcome in (Outcome.PASS, Outcome.FAIL) and level.moving <= other.moving
        for other, result in others
    )
