"""Collect the comparisons of a run: write their pages as they fail, and the index and annotations at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl import github
from pytest_ddl.config import SETTINGS
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.pages.facts import PAGE, PROPERTIES, Facts
from pytest_ddl.pages.folder import prepare, write_index, write_page

COMPARED = pytest.StashKey[list[Facts]]()
"""Facts of the comparisons of a test, in order."""
FOLDER = pytest.StashKey[Path]()
"""Folder of the pages, if the user named one."""
_ATTRIBUTE = "ddl_comparisons"
"""Attribute of a report of a test with the facts as plain values. xdist sends it to the process that shows reports."""


def watch_pages(config: pytest.Config) -> None:
    """Check the folder of ``--ddl-report``, and write its index at the end of the run.

    A worker of xdist gets the folder from the process that started it, which also writes the index.

    :raises pytest.UsageError: if the folder cannot be written. The message is one line.
    """
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        if "ddl_report" in workerinput:
            config.stash[FOLDER] = Path(workerinput["ddl_report"])
        return
    settings = config.stash[SETTINGS]
    start = config.rootpath if settings.origin("report") == "ini" else config.invocation_params.dir
    folder = Path(os.path.abspath(start / Path(settings["report"]).expanduser()))
    try:
        prepare(folder)
    except OSError as error:
        reason = f"cannot write pages there: {error.strerror or error}"
        raise settings.error("report", reason) from None
    config.stash[FOLDER] = folder
    config.pluginmanager.register(PageWatch(config, folder), "ddl-page-watch")


def compared(item: pytest.Item, report: Report) -> None:
    """Keep the facts of a comparison for the reports of its test."""
    known = item.stash.setdefault(COMPARED, [])
    if hasattr(getattr(item, "obj", None), "hypothesis"):
        # Hypothesis calls the test with many examples, and last with the smallest that fails. Only that one is kept.
        known.clear()
        item.user_properties[:] = [pair for pair in item.user_properties if pair[0] not in PROPERTIES]
    known.append(Facts.of(report, item.nodeid, len(known) + 1))
    item.user_properties.extend(known[-1].properties())


def failed(item: pytest.Item, report: Report) -> None:
    """Write the page of the latest comparison of a test, because the test fails."""
    known = item.stash[COMPARED]
    known[-1] = replace(known[-1], failed=True)
    folder = item.config.stash.get(FOLDER, None)
    if folder is None:
        return
    try:
        known[-1] = write_page(report, folder, item.nodeid, known[-1].number)
    except Exception as error:
        # The verdict is worth more than its page, also if warnings are errors.
        problem = f"the page of {item.nodeid} could not be written: {type(error).__name__}: {error}"
        with suppress(pytest.PytestWarning):
            item.warn(pytest.PytestWarning(problem))
    else:
        item.user_properties.append((PAGE, known[-1].page))


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Give the facts of a test's comparisons to the report of one of its phases."""
    facts = item.stash.get(COMPARED, [])
    setattr(report, _ATTRIBUTE, [one.as_json() for one in facts])
    if report.when == "teardown":
        facts.clear()  # a plugin may run the test again


def _facts_of(report: Any) -> Iterator[Facts]:
    return (Facts.from_json(value) for value in getattr(report, _ATTRIBUTE, ()))


def annotate(terminalreporter: Any) -> None:
    """Print an annotation for each failed comparison of a failed test, and add them to the summary of the step."""
    root = terminalreporter.config.rootpath
    reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    failed = [(report, facts) for report in reports for facts in _facts_of(report) if facts.failed]
    for line in dict.fromkeys(annotation(facts, root, report.location) for report, facts in failed):
        terminalreporter.ensure_newline()
        terminalreporter.write_line(line)
    cells = ((facts.test, facts.headline, facts.fix or "") for _report, facts in failed)
    rows = dict.fromkeys(" | ".join(" ".join(cell.replace("|", r"\|").split()) for cell in row) for row in cells)
    if rows:
        lines = ["| test | what differs | fix |", "| --- | --- | --- |", *(f"| {row} |" for row in rows)]
        github.append_summary("\n".join([*lines, ""]))


class PageWatch:
    """Plugin of the process that the user started: it writes the index, and prints the place of the pages."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._others: dict[tuple[str, int], Facts] = {}
        self._told = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for facts in _facts_of(report):
            if not facts.page:
                self._others[facts.test, facts.number] = facts

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        try:
            path, pages = write_index(self._folder, list(self._others.values()))
        except OSError as error:
            self._told = f"ddl report: the index of {self._folder} cannot be written: {error.strerror or error}"
            return
        shown = os.path.relpath(path, self._config.invocation_params.dir)
        self._told = f"ddl report: {_count(pages, len(self._others))}, see {shown}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.ensure_newline()
        terminalreporter.write_line(self._told)


def _count(pages: int, others: int) -> str:
    if pages:
        return f"{pages} failed comparison{'s' if pages > 1 else ''}"
    return f"none of {others} comparison(s) failed" if others else "nothing was compared"


def annotation(
    facts: Facts, root: Path, location: tuple[str, int | None, str], environ: Mapping[str, str] = os.environ
) -> str:
    """Return the workflow command for a failed comparison, as one line.

    :param root: root folder of pytest, to which the location of the test is relative.
    :param location: file, line (from 0) and name of the test, which stand in for an unknown line of the program.
    """
    repository = Path(environ.get("GITHUB_WORKSPACE") or root)
    file = _in_repository(Path(facts.file), repository) if facts.file else None
    line: int | None = facts.line
    if file is None:
        file, line = _in_repository(root / location[0], repository), (location[1] or 0) + 1
    text = "\n".join(filter(None, [facts.headline, f"fix: {facts.fix}" if facts.fix else "", facts.test]))
    title = f"{facts.cause or facts.verdict}: {facts.strategy}"
    return github.annotation("error", title, text, file or "", line).rstrip("\n")


def _in_repository(path: Path, repository: Path) -> str | None:
    """Return a path relative to the repository, or ``None`` if the file is elsewhere."""
    whole = Path(os.path.abspath(path))
    return str(whole.relative_to(repository)) if whole.is_relative_to(repository) else None
