"""Run items on ranks: choose their clusters, open pytest sessions in the ranks and find the next item of each."""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from pytest_ddl.cluster.call_warnings import unpickled
from pytest_ddl.cluster.cluster import Answer, Cluster, ClusterError
from pytest_ddl.cluster.explain import explain, is_late
from pytest_ddl.cluster.obstacles import LONGER
from pytest_ddl.cluster.protocol import RankWarning, RequestKind, SessionPlan
from pytest_ddl.harness import Harness
from pytest_ddl.items.long_output import shortened
from pytest_ddl.items.merge import failed_report, merge_phase, output_sections
from pytest_ddl.items.on_ranks import ON_RANKS, ItemOnRanks
from pytest_ddl.items.selection import DdlMark, parse_mark
from pytest_ddl.strategies.spec import StrategySpec

MAX_FILES = 32
"""Maximum number of test files that a rank collects at a time. It has to import each of them."""
FEW_FILES = 4
"""Number of test files that the ranks of a replaced cluster collect first. They may be replaced soon, too.

If that does not happen, they collect twice as many whenever they come to another file."""
RANK_OPTIONS: Mapping[str, Any] = {
    "allure_report_dir": None,
    "capture": "no",
    "collectonly": False,
    "durations": None,
    "failedfirst": False,
    "forked": False,
    "htmlpath": None,
    "instafail": False,
    "json_report": False,
    "keyword": "",
    "lf": False,
    "markexpr": "",
    "maxfail": 0,
    "newfirst": False,
    "report_log": None,
    "cov_source": None,
    "numprocesses": None,
    "dist": "no",
    "tx": [],
    "setuponly": False,
    "setupplan": False,
    "setupshow": False,
    "stepwise": False,
    "stepwise_skip": False,
    "trace": False,
    "usepdb": False,
    "xmlpath": None,
}
"""Values of options in the ranks. Only the controller selects, orders and reports tests.

A report file that a rank writes would replace the controller's file, or count the test once more."""
RANK_PLUGINS_OFF = (
    "no:terminal",
    "no:cacheprovider",
    "no:junitxml",
    "no:cov",
    "no:randomly",
    "no:rerunfailures",
    "no:sugar",
)


SPEC = pytest.StashKey[StrategySpec]()
"""Variant that an item was collected for."""


def spec_of(item: pytest.Item) -> StrategySpec | None:
    """Return the variant that an item was collected for, or ``None`` if it asks for no strategy."""
    return item.stash.get(SPEC, None)


def is_spmd(item: pytest.Item) -> bool:
    """Return whether the item's body runs in the ranks, and does not control them from the pytest process."""
    return spec_of(item) is not None and "ddl_strategy" in getattr(item, "fixturenames", ())


