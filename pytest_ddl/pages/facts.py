"""Short facts of one comparison: for the index, for JUnit properties and for annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.equivalence.verdict.text import headline
from pytest_ddl.json_records import JsonRecord

UNKNOWN = "not known"
PAGE = "ddl_page"
PROPERTIES = ("ddl_strategy", "ddl_verdict", "ddl_cause", "ddl_step", "ddl_variable", PAGE)
"""Names of the properties of a test in the JUnit report."""
_PLACE = re.compile(r"(?P<file>[^\s:()'\"]+\.py):(?P<line>\d+)")


@dataclass(frozen=True)
class Facts(JsonRecord):
    """Verdict of one comparison of a test, and its worst finding. All values are plain, so that JSON can hold them."""

    test: str
    number: int
    """1 for the first comparison of the test."""
    strategy: str
    verdict: str
    headline: str
    cause: str | None = None
    """Cause of the worst finding, or ``"not known"``; ``None`` without a finding."""
    step: int | None = None
    variable: str | None = None
    replica: int | None = None
    worker: int | None = None
    fix: str | None = None
    file: str = ""
    """File of the program's line that the finding names; empty if it names none."""
    line: int = 0
    findings: int = 0
    failed: bool = False
    """True if the test fails because of the comparison."""
    page: str = ""
    """Name of the file of its page; empty if it has none."""

    @classmethod
    def of(cls, report: Report, test: str, number: int = 1) -> Facts:
        """Collect the facts of a report."""
        facts = cls(test, number, report.strategy, report.verdict, headline(report), findings=len(report.findings))
        if not report.findings:
            return facts
        worst = report.findings[0]
        file, line = place_of(worst)
        return replace(
            facts,
            cause=worst.cause or UNKNOWN,
            step=worst.step,
            variable=worst.variable,
            replica=worst.replica,
            worker=worst.worker,
            # A fix is a string with more in it, which pytest-xdist cannot send.
            fix=worst.fix and str(worst.fix),
            file=file,
            line=line,
        )

    def properties(self) -> Iterator[tuple[str, str]]:
        """Yield properties of the test for JUnit, as far as they are known."""
        for name in PROPERTIES:
            value = getattr(self, name.removeprefix("ddl_"))
            if value not in (None, ""):
                yield name, str(value)


def place_of(finding: Finding) -> tuple[str, int]:
    """Return the file and line of the program that a finding names, or an empty text and 0."""
    for text in (finding.source, *finding.lines, finding.message):
        match = _PLACE.search(text or "")
        if match:
            return match["file"], int(match["line"])
    return "", 0
