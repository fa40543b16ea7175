"""Show comparisons on the terminal: what runs now, the cause in pytest's summary, and why tests did not pass."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddl.config import front_end_of
from pytest_ddl.github import is_github
from pytest_ddl.hints import Hint
from pytest_ddl.items.selection import SPEC_FIXTURE

if TYPE_CHECKING:
    from pytest_ddl.equivalence.verdict.report import Report

COLUMNS = 80
"""Width that the line of a failure in pytest's summary fits, if the id of the test leaves room for the cause."""
_LEGIBLE = 15
"""Number of columns from which the start of a variable's name or of an exception says something."""
TITLE = "pytest-ddl: skipped and expected to fail"
TOLERATED = "ddl_tolerated"
"""Name of a report property that describes an approximation with which a test passed."""
EXPECTED_END = "ddl_expected_end"
"""Name of a report property that describes a comparison that ended in a crash or hang that ``expect=`` declares."""
_QUIET = 30.0
"""Seconds after which a log says what a comparison does."""
KNOWN_BEHAVIOR = "ddl_known"
"""Name of a report property that holds the id of a known behavior of a framework, which a comparison met."""
NOT_COMPARED = "ddl_not_compared"
"""Property with the id of a known behavior that ended a run before anything could be compared."""


# ----- what runs now -----


@contextmanager
def status_line(config: pytest.Config) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text below the line of the running test, until the next text or the end.

    In a log, a line is added if none was for half a minute. It shows nothing in a worker of pytest-xdist, without
    capturing (``-s``), or beside the display of another plugin.
    """
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    plain = type(reporter).__module__ == "_pytest.terminal"
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    if not plain or (dumb and reporter.isatty) or capture is None or config.option.capture == "no":
        yield lambda _text: None
        return
    if not reporter.isatty:
        yield _in_a_log(capture)
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


def _in_a_log(capture: Any) -> Callable[[str], None]:
    """Return a function that adds a line to a log, but none to that of a short comparison."""
    told = time.monotonic()

    def show(text: str) -> None:
        nonlocal told
        if time.monotonic() - told >= _QUIET:
            told = time.monotonic()
            with capture.global_and_fixture_disabled():
                sys.stdout.write(f"\n{text}\n")
                sys.stdout.flush()

    return show


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


class Unfinished:
    """Names the tests that workers of pytest-xdist had begun if a run is interrupted: pytest does not know them."""

    def __init__(self) -> None:
        self._begun: dict[str, None] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._begun.pop(nodeid, None)

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.INTERRUPTED and self._begun:
            terminalreporter.section("interrupted before they ended")
            for nodeid in self._begun:
                terminalreporter.write_line(nodeid)


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
            if SPEC_FIXTURE in getattr(report, "keywords", ()) and not elsewhere:
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
    found: dict[str, dict[str, set[str]]] = {}
    for outcome in ("passed", "xfailed", "skipped", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, behavior in getattr(report, "user_properties", ()):
                if name in (KNOWN_BEHAVIOR, NOT_COMPARED):
                    found.setdefault(behavior, {}).setdefault(name, set()).add(report.nodeid)
    if not found:
        return
    from pytest_ddl.equivalence.known.catalogue import KNOWN

    words = front_end_of(terminalreporter.config)
    strict = words.words(Hint.STRICT_OPTION)
    terminalreporter.section(f"known behaviors of TensorFlow and Keras ({strict} fails on them)")
    for name, tests_of in found.items():
        tests, not_compared = tests_of[KNOWN_BEHAVIOR], tests_of.get(NOT_COMPARED, ())
        behavior = KNOWN[name]
        count = f"{len(tests)} test{'s' if len(tests) > 1 else ''}"
        if not_compared:
            count += f", {'' if len(not_compared) == len(tests) else f'{len(not_compared)} of them '}not compared"
        terminalreporter.write_line(f"{name}: {count}: {behavior.explanation}")
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