class SpmdRunner:
    """Plugin that runs the items that ask for ``ddl_strategy``. Each pytest process has one."""

    def __init__(self, harness: Harness, config: pytest.Config) -> None:
        self._harness = harness
        self._config = config
        self._opened = 0
        self._running: pytest.Item | None = None
        """Item that this process runs, or ran last."""
        self._late: list[tuple[pytest.Item, pytest.TestReport]] = []
        """Reports that are logged after those of the running item."""
        self._following: dict[tuple[str, str], list[pytest.Item]] = {}
        """Items that have not run yet, by the key of their warm cluster."""
        self._collected: dict[tuple[str, str], int] = {}
        """Maximum number of files of the last plan, by the key of the warm cluster."""
        for item in harness.items:
            key = self._cluster_key(item)
            if key is not None:
                self._following.setdefault(key, []).append(item)

    def attach(self, item: pytest.Function, nextitem: pytest.Item | None) -> None:
        """Make pytest's own protocol run the phases of this item on the ranks."""
        spec = spec_of(item)
        assert spec is not None
        self._running = item
        item.stash[ON_RANKS] = ItemOnRanks(self, item, nextitem, spec)

    def lease(self, spec: StrategySpec, mark: DdlMark) -> AbstractContextManager[Cluster]:
        """Lease a cluster for one item."""
        return self._harness.cluster(spec, mark, sessions=True)

    def unavailable(self, spec: StrategySpec, mark: DdlMark) -> str | None:
        """Return why a variant cannot run here, or ``None``."""
        return self._harness.unavailable(spec, mark)

    def timeout(self, mark: DdlMark) -> float:
        """Return the time limit of an item in seconds."""
        return self._harness.timeout(mark)

    # ----- sessions in the ranks -----

    def open_session(self, cluster: Cluster, item: pytest.Item) -> None:
        """Make the ranks collect the item's file, unless they already have.

        :raises ClusterError: if pytest cannot start in a rank.
        """
        file = str(item.path)
        if cluster.session_plan is not None and file in cluster.session_plan.files:
            return
        plan = self._plan(cluster.spec, item, replaced=cluster.session_plan is None)
        deadline = time.monotonic() + self._harness.start_timeout
        answers: Sequence[Answer] = cluster.ask(RequestKind.OPEN_SESSION, plan, deadline=deadline)
        if not all(answer.ok for answer in answers):
            late = f"; {LONGER}" if is_late(answers) else ""
            raise ClusterError(f"pytest could not start in the ranks{late}\n{explain(answers)}")
        cluster.session_plan = plan

    def _plan(self, spec: StrategySpec, item: pytest.Item, *, replaced: bool) -> SessionPlan:
        chosen = self._files(item, replaced)
        given = {name: value for name, value in vars(self._config.option).items() if name != "file_or_dir"}
        options = {name: value for name, value in given.items() if _is_picklable(value)}
        options.update({name: value for name, value in RANK_OPTIONS.items() if name in options})
        options["plugins"] = [*options.get("plugins", []), *RANK_PLUGINS_OFF]
        options["ddl_machine"] = self._harness.machine
        options["ddl_folder"] = str(self._harness.folder)
        options["ddl_variant"] = spec
        args = ["--rootdir", str(self._config.rootpath)]
        if self._config.inipath is not None:
            args += ["-c", str(self._config.inipath)]
        for setting in self._config.option.override_ini or ():
            args += ["-o", setting]
        return SessionPlan(
            options, tuple(args), tuple(chosen), self._basetemp(spec), tuple(self._config.getini("markers"))
        )

    def _files(self, item: pytest.Item, replaced: bool) -> list[str]:
        """Return the file of an item and those of the next items that share its cluster."""
        key = self._cluster_key(item)
        if key is None:
            return [str(item.path)]
        known = self._collected.get(key)
        number = MAX_FILES if known is None else FEW_FILES if replaced else min(2 * known, MAX_FILES)
        self._collected[key] = number
        return list(dict.fromkeys(str(one.path) for one in (item, *self._later(key, item))))[:number]

    def _basetemp(self, spec: StrategySpec) -> str | None:
        """Return a new folder for the ranks' ``tmp_path`` inside the controller's, as pytest-xdist does it."""
        factory = getattr(self._config, "_tmp_path_factory", None)
        self._opened += 1
        return f"{factory.getbasetemp()}/{spec.name}-{self._opened}" if factory is not None else None

    def next_in(self, cluster: Cluster, item: pytest.Item, nextitem: pytest.Item | None) -> str | None:
        """Return the id of the item that these ranks run next. It decides which of their fixtures stay alive."""
        key = self._cluster_key(item)
        if nextitem is None or key is None:
            return None
        files = cluster.session_plan.files
        # An xdist worker knows only its next item. Later items of this variant may run in another worker.
        shared = hasattr(self._config, "workerinput")
        items = [nextitem] if shared else self._later(key, item)
        if items and str(items[0].path) in files and self._cluster_key(items[0]) == key:
            return items[0].nodeid
        return None

    def _cluster_key(self, item: pytest.Item) -> tuple[str, str] | None:
        """Return the key of the warm cluster that the item shares with other items.

        It is ``None`` if the item has its own cluster or needs none.
        """
        spec = spec_of(item)
        if spec is None or not is_spmd(item):
            return None
        mark = parse_mark(item)
        return None if self._harness.needed(mark).is_alone else (str(spec), self._harness.device_for(spec, mark))

    def _later(self, key: tuple[str, str], item: pytest.Item) -> list[pytest.Item]:
        items = self._following.get(key, [])
        # An item that pytest-rerunfailures runs again has already been removed from the list.
        if item in items:
            del items[: items.index(item) + 1]
        return items

    # ----- reports -----

    def report_session_end(
        self, item: pytest.Item, cluster: Cluster, answers: Sequence[Answer], *, later: bool = False
    ) -> None:
        """Report failures of fixtures of wider scopes that were torn down after an item's own tear-down.

        They are errors even if the item is expected to fail, and they are not run again.

        :param answers: answers of the ranks, or none if the ranks could not be asked.
        :param later: log the report at the end of the running item's protocol, after the item's own reports.
        """
        self.record_warnings(warning for answer in answers if answer.ok for warning in answer.body.warnings)
        try:
            if not answers:
                raise pytest.fail.Exception(cluster.dirty)
            *_subtests, report = merge_phase(item, "teardown", answers)
        except pytest.fail.Exception as error:
            report = failed_report(item, "teardown", f"fixtures of a wider scope were not torn down: {error}")
        if not report.failed:
            return
        if self._running is not None and self._running is not item and hasattr(self._config, "workerinput"):
            # An xdist worker can report only the item that it runs.
            text = f"a fixture of {item.nodeid} failed when it was torn down\n{report.longreprtext}"
            report = failed_report(self._running, "teardown", text)
        report.sections = [shortened(self._config, *found) for found in output_sections(answers, "teardown")]
        self._late.append((item, report))
        if not later:
            self._log_late()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logfinish(self) -> None:
        self._log_late()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        # If an item was interrupted, pytest did not call the hook for its end.
        self._log_late()

    def _log_late(self) -> None:
        late, self._late = self._late, []
        for item, report in late:
            item.ihook.pytest_runtest_logreport(report=report)

    def record_warnings(self, found: Iterable[RankWarning]) -> None:
        """Add the ranks' warnings to the summary of this process. Equal warnings of several ranks are added once."""
        for warning in dict.fromkeys(found):
            message = unpickled(warning.message)
            recorded = warnings.WarningMessage(message, type(message), warning.filename, warning.lineno)
            self._config.hook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": recorded,
                    "when": warning.when,
                    "nodeid": warning.nodeid,
                    "location": None,
                }
            )


def _is_picklable(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
