"""Results of the checks: a finding, and the outcome of one check with its findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from pytest_ddl.hints import FrontEnd


class Doubt(NamedTuple):
    """Reason why a verdict is missing."""

    check: str
    """Name of the check that could not decide."""
    reason: str
    in_program: bool = False
    """True if the author of the program can change this."""

    def __str__(self) -> str:
        return f"{self.check}: {self.reason}"


class Symptom(str, Enum):
    """Visible effect of a defect."""

    SILENT = "silent"
    CRASH = "crash"
    HANG = "hang"
    SLOW = "slow"


class Grounds(str, Enum):
    """Grounds on which the diagnosis names a cause, the strongest first."""

    RECOMPUTED = "recomputed from the recorded values"
    RATIO = "one factor between all changes and those of one device"
    PATTERN = "a pattern in the records; the size of the difference was not recomputed"
    EXCLUSION = "exclusion: no other known cause fits"


class Reason(Enum):
    """Why a recorded quantity was not compared with one device. Code reads the member and never the text."""

    WEIGHTS_DIFFER = "the weights differ"
    NOT_FINITE = "not finite on one device"
    NOT_REPRODUCIBLE = "not reproducible on one device"
    NOT_REPEATED = "noise on one device is as large as the effect of an example"
    TOO_WIDE = "the bound is too wide"
    JUMPS = "rounding alone moves it as far"
    KEPT = "the program may have kept it from"
    OF_A_PLACE = "says where the program runs"
    OF_AN_ATTEMPT = "each attempt has a history of its own"
    NO_UPDATE = "its optimizer makes no update"
    ONE_SIDED = "one device did not record it"
    NOT_EXPLAINED = "it differs, and no finding explains it"
    FINDING = "a finding explains it"
    TOO_MANY_STEPS = "only the first uneven steps are judged one by one"


class Unjudged(NamedTuple):
    """Quantity that was recorded and not compared, with the reason."""

    name: str
    reason: Reason
    where: str = ""
    """Step or other place that the reason is about, as text for the reader."""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason.value}{f' {self.where}' if self.where else ''})"


class Outcome(str, Enum):
    """Outcome of one check. A report passes only if all outcomes are PASS or NOT_APPLICABLE."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Finding:
    """One difference: its place, its size, its bound and its cause.

    ``cause`` is an id of :mod:`pytest_ddl.equivalence.causes`. It is ``None`` if no candidate reproduces what was
    observed. ``error`` and ``tolerance`` are absolute and in the variable's own unit. ``approximation`` marks a
    difference that fails only in strict mode.
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
    scale: float | None = None
    """Largest magnitude of the value on one device, if the check knows it."""
    fix: str | None = None
    observed: str | None = None
    """Short text of the value seen under the strategy."""
    expected: str | None = None
    """Short text of the value seen on one device."""
    origin: str | None = None
    """Source of the bound."""
    a_priori: bool = False
    """True if the bound is not measured, so that measuring rounding noise may change the verdict."""
    paths: tuple[str, ...] = ()
    """Files that the finding is about."""
    evidence: str | None = None
    """Evidence for the cause: the recomputation and how closely it fits."""
    also: tuple[str, ...] = ()
    """Other causes that fit as well."""
    besides: tuple[str, ...] = ()
    """Other causes that act at the same time."""
    approximation: bool = False
    details: str | None = None
    """Longer text shown below the finding: a traceback, the output of a rank, stacks."""
    source: str | None = None
    """Line of the program that raised the exception or waits: file, line number, function and text."""
    exact: bool = True
    """False if the cause was not recomputed. The records are then only consistent with it."""
    grounds: Grounds | None = None
    """Grounds on which the cause is named; ``None`` if the check observed the cause itself."""
    look_at: tuple[str, ...] = ()
    """Likeliest places of the defect in the program, if its cause is not known."""
    tape_is_right: bool | None = None
    """True if the replicas' gradients of the variable add up to that of one device; ``None`` if that is not known."""
    lines: tuple[str, ...] = ()
    """Lines of the program that the cause is about: file, line number, what happens there, and text."""
    verified: bool = False
    """True if both runs are equal once the tolerated cause is removed, so that no other defect is hidden behind it."""
    known: str | None = None
    """Id of the known behavior of a framework that explains the finding by itself; see
    :mod:`pytest_ddl.equivalence.known.catalogue`."""
    operations: tuple[int, ...] = ()
    """Positions of the random operations of the replica function that repeat; see
    :attr:`~pytest_ddl.records.DrawRecord.position`."""
    others: tuple[str, ...] = ()
    """Names of the other variables that the finding is about."""
    also_in: tuple[int, ...] = ()
    """Later steps whose loss or metric is wrong in the same way. The finding excuses no number of another step."""
    owner: str = ""
    """Owner of the variable. Findings of one cause with different owners are different findings."""
    follows: bool = False
    """True if a recomputation shows that the difference follows from the weights or the uneven batch of its step."""
    ratio: float | None = None
    """|change under the strategy| / |change on one device| of the variable in this step."""

    def rendered(self, front_end: FrontEnd) -> Finding:
        """Return the finding with the words of a front end in place of its hints."""
        message, fix, evidence = (text and front_end.render(text) for text in (self.message, self.fix, self.evidence))
        return replace(self, message=message or "", fix=fix, evidence=evidence)


@dataclass(frozen=True)
class Diagnosis:
    """Cause of a difference; without one, the evidence lists what was tried."""

    cause: str | None
    evidence: str
    also: tuple[str, ...] = ()
    approximation: bool = False
    grounds: Grounds | None = None
    look_at: tuple[str, ...] = ()
    fix: str | None = None
    """Fix that replaces the usual one of the cause."""
    follows: bool = False
    """See :attr:`Finding.follows`."""
    tape: Mapping[int, bool] = field(default_factory=dict)
    """Index of a weight -> whether the gradients that the replicas computed for it add up to that of one device."""
    besides: tuple[str, ...] = ()
    """See :attr:`Finding.besides`."""

    @property
    def exact(self) -> bool:
        """True if recomputation reproduces the difference."""
        return self.grounds in RECOMPUTING


RECOMPUTING = (Grounds.RECOMPUTED, Grounds.RATIO)
"""Grounds that reproduce the whole difference."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check with its findings, or the reason why there are none."""

    check: str
    outcome: Outcome
    reason: str = ""
    """For a pass: what was compared. Otherwise: why the check does not apply or could not decide."""
    findings: tuple[Finding, ...] = ()
    follows: bool = False
    """True if the check could not decide only because weights differ or because the run failed earlier."""
    details: str | None = None
    """Longer text, for example a traceback, that explains why the check could not decide."""
    unjudged: tuple[Unjudged, ...] = ()
    """Quantities that were recorded on both sides but not compared. The rest may have passed."""
    in_program: bool = False
    """True if the check could not decide because of the program, so that its author can change this."""
    needs: str = ""
    """Change of the program or the test that makes the check apply; empty if there is none."""

    def rendered(self, front_end: FrontEnd) -> CheckResult:
        """Return the result with the words of a front end in place of its hints."""
        findings = tuple(finding.rendered(front_end) for finding in self.findings)
        return replace(
            self, reason=front_end.render(self.reason), needs=front_end.render(self.needs), findings=findings
        )


WORST_FIRST = (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.NOT_APPLICABLE)
"""Outcomes of one check, worst first. Of several comparisons, the worst outcome counts."""
