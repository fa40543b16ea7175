"""What checks say: a finding, the outcome of one check, and the report of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from pytest_ddl.records import TrainingRecord


class Symptom(str, Enum):
    """How a defect shows."""

    SILENT = "silent"
    CRASH = "crash"
    HANG = "hang"
    SLOW = "slow"


class Outcome(str, Enum):
    """The outcome of one check. Only PASS and NOT_APPLICABLE let a report pass."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Finding:
    """One difference, where it is, how large against which bound, and why.

    ``cause`` is an id of :mod:`pytest_ddl.checks.causes` or ``None`` where no candidate
    reproduces what was observed. ``error`` and ``tolerance`` are absolute and in the
    variable's own unit. ``approximation`` marks a difference that only fails in strict mode.
    """

    check: str
    message: str
    cause: str | None = None
    symptom: str = Symptom.SILENT.value
    step: int | None = None
    variable: str | None = None
    replica: int | None = None
    worker: int | None = None
    error: float | None = None
    tolerance: float | None = None
    fix: str | None = None
    observed: str | None = None
    """The value seen under the strategy, short."""
    expected: str | None = None
    """The value seen on one device, short."""
    origin: str | None = None
    """Where the bound comes from."""
    evidence: str | None = None
    """What the cause was concluded from: the recomputation and how closely it fits."""
    also: tuple[str, ...] = ()
    """Other causes that fit as well."""
    approximation: bool = False
    details: str | None = None
    """Longer text shown below the finding: a traceback, a rank's output, stacks."""
    source: str | None = None
    """Where the program raised the exception or waits: file, line, function and the text of the line."""
    exact: bool = True
    """False where the cause was not recomputed: the records are merely consistent with it."""
    verified: bool = False
    """Whether both runs are equal without what this tolerates, so that nothing else lies behind it."""
    ratio: float | None = None
    """|change under the strategy| / |change on one device| of the variable in this step."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check with its findings, or the reason why there are none."""

    check: str
    outcome: Outcome
    reason: str = ""
    """For a pass: what was compared; else why it does not apply or could not decide."""
    findings: tuple[Finding, ...] = ()
    follows: bool = False
    """Whether nothing could be decided only because weights differ, or because the run failed before."""
    details: str | None = None
    """Longer text that explains why the check could not decide: a traceback."""
    unjudged: tuple[str, ...] = ()
    """What was recorded on both sides and not compared, each with its reason; the rest may have passed."""
    in_program: bool = False
    """Whether the program is the reason why the check could not decide, so that its author can change that."""


WORST_FIRST = (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.NOT_APPLICABLE)
"""Outcomes of one check in several comparisons: the first that occurs stands for all."""


