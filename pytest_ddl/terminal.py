"""Show comparisons on the terminal: what runs now, the cause in pytest's summary, and why tests did not pass."""

from __future__ import annotations

import os
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddl.config import front_end_of
from pytest_ddl.github import is_github
from pytest_ddl.hints import Hint

if TYPE_CHECKING:
    from pytest_ddl.equivalence.verdict.report import Report

COLUMNS = 80
"""Width that the line of a failure in pytest's summary fits, if the id of the test leaves room for the cause."""
_LEGIBLE = 15
"""Number of columns from which the start of a variable's name or of an exception says something."""
KEYWORD = "_ddl_spec"
"""Keyword of the reports of tests that ask for a strategy."""
TITLE = "pytest-ddl: skipped and expected to fail"
TOLERATED = "ddl_tolerated"
"""Name of a report property that describes an approximation with which a test passed."""
EXPECTED_END = "ddl_expected_end"
"""Name of a report property that describes a comparison that ended in a crash or hang that ``expect=`` declares."""
KNOWN_BEHAVIOR = "ddl_known"
"""Name of a report property that holds the id of a known behavior of a framework, which a comparison met."""


# ----- what runs now -----


@contextmanager
def status_line(config: pytest.Config) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text below the line of the running test, until the next text or the end.

    It shows nothing in a log, in a worker of pytest-xdist, without capturing (``-s``), or beside the display of another
    plugin.
    """
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    plain = type(reporter).__module__ == "_pytest.terminal"
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    if not plain or not reporter.isatty or dumb or capture is None or config.option.capture == "no":
        yield lambda _text: None
        return

    def show(text: str) -> None:
        writer = config.get_terminal_writer()
        width = writer.fullwidth
        column = writer.width_of_current_line % width
        # The writer would count the text as part of the test's line, so it is written without it.
        with capture.global_and_fixture_disabled():
            sys.stdout.write(f"\r\n\x1b[K{text[: width - 1]}\r\x1b[1A\x1b[{column + 1}G")
            sys.stdout.flush()

    try:
        yield show
    finally:
        show("")


# ----- the summary of a failure -----


def begin_with_cause(report: pytest.TestReport, compared: Report) -> None:
    """Make pytest's one-line summary of a failed comparison begin with the cause."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = cause_in_one_line(compared, COLUMNS - len(f"FAILED {report.nodeid} - "))


def cause_in_one_line(compared: Report, room: int) -> str:
    """Return the cause with as much of the place as fits into a number of columns, or only the cause."""
    if not compared.findings:
        doubt = compared.doubts[0].reason if compared.doubts else "nothing could be compared"
        return f"inconclusive: {doubt}".partition("\n")[0]
    finding = compared.findings[0]
    cause = finding.cause or "cause not known"
    step = "" if finding.step is None else " before the first step" if finding.step == 0 else f" at step {finding.step}"
    what = finding.variable or finding.observed or finding.message
    whole = f"{cause}{step}: {what}".partition("\n")[0]
    if len(whole) <= room:
        return whole
    if len(f"{cause}{step}: ") + _LEGIBLE <= room:
        return whole[: room - 3] + "..."
    return f"{cause}{step}" if len(f"{cause}{step}") <= room else cause


# ----- why tests did not pass -----


def show_summary(terminalreporter: Any) -> None:
    """Show why tests did not pass, and the approximations and expected crashes of tests that passed.

    In a job of GitHub Actions, also print an annotation for each failed comparison.
    """
    _show_reasons(terminalreporter)
    _show_known(terminalreporter)
    _show_tolerated(terminalreporter)
    if is_github():
        from pytest_ddl.pages.watch import annotate

        annotate(terminalreporter)


def _show_reasons(terminalreporter: Any) -> None:
    """List the reasons for skips and expected failures of tests that ask for a strategy, each with its number."""
    counted: Counter[tuple[str, str]] = Counter()
    for outcome in ("skipped", "xfailed"):
        for report in terminalreporter.getreports(outcome):
            elsewhere = any(name == KNOWN_BEHAVIOR for name, _value in getattr(report, "user_properties", ()))
            if KEYWORD in getattr(report, "keywords", ()) and not elsewhere:
                counted[outcome, _reason(report)] += 1
    if not counted or terminalreporter.no_summary:
        return
    terminalreporter.section(TITLE)
    width = terminalreporter.config.get_terminal_writer().fullwidth
    for (outcome, reason), count in counted.items():
        for line in textwrap.wrap(f"{count} {outcome}: {reason}", width, subsequent_indent="    "):
            terminalreporter.write_line(line)


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        reason = report.wasxfail.removeprefix("reason: ") or report.longreprtext
    else:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return " ".join(reason.removeprefix("Skipped: ").split()) or "no reason given"


def _show_known(terminalreporter: Any) -> None:
    """List the known behaviors of frameworks that tests met, each with the number of tests."""
    found: dict[str, set[str]] = {}
    for outcome in ("passed", "xfailed", "skipped", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, behavior in getattr(report, "user_properties", ()):
                if name == KNOWN_BEHAVIOR:
                    found.setdefault(behavior, set()).add(report.nodeid)
    if not found:
        return
    from pytest_ddl.equivalence.known.catalogue import KNOWN

    words = front_end_of(terminalreporter.config)
    strict = words.words(Hint.STRICT_OPTION)
    terminalreporter.section(f"known behaviors of TensorFlow and Keras ({strict} fails on them)")
    for name, tests in found.items():
        behavior = KNOWN[name]
        terminalreporter.write_line(f"{name}: {len(tests)} test{'s' if len(tests) > 1 else ''}: {behavior.explanation}")
        terminalreporter.write_line(f"    {words.render(behavior.workaround)}")


def _show_tolerated(terminalreporter: Any) -> None:
    """List in the summary the approximations and expected crashes of passed tests, for which pytest prints nothing."""
    for title, wanted in (
        (f"tolerated approximations ({Hint.STRICT_OPTION} fails on them)", TOLERATED),
        ("comparisons that ended in an expected crash, in tests that passed with other comparisons", EXPECTED_END),
    ):
        noted = [
            (report.nodeid, text)
            for report in terminalreporter.getreports("passed")
            for name, text in report.user_properties
            if name == wanted
        ]
        if noted:
            terminalreporter.section(front_end_of(terminalreporter.config).render(title))
            for nodeid, text in noted:
                terminalreporter.write_line(f"{nodeid}: {text}")
