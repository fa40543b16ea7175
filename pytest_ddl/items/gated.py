"""Make a run with ``--ddl-gate`` fail if no gate reached a verdict."""

from __future__ import annotations

import sys

import pytest

from pytest_ddl.config import SETTINGS

GATED = "ddl_gate"
"""Name of the fixture, and of the report property with the verdict of a gate that a test called."""
_DECIDED = ("pass", "improvement", "regression")


class GateWatch:
    """Plugin that counts the verdicts of gates in the reports of tests. Workers of xdist send their reports here.

    A run in which every gate test is skipped, deselected, expected to fail or only planned does not fail by itself.
    But a gate that compared nothing must not pass.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ran = False
        self._decided = 0
        self._refused = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Fail before a whole suite runs in vain. With xdist the workers collect, so only the end of the run can fail.

        :raises pytest.UsageError: if no selected test has the fixture ``ddl_gate``.
        """
        asked = any(GATED in getattr(item, "fixturenames", ()) for item in items)
        if not asked and not self._config.option.collectonly:
            raise self._config.stash[SETTINGS].error(
                "gate", "no selected test has the fixture ddl_gate, so nothing is measured"
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        # Sessions that only show something, such as --fixtures, have no test loop.
        self._ran = not self._config.option.collectonly

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        verdicts = [value for name, value in getattr(report, "user_properties", ()) if name == GATED]
        self._decided += sum(value in _DECIDED for value in verdicts)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # A run that failed for another reason has already reported it.
        harmless = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self._ran and harmless and not self._decided:
            self._refused = True
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_unconfigure(self) -> None:
        # At this time the message appears below the summary, like pytest's own usage errors.
        if self._refused:
            problem = (
                "no test called ddl_gate and came to a verdict, so nothing was compared. The tests with the fixture "
                "were skipped, expected to fail, deselected or not run; pytest -ra shows the reasons"
            )
            sys.stderr.write(f"ERROR: {self._config.stash[SETTINGS].error('gate', problem)}\n")
