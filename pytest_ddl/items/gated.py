"""Holds ``--ddl-gate`` to what was measured: a run in which no gate came to a verdict fails."""

from __future__ import annotations

import sys

import pytest

from pytest_ddl.config import SETTINGS

GATED = "ddl_gate"
"""Property of a test's report, one for each gate that it called: the verdict."""
_DECIDED = ("pass", "improvement", "regression")


class GateWatch:
    """Counts verdicts in the reports of tests, which xdist's workers send to the process that has this plugin.

    A test can be skipped, expected to fail, deselected or only planned: none of these fails by itself, and
    a gate that compared nothing must not pass.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ran = False
        self._decided = 0
        self._refused = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Refuse early what would run a whole suite for nothing. With xdist, workers collect, and the end tells.

        :raises pytest.UsageError: where no selected test has the fixture ``ddl_gate``.
        """
        asked = any(GATED in getattr(item, "fixturenames", ()) for item in items)
        if not asked and not self._config.option.collectonly:
            raise self._config.stash[SETTINGS].error(
                "gate", "no selected test has the fixture ddl_gate, so nothing is measured"
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        # Sessions that only show something, such as --fixtures, have no such loop.
        self._ran = not self._config.option.collectonly

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = [value for name, value in getattr(report, "user_properties", ()) if name == GATED]
        self._decided += sum(value in _DECIDED for value in told)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # A run that failed has said why.
        harmless = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self._ran and harmless and not self._decided:
            self._refused = True
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_unconfigure(self) -> None:
        # Below the summary, where pytest's own usage errors stand.
        if self._refused:
            problem = (
                "no test called ddl_gate and came to a verdict, so nothing was compared. Those that have the fixture "
                "were skipped, expected to fail, deselected or not run: pytest -ra tells which"
            )
            sys.stderr.write(f"ERROR: {self._config.stash[SETTINGS].error('gate', problem)}\n")
