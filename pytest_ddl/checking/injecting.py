"""Inject the faults that ``pytest-ddl faults`` was given, write the reports to a folder, and show those that passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FAULTS = "ddl_faults"
"""Property of a test: the report of its faults, as text."""


def inject_into(compare: Any, train: Any, arguments: dict[str, Any], injected: dict[str, Any]) -> Any:
    """Compare a training function and inject faults into it. Return the report.

    :param compare: the fixture ``ddl_equivalence``.
    :param injected: ``faults`` as texts (empty to strike at every point), ``sweep`` and ``limits`` by name, and
        ``report``, a folder for pages and JSON.
    :raises RecoveryError: if the program does not recover.
    """
    __tracebackhide__ = True
    from pytest_ddl.faults.report import RecoveryError, write
    from pytest_ddl.faults.sweep import Sweep

    faults: Any = injected["faults"] or Sweep(**injected["sweep"])
    folder = Path(injected["report"]) if "report" in injected else None
    try:
        recovery = compare(train, faults=faults, **injected["limits"], **arguments)
    except RecoveryError as error:
        if folder is not None:
            write(error.report, folder)
        raise
    if folder is not None and hasattr(recovery, "trials"):
        write(recovery, folder)
    return recovery


def show_recoveries(terminal: pytest.TerminalReporter) -> None:
    """Show the reports of faults that were all survived. Those of failed tests are shown with the failure."""
    reports = [*terminal.getreports("passed"), *terminal.getreports("xfailed")]
    passed = [dict(report.user_properties).get(FAULTS) for report in reports]
    for text in dict.fromkeys(filter(None, passed)):
        terminal.section("faults")
        terminal.write_line(str(text))
