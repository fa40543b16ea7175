"""Report of a comparison: the results of all checks, the findings that are left, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pytest_ddl.equivalence.checks.registry import ROLES
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.equivalence.expectations import Expectations
from pytest_ddl.equivalence.findings import WORST_FIRST, CheckResult, Doubt, Finding, Outcome, Symptom
from pytest_ddl.equivalence.known.behavior import KnownBehavior
from pytest_ddl.equivalence.known.catalogue import KNOWN
from pytest_ddl.equivalence.ledger import Ledger
from pytest_ddl.equivalence.roles import Roles
from pytest_ddl.equivalence.verdict.text import headline, render_report
from pytest_ddl.hints import FrontEnd
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import TrainingRecord
from pytest_ddl.training.places import Places


@dataclass(frozen=True)
class Report:
    """Result of comparing one distributed run with its single-device reference."""

    strategy: str
    results: tuple[CheckResult, ...]
    findings: list[Finding]
    """Findings, worst first. Expected findings and approximations are not included."""
    reference: TrainingRecord
    distributed: TrainingRecord
    expected: tuple[tuple[Finding, str], ...] = ()
    """Findings that ``expect=`` declares, each with the declared reason."""
    expectations: Mapping[str, str] = field(default_factory=dict)
    """Everything that ``expect=`` declares: cause id -> reason."""
    approximations: tuple[Finding, ...] = ()
    known: tuple[Finding, ...] = ()
    """Findings that a known behavior of a framework explains by itself. They are no pass, and no fault of the program.
    """
    unused_expectations: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    """Reasons why there is no verdict; empty for a pass."""
    notes: tuple[Note, ...] = ()
    seconds: float = 0.0
    strict: bool = False
    """True if approximations count as findings."""
    neutralized: tuple[str, ...] = ()
    """Things that were switched off to make the two runs comparable; see :mod:`pytest_ddl.training.neutral`."""
    places: Places | None = None
    """Places of the examples, by which random numbers are the same in both runs."""
    roles: Roles = field(default_factory=lambda: ROLES, repr=False)
    """Roles of the checks that judged the runs, in the order in which the checks explain each other."""
    ledger: Ledger = field(default=Ledger(), repr=False, compare=False)
    """Account of all values that the strategy recorded; empty if something was found or an error ended a run."""
    tolerance: Tolerance | None = field(default=None, repr=False, compare=False)
    """Bounds that judged the differences; ``None`` if the checks did not share one set of bounds."""

    front_end: FrontEnd = field(default=FrontEnd.TEST, repr=False, compare=False)
    """Interface by which the user has called the comparison."""

    @property
    def verdict(self) -> str:
        """``"fail"``, ``"inconclusive"``, ``"known"`` or ``"pass"``. A report that compared nothing never passes.

        It is ``"known"`` if everything that was found is a known behavior of a framework. A run may end by it.
        """
        if self.findings:
            return "fail"
        if self.known and not self.doubts:
            return "known"
        compared = any(r.outcome is Outcome.PASS for r in self.results) and self.expected_end is None
        return "pass" if compared and not self.doubts else "inconclusive"

    @property
    def inconclusive(self) -> tuple[str, ...]:
        """Reasons why there is no verdict, as printed."""
        return tuple(self.front_end.render(str(doubt)) for doubt in self.doubts)

    @property
    def passed(self) -> bool:
        """True if everything that could be compared was compared, and nothing is wrong."""
        return self.verdict == "pass"

    def __bool__(self) -> bool:
        """Return ``passed``, so that ``assert check_training(...)`` works."""
        return self.passed

    def __repr__(self) -> str:
        return f"<Report {self.verdict}: {headline(self.rendered(self.front_end))} (str(report) shows all)>"

    @property
    def expected_end(self) -> str | None:
        """Cause and reason of a crash or hang that ``expect=`` declares and that ended the run before a comparison."""
        ends = [(f, why) for f, why in self.expected if _stops(f)]
        return f"{ends[0][0].cause}: {ends[0][1]}" if ends and not self.findings else None

    @property
    def program_reasons(self) -> tuple[str, ...]:
        """Reasons for a missing verdict that lie in the program. They make a test fail."""
        undecided = [
            Doubt(r.check, r.reason) for r in self.results if r.outcome is Outcome.INCONCLUSIVE and r.in_program
        ]
        undecided += [doubt for doubt in self.doubts if doubt.in_program]
        reasons = (self.front_end.render(str(doubt)) for doubt in undecided)
        return tuple(dict.fromkeys(reasons)) if self.verdict == "inconclusive" else ()

    @property
    def comparable(self) -> bool:
        """False if the program fails or records nothing on one device, so that there is nothing to compare with."""
        reference = self.reference
        return not reference.errors and reference.num_steps > 0 and bool(reference.variables)

    def result(self, check: str) -> CheckResult | None:
        """Return the result of a check, or ``None`` if it was not run."""
        return next((result for result in self.results if result.check == check), None)

    @property
    def excused(self) -> tuple[Finding, ...]:
        """Findings that do not make the report fail: declared ones, approximations, and known behaviors."""
        return (*(finding for finding, _reason in self.expected), *self.approximations, *self.known)

    @property
    def declared(self) -> tuple[Finding, ...]:
        """All findings that ``expect=`` excuses, also those that are not listed because they follow from another."""
        findings = [finding for result in self.results for finding in result.findings]
        return tuple(findings[at] for at in sorted(Expectations(self.expectations).excusing(findings)))

    @property
    def known_behaviors(self) -> tuple[KnownBehavior, ...]:
        """The known behaviors of frameworks that were recognized, each once."""
        return tuple(KNOWN[name] for name in dict.fromkeys(finding.known for finding in self.known) if name)

    @property
    def known_ends(self) -> tuple[str, ...]:
        """Ids of the known behaviors that ended the run, so that nothing was compared."""
        return tuple(dict.fromkeys(finding.known for finding in self.known if finding.known and _stops(finding)))

    def noted(self, *texts: str) -> Report:
        """Return the report with further notes on how the programs were run."""
        return replace(self, notes=(*self.notes, *(Note(NoteKind.HOW, text) for text in texts)))

    def rendered(self, front_end: FrontEnd) -> Report:
        """Return the report with the words of a front end in place of all hints."""
        return replace(
            self,
            front_end=front_end,
            results=tuple(result.rendered(front_end) for result in self.results),
            findings=[finding.rendered(front_end) for finding in self.findings],
            expected=tuple((finding.rendered(front_end), reason) for finding, reason in self.expected),
            approximations=tuple(finding.rendered(front_end) for finding in self.approximations),
            known=tuple(finding.rendered(front_end) for finding in self.known),
            doubts=tuple(doubt._replace(reason=front_end.render(doubt.reason)) for doubt in self.doubts),
            notes=tuple(Note(note.kind, front_end.render(note)) for note in self.notes),
        )

    def without(self, concerns: Callable[[Finding], bool], doubt: Doubt, *, in_program: bool = False) -> Report:
        """Return the report with a doubt in place of some findings.

        :param in_program: True if the program has to change before anything can be decided.
        """

        def left(findings: Iterable[Finding]) -> Iterator[Finding]:
            return (finding for finding in findings if not concerns(finding))

        def less(result: CheckResult) -> CheckResult:
            kept = tuple(left(result.findings))
            if len(kept) == len(result.findings):
                return result
            outcome = Outcome.FAIL if kept else Outcome.INCONCLUSIVE
            return replace(result, outcome=outcome, reason=doubt.reason, findings=kept, in_program=in_program)

        return replace(
            self,
            results=tuple(map(less, self.results)),
            findings=list(left(self.findings)),
            approximations=tuple(left(self.approximations)),
            known=tuple(left(self.known)),
            doubts=(*self.doubts, doubt),
        )

    def joined(self, again: Report) -> Report:
        """Return the report with what another comparison of the program found, excused and left open, each once.

        The results stay those of this report. An expectation is unused only if neither comparison used it.
        """
        declared = {(finding.cause, finding.owner) for finding, _why in self.expected}
        tolerated = {finding.cause for finding in self.approximations}
        recognized = {finding.known for finding in self.known}
        unused = {key: why for key, why in self.unused_expectations.items() if key in again.unused_expectations}
        return replace(
            self,
            findings=[*self.findings, *again.findings],
            expected=(*self.expected, *((f, why) for f, why in again.expected if (f.cause, f.owner) not in declared)),
            approximations=(*self.approximations, *(f for f in again.approximations if f.cause not in tolerated)),
            known=(*self.known, *(f for f in again.known if f.known not in recognized)),
            unused_expectations=unused,
            doubts=tuple(dict.fromkeys((*self.doubts, *again.doubts))),
            notes=tuple(dict.fromkeys((*self.notes, *again.notes))),
            seconds=self.seconds + again.seconds,
        )

    def merged(self, again: Report, check: str, what: str) -> Report:
        """Add the verdict of a repeated comparison, under the name of the check that it was repeated for.

        Findings, tolerated findings and reasons for doubt of the repeated comparison are all added. The check gets the
        worse of both outcomes.

        :param what: how the programs were run.
        """
        declared = Expectations(self.expectations).excusing(again.findings)

        def renamed(finding: Finding) -> Finding:
            return replace(finding, check=check, message=f"{what}: {finding.message}")

        found = [renamed(finding) for finding in again.findings]
        excused = [(found[at], self.expectations[key]) for at, key in declared.items()]
        excused += [(renamed(finding), why) for finding, why in again.expected]
        left = [at for at in range(len(found)) if at not in declared]
        findings = [found[at] for at in left]
        doubts = [
            Doubt(check, f"{what}: {doubt.reason if doubt.check == check else doubt}", doubt.in_program)
            for doubt in again.doubts
        ]
        other = replace(
            again,
            findings=findings,
            approximations=tuple(map(renamed, again.approximations)),
            known=tuple(map(renamed, again.known)),
            expected=tuple(excused),
            unused_expectations={k: why for k, why in again.unused_expectations.items() if k not in declared.values()},
            doubts=tuple(doubts),
            notes=(),
        )
        joined = self.joined(other)
        excused_too = (*joined.approximations[len(self.approximations) :], *joined.known[len(self.known) :])
        own = again.result(check)
        outcome = Outcome.FAIL if findings else Outcome.INCONCLUSIVE if doubts else None
        outcome = outcome or (own.outcome if own and not own.findings else Outcome.PASS)
        reason = own.reason if own else again.verdict
        if findings or doubts:
            reason = again.findings[left[0]].message if left else str(again.doubts[0])
        result = CheckResult(check, outcome, f"{what}: {reason}", (*found, *excused_too))
        results = tuple(_worse(plain, result) if plain.check == check else plain for plain in self.results)
        return replace(joined, results=results)

    def __str__(self) -> str:
        return render_report(self.rendered(self.front_end))


def _stops(finding: Finding) -> bool:
    """Return whether the run ended by what was found."""
    return finding.symptom in (Symptom.CRASH.value, Symptom.HANG.value)


def _worse(plain: CheckResult, again: CheckResult) -> CheckResult:
    """Merge both results of a check that was run twice."""
    outcome = min(plain.outcome, again.outcome, key=WORST_FIRST.index)
    applies = plain.outcome is not Outcome.NOT_APPLICABLE
    reason = f"{again.reason}; {plain.reason}" if applies else again.reason
    return replace(plain, outcome=outcome, reason=reason, findings=(*plain.findings, *again.findings))


class DivergenceError(AssertionError):
    """Distributed training does not match single-device training. ``report`` explains the difference."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


# pytest prints the module of an exception in front of every failure: show the public name.
DivergenceError.__module__ = "pytest_ddl"