@dataclass(frozen=True)
class Report:
    """The verdict of comparing one distributed run with its single-device reference."""

    strategy: str
    results: tuple[CheckResult, ...]
    findings: list[Finding]
    """Worst first; expected and approximate ones are not in here."""
    reference: TrainingRecord | None
    distributed: TrainingRecord | None
    expected: tuple[tuple[Finding, str], ...] = ()
    """Findings that ``expect=`` declares, each with the reason given."""
    expectations: Mapping[str, str] = field(default_factory=dict)
    """All that ``expect=`` declares: cause id -> reason."""
    approximations: tuple[Finding, ...] = ()
    unused_expectations: Mapping[str, str] = field(default_factory=dict)
    inconclusive: tuple[str, ...] = ()
    """Why no verdict could be given; empty for a pass or a fail."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    strict: bool = False
    """Whether approximations are findings."""
    neutralised: tuple[str, ...] = ()
    """What had to be switched off for the two runs to be comparable; see :mod:`pytest_ddl.training.neutral`."""

    @property
    def verdict(self) -> str:
        """``"fail"``, ``"inconclusive"`` or ``"pass"``; a report of no comparison never passes."""
        if self.findings:
            return "fail"
        compared = any(r.outcome is Outcome.PASS for r in self.results) and self.expected_end is None
        return "pass" if compared and not self.inconclusive else "inconclusive"

    @property
    def passed(self) -> bool:
        """Whether everything was compared that could be, and nothing is wrong."""
        return self.verdict == "pass"

    def __bool__(self) -> bool:
        """Return ``passed``, so that ``assert check_training(...)`` does what it reads like."""
        return self.passed

    def __repr__(self) -> str:
        from pytest_ddl.report.text import headline

        return f"<Report {self.verdict}: {headline(self)} (str(report) shows all)>"

    @property
    def expected_end(self) -> str | None:
        """The cause and reason of a crash or hang that ``expect=`` declares: it ended the run, nothing was compared."""
        ends = [(f, why) for f, why in self.expected if f.symptom in (Symptom.CRASH.value, Symptom.HANG.value)]
        return f"{ends[0][0].cause}: {ends[0][1]}" if ends and not self.findings else None

    @property
    def program_reasons(self) -> tuple[str, ...]:
        """Why there is no verdict, as far as the program is the reason; a test fails with them."""
        undecided = [r for r in self.results if r.outcome is Outcome.INCONCLUSIVE and r.in_program]
        return tuple(f"{r.check}: {r.reason}" for r in undecided) if self.verdict == "inconclusive" else ()

    @property
    def comparable(self) -> bool:
        """False where there was nothing to compare with: the program fails on one device, or records nothing there."""
        reference = self.reference
        return reference is not None and not reference.errors and reference.num_steps > 0 and bool(reference.variables)

    def result(self, check: str) -> CheckResult | None:
        """Return the result of a check, or ``None`` if it was not run."""
        return next((result for result in self.results if result.check == check), None)

    def merged(self, again: Report, check: str, what: str) -> Report:
        """Add the verdict of a repeated comparison, under the name of the check that it was repeated for.

        Nothing of the repeated comparison is lost: findings, tolerated findings and reasons for doubt are added, and
        the check has the worse of both outcomes. ``what`` says how the programs were run.
        """
        declared: dict[str | None, str] = {finding.cause: why for finding, why in self.expected}
        declared.update(self.unused_expectations)
        tolerated = {finding.cause for finding in self.approximations}

        def told(finding: Finding) -> Finding:
            return replace(finding, check=check, message=f"{what}: {finding.message}")

        found = [told(finding) for finding in again.findings]
        excused = [(finding, declared[finding.cause]) for finding in found if finding.cause in declared]
        excused += [(told(finding), why) for finding, why in again.expected]
        findings = [finding for finding in found if finding.cause not in declared]
        approximations = [told(finding) for finding in again.approximations if finding.cause not in tolerated]
        doubts = [f"{check}, {what}: {why.removeprefix(f'{check}: ')}" for why in again.inconclusive]
        used = {finding.cause for finding, _why in excused}
        known = {finding.cause for finding, _why in self.expected}
        own = again.result(check)
        outcome = Outcome.FAIL if findings else Outcome.INCONCLUSIVE if doubts else None
        outcome = outcome or (own.outcome if own and not own.findings else Outcome.PASS)
        reason = own.reason if own else again.verdict
        if findings or doubts:
            reason = findings[0].message.removeprefix(f"{what}: ") if findings else again.inconclusive[0]
        result = CheckResult(check, outcome, f"{what}: {reason}", (*found, *approximations))
        return replace(
            self,
            results=tuple(_worse(known, result) if known.check == check else known for known in self.results),
            findings=[*self.findings, *findings],
            approximations=(*self.approximations, *approximations),
            expected=(*self.expected, *(pair for pair in excused if pair[0].cause not in known)),
            unused_expectations={
                cause: why
                for cause, why in self.unused_expectations.items()
                if cause in again.unused_expectations and cause not in used
            },
            inconclusive=(*self.inconclusive, *doubts),
            seconds=self.seconds + again.seconds,
        )

    def __str__(self) -> str:
        from pytest_ddl.report.text import render_report

        return render_report(self)


def _worse(plain: CheckResult, again: CheckResult) -> CheckResult:
    """Return one result for a check that was run twice."""
    outcome = min(plain.outcome, again.outcome, key=WORST_FIRST.index)
    told = plain.outcome is not Outcome.NOT_APPLICABLE
    reason = f"{again.reason}; {plain.reason}" if told else again.reason
    return replace(plain, outcome=outcome, reason=reason, findings=(*plain.findings, *again.findings))


class DivergenceError(AssertionError):
    """Distributed training does not match single-device training; ``report`` says how and why."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


# Its public name: that is what pytest prints in front of every failure.
DivergenceError.__module__ = "pytest_ddl"
