"""Pytest plugin that collects the tests of one device, and lets copies of the process run some of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_ddl.items import dispatch
from pytest_ddl.items.selection import parse_mark
from pytest_ddl.items.spmd import SPEC
from suites import subject, tiers
from suites.proofs import relative, test_of
from suites.proving import spread

_CLUSTERS = {"ddl_cluster", "ddl_equivalence", "ddl_fit", "ddl_script", "ddl_faults"}
"""Fixtures that start processes, which take longer than most tests."""


@dataclass(frozen=True)
class Outcome:
    """What became of a test, and the CPU seconds that it took."""

    outcome: str
    seconds: float


class Session:
    """The collected tests of one device."""

    def __init__(self, work: Callable[[Session], None], cases: int) -> None:
        self._work = work
        self._cases = cases
        self._reports: list[pytest.TestReport] = []
        self._session: pytest.Session | None = None
        self.items: dict[str, pytest.Item] = {}
        """Id of a test in ``suites/`` -> test: those of the core tier first."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        of_tests: dict[str, list[pytest.Item]] = {}
        for item in items:
            spec, mark = item.stash.get(SPEC, None), parse_mark(item)
            own = mark.keras in (None, subject.KERAS_3) and not mark.arguments
            one_device = spec is None or spec.name == "one_device"
            if own and one_device and not _CLUSTERS & {*getattr(item, "fixturenames", ())}:
                of_tests.setdefault(test_of(item.nodeid), []).append(item)
        kept = [one for cases in of_tests.values() for one in spread(cases, self._cases)]
        kept.sort(key=lambda item: tiers.TIERS.index(tiers.tier_of(item.nodeid)) == len(tiers.TIERS) - 1)
        self.items = {relative(item.nodeid): item for item in kept}
        items[:] = kept

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        import keras  # noqa: F401  # the copies share it
        import tensorflow  # noqa: F401  # no copy may be made after its runtime has started

        self._session = session
        with pytest.MonkeyPatch.context() as patch:
            # The marker of a test that runs here names the Keras of this process.
            patch.setattr(dispatch, "refuse_in_process", lambda _item: None)
            self._work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def of_files(self) -> dict[str, list[str]]:
        """Return the tests of each file."""
        found: dict[str, list[str]] = {}
        for test, item in self.items.items():
            found.setdefault(Path(item.path).name, []).append(test)
        return found

    def run(
        self,
        tests: Iterable[str],
        *,
        begins: Callable[[str], None] = lambda _test: None,
        ends: Callable[[str, Outcome], bool] = lambda _test, _outcome: False,
    ) -> dict[str, Outcome]:
        """Run tests in this process, until ``ends`` returns true for one of them."""
        assert self._session is not None
        chosen = [*tests]
        found: dict[str, Outcome] = {}
        for test, following in zip(chosen, [*chosen[1:], None], strict=True):
            item = self.items[test]
            begins(test)
            self._reports.clear()
            start = time.process_time()
            after = None if following is None else self.items[following]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            found[test] = Outcome(_outcome(self._reports), time.process_time() - start)
            if ends(test, found[test]):
                break
        return found


def _outcome(reports: Sequence[pytest.TestReport]) -> str:
    if any(report.failed for report in reports):
        return "failed"
    if any(hasattr(report, "wasxfail") for report in reports):
        return "xfailed"
    return "skipped" if any(report.skipped for report in reports) else "passed"
