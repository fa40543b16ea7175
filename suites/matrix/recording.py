"""Pytest plugin that writes what happens to each test, line by line, so that a run that is cut leaves what it had."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from pytest_ddl.items.selection import SPEC_FIXTURE, label
from pytest_ddl.session import harness_of
from suites import coverage, expecting, known_failures

TEST, STRATEGY, VARIANT = "matrix_test", "matrix_strategy", "matrix_variant"
"""Names of user properties: the id of a test without its strategy, the name of the strategy, and its variant."""
DEFECT, FIXED = "matrix_defect", "matrix_fixed"
"""Names of user properties: the known defect that a test must meet, and the sign that it did not meet it."""
OPTION = "--matrix-results"
KEPT = "--matrix-kept"
PROFILE = "suite"
"""Profile of Hypothesis that the suite loads."""
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+-]+/)+")
"""Folders of this machine, which mean nothing on another one."""
LONGEST = 300
"""Most characters of a reason."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite of pytest-ddl")
    group.addoption(OPTION, type=Path, metavar="FILE", help="Write the outcome of each test to a file, as JSON lines")
    told = "Leave out the tests whose outcome a file has, a JSON list of pairs of a test and a variant of a strategy"
    group.addoption(KEPT, type=Path, metavar="FILE", help=told)


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption(OPTION)
    if path is not None:
        # On an old version many tests fail. Making their examples small would take minutes for each.
        found = settings.get_profile(PROFILE)
        quick = settings(found, phases=[one for one in found.phases if one not in (Phase.shrink, Phase.explain)])
        settings.register_profile(PROFILE, quick)
        settings.load_profile(PROFILE)
    # Workers of pytest-xdist send their reports to the process that writes, as do the ranks of a cluster. Pytest has no
    # terminal in a rank.
    if path is not None and not hasattr(config, "workerinput") and config.pluginmanager.has_plugin("terminal"):
        config.pluginmanager.register(_Writer(path), "ddl-matrix-writer")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        test, variant = _key(item)
        item.user_properties.append((TEST, test))
        if variant:
            item.user_properties += [(STRATEGY, variant.partition("[")[0]), (VARIANT, variant)]
        if defect := _defect(item):
            item.user_properties.append((DEFECT, defect))
    path: Path | None = config.getoption(KEPT)
    if path is not None:
        kept = {tuple(pair) for pair in json.loads(path.read_text(encoding="utf-8"))}
        left_out = [item for item in items if _key(item) in kept]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _key(item) not in kept]


def _defect(item: pytest.Item) -> str:
    """Return what the entry of a test says that is known to fail, or an empty text."""
    entry = item.stash.get(expecting.KNOWN, None)
    if entry is not None:
        return f"{', '.join(entry.causes)}: {entry.explanation}"
    mark = _strict(item)
    return str(mark.kwargs["reason"]) if mark is not None else ""


def _strict(item: pytest.Item) -> pytest.Mark | None:
    marks = item.iter_markers("xfail")
    return next((mark for mark in marks if mark.kwargs.get("strict") and not mark.args), None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Say that a test which must meet a defect did not meet it."""
    try:
        result = yield
    except expecting.NoLongerFailsError:
        item.user_properties.append((FIXED, "yes"))
        raise
    if _strict(item) is not None or expecting.KNOWN in item.stash:
        item.user_properties.append((FIXED, "yes"))
    return result


def _key(item: pytest.Item) -> tuple[str, str]:
    """Return the id of a test without its strategy, and the variant of the strategy."""
    spec = getattr(getattr(item, "callspec", None), "params", {}).get(SPEC_FIXTURE)
    if spec is None:
        return item.nodeid, ""
    return without(item.nodeid, label(spec, harness_of(item.config).registry)), str(spec)


def without(nodeid: str, label: str) -> str:
    """Return the id of a test without the part that names its strategy."""
    name, bracket, parameters = nodeid.partition("[")
    if not bracket:
        return nodeid
    # The strategy comes first, last or between two dashes.
    parts = f"-{parameters[:-1]}-".replace(f"-{label}-", "-", 1).strip("-")
    return f"{name}[{parts}]" if parts else name


class _Writer:
    """Plugin that writes lines: the number of collected tests, each outcome, and the exit status."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        # Tests of other tiers have none of these. Those of the tier may be left out by -k, or because they are kept.
        left_out = [_key(item) for item in items if {TEST, coverage.PROPERTY} & set(dict(item.user_properties))]
        if left_out:
            self._write(left_out=left_out)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._write(collected=len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._write(collected=len(ids))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(test=report.nodeid, outcome="fail", reason=reason_of(report), phase="collection", seconds=0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = outcome_of(report)
        if outcome is None:
            return
        given = dict(report.user_properties)
        texts = [str(value) for name, value in report.user_properties if name == coverage.PROPERTY]
        claims = {f"{one.item} {one.strategy}".strip(): None for one in map(coverage.Covered.parse, texts)}
        self._write(
            test=given.get(TEST, report.nodeid),
            strategy=given.get(STRATEGY, ""),
            variant=given.get(VARIANT, ""),
            items=list(claims),
            outcome=outcome,
            defect=given.get(DEFECT, ""),
            fixed=outcome == "fail" and FIXED in given,
            reason="" if outcome == "pass" else reason_of(report),
            phase=report.when,
            seconds=round(report.duration, 3),
        )

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        # Read again, because an environment that changed during the run gives no result.
        self._write(exit=int(exitstatus), versions=dict(known_failures.installed.__wrapped__()))

    def _write(self, **line: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def outcome_of(report: pytest.TestReport) -> str | None:
    """Return ``pass``, ``xfail``, ``fail`` or ``skip``; ``None`` for a phase that says nothing more about the test."""
    if report.failed:
        return "fail"
    if report.skipped:
        return "xfail" if hasattr(report, "wasxfail") else "skip"
    return "pass" if report.when == "call" else None


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return one line that says why a test did not pass."""
    if hasattr(report, "wasxfail"):
        text = str(report.wasxfail).removeprefix("reason: ")
    elif isinstance(report.longrepr, tuple):
        text = report.longrepr[2].removeprefix("Skipped: ")
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else str(report.longrepr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # A traceback that is a text, as of an import that fails, ends with its error.
    errors = [line[1:].strip() for line in lines if re.match(r"E\s", line)]
    told = errors[-1] if errors else lines[0] if lines else ""
    return _FOLDERS.sub("", told)[:LONGEST]
