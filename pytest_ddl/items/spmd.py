"""Running a test on all ranks: the controller's side of one item, phase by phase.

The body runs in the ranks, in real pytest sessions; this process sends SETUP, BODY, TEARDOWN and
waits for all ranks after each, so that no rank enters a body whose set-up failed elsewhere.
"""

from __future__ import annotations

import pickle
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from pytest_ddl.cluster.cluster import GRACE, Answer, Cluster, ClusterError
from pytest_ddl.cluster.launcher import LaunchError
from pytest_ddl.cluster.protocol import Kind, PhaseResult, RankWarning, SessionPlan
from pytest_ddl.cluster.resources import ResourcesBusyError
from pytest_ddl.harness import Harness
from pytest_ddl.items.merge import failed_report, merge_phase
from pytest_ddl.items.selection import parse_mark
from pytest_ddl.strategies.spec import StrategySpec

SKIP_PATIENCE = 10.0
"""Seconds to wait for the other ranks once one has skipped: ranks that skip alike may differ in how
long an import takes, while a rank that waits in a collective for the skipped one waits for ever."""
MAX_FILES = 32
"""Test files that a rank collects at a time; collecting costs it their import."""
RANK_OPTIONS: Mapping[str, Any] = {
    "capture": "no",
    "collectonly": False,
    "durations": None,
    "failedfirst": False,
    "keyword": "",
    "lf": False,
    "markexpr": "",
    "maxfail": 0,
    "newfirst": False,
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
"""What the controller alone does with the tests: choosing, ordering, reporting."""
RANK_PLUGINS_OFF = ("no:terminal", "no:cacheprovider", "no:junitxml", "no:cov", "no:randomly", "no:rerunfailures")


SPEC = pytest.StashKey[StrategySpec]()
"""The variant that an item was collected for."""


def spec_of(item: pytest.Item) -> StrategySpec | None:
    """The variant that an item was collected for, or ``None`` where it asks for no strategy."""
    return item.stash.get(SPEC, None)


def is_spmd(item: pytest.Item) -> bool:
    """Whether the item's body runs in the ranks (rather than driving them from here)."""
    return spec_of(item) is not None and "ddl_strategy" in getattr(item, "fixturenames", ())


class SpmdRunner:
    """Runs the items that ask for ``ddl_strategy``; one for each pytest process."""

    def __init__(self, harness: Harness, config: pytest.Config) -> None:
        self._harness = harness
        self._config = config
        self._opened = 0
        self._sections: list[tuple[str, str]] = []
        """What the current item's reports have said so far: each report has the earlier ones' sections too."""
        self._following: dict[tuple[str, str], list[pytest.Item]] = {}
        """The items that still come, by the warm cluster in which they run."""
        for item in harness.items:
            key = self._cluster_key(item)
            if key is not None:
                self._following.setdefault(key, []).append(item)

    def run(self, item: pytest.Function, nextitem: pytest.Item | None) -> None:
        """Run one item on all ranks and log one report for each phase."""
        self._sections = []
        self._run(item, nextitem)
        # Nothing was set up here for this item, but for items before it whose next one it was.
        runner: Any = item.config.pluginmanager.get_plugin("runner")
        call = pytest.CallInfo.from_call(
            lambda: runner.pytest_runtest_teardown(item, nextitem), when="teardown", reraise=(KeyboardInterrupt,)
        )
        if call.excinfo is not None:
            self._log(item, [item.ihook.pytest_runtest_makereport(item=item, call=call)])

    def _run(self, item: pytest.Function, nextitem: pytest.Item | None) -> None:
        spec = spec_of(item)
        assert spec is not None
        mark = parse_mark(item)
        started = time.monotonic()
        if self._ends_here(item, spec, self._harness.unavailable(spec, mark)):
            return
        try:
            with self._harness.cluster(spec, mark) as cluster:
                self._run_in(cluster, item, nextitem, started, self._harness.timeout(mark))
        except (ClusterError, LaunchError, ResourcesBusyError) as error:
            self._log(item, [failed_report(item, "setup", str(error))])
            self._log(item, [self._empty_report(item, "teardown")])

    def _run_in(
        self, cluster: Cluster, item: pytest.Function, nextitem: pytest.Item | None, started: float, timeout: float
    ) -> None:
        # The test's time begins when its cluster is there: how long that takes depends on what ran before.
        deadline = time.monotonic() + timeout
        problem = self._open_session(cluster, item, deadline)
        if problem is not None:
            self._log(item, [problem, self._empty_report(item, "teardown")])
            return
        following = self._next_in(cluster, item, nextitem)
        report = self._phase(cluster, item, "setup", Kind.SETUP, (item.nodeid, following), deadline, started)
        if report.passed and not item.config.getoption("setuponly", False):
            if _is_given(item):
                report = self._examples(cluster, item, deadline)
            else:
                report = self._phase(cluster, item, "call", Kind.BODY, None, deadline)
        if cluster.dirty:
            # Ranks that are gone or stuck cannot tear down; they are ended as a whole instead.
            self._log(item, [self._empty_report(item, "teardown")])
            return
        # After a failure the cluster is ended, so everything that it holds is torn down now.
        clean = not (report.failed or hasattr(report, "wasxfail") or cluster.retired)
        report = self._phase(cluster, item, "teardown", Kind.TEARDOWN, clean, deadline)
        if report.failed or not clean:
            cluster.retired = cluster.retired or f"{item.nodeid} failed in it"

    def _phase(
        self,
        cluster: Cluster,
        item: pytest.Item,
        when: Any,
        kind: Kind,
        body: Any,
        deadline: float,
        started: float | None = None,
    ) -> pytest.TestReport:
        answers = cluster.ask(kind, body, deadline=deadline, patience=_patience)
        reports = merge_phase(item, when, answers)
        self._record_warnings(warning for answer in answers if answer.ok for warning in answer.body.warnings)
        if started is not None:
            reports[-1].duration = time.monotonic() - started
        self._log(item, reports)
        return reports[-1]

    def _examples(self, cluster: Cluster, item: pytest.Function, deadline: float) -> pytest.TestReport:
        from pytest_ddl.items.given import ExampleDispatcher

        dispatcher = ExampleDispatcher(cluster, item, deadline)
        started = time.monotonic()
        reraise = (pytest.exit.Exception, KeyboardInterrupt)
        call = pytest.CallInfo.from_call(dispatcher.run_engine, when="call", reraise=reraise)
        report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
        report.duration = time.monotonic() - started
        report.sections += dispatcher.sections()
        self._log(item, [report])
        return report

    # ----- sessions in the ranks -----

    def _open_session(self, cluster: Cluster, item: pytest.Item, deadline: float) -> pytest.TestReport | None:
        """Have the ranks collect the item's file, unless they have; return a report where they cannot."""
        file = str(item.path)
        if cluster.session_plan is not None and file in cluster.session_plan.files:
            return None
        plan = self._plan(cluster.spec, item)
        answers: Sequence[Answer] = cluster.ask(Kind.OPEN_SESSION, plan, deadline=deadline)
        if not all(answer.ok for answer in answers):
            report = merge_phase(item, "setup", answers)[-1]
            report.longrepr = f"pytest could not start in the ranks\n{report.longreprtext}"
            return report
        cluster.session_plan = plan
        return None

    def _plan(self, spec: StrategySpec, item: pytest.Item) -> SessionPlan:
        following = self._following.get(self._cluster_key(item) or ("", ""), ())
        chosen = list(dict.fromkeys(str(one.path) for one in (item, *following)))[:MAX_FILES]
        given = {name: value for name, value in vars(self._config.option).items() if name != "file_or_dir"}
        options = {name: value for name, value in given.items() if _is_picklable(value)}
        options.update({name: value for name, value in RANK_OPTIONS.items() if name in options})
        options["plugins"] = [*options.get("plugins", []), *RANK_PLUGINS_OFF]
        options["ddl_machine"] = self._harness.machine
        options["ddl_folder"] = str(self._harness.folder)
        args = ["--rootdir", str(self._config.rootpath)]
        if self._config.inipath is not None:
            args += ["-c", str(self._config.inipath)]
        for setting in self._config.option.override_ini or ():
            args += ["-o", setting]
        return SessionPlan(options, tuple(args), tuple(chosen), self._basetemp(spec))

    def _basetemp(self, spec: StrategySpec) -> str | None:
        """A place of their own for the ranks' ``tmp_path``, inside the controller's, as pytest-xdist has it."""
        factory = getattr(self._config, "_tmp_path_factory", None)
        self._opened += 1
        return f"{factory.getbasetemp()}/{spec.name}-{self._opened}" if factory is not None else None

    def _next_in(self, cluster: Cluster, item: pytest.Item, nextitem: pytest.Item | None) -> str | None:
        """The item that these ranks run next, which decides which of their fixtures stay alive."""
        key = self._cluster_key(item)
        if nextitem is None or key is None:
            return None
        files = cluster.session_plan.files
        # An xdist worker knows no more than its next item; others of this variant may go elsewhere.
        shared = hasattr(self._config, "workerinput")
        items = [nextitem] if shared else self._later(key, item)
        if items and str(items[0].path) in files and self._cluster_key(items[0]) == key:
            return items[0].nodeid
        return None

    def _cluster_key(self, item: pytest.Item) -> tuple[str, str] | None:
        """Which warm cluster the item shares with others; ``None`` where it has one of its own, or needs none."""
        spec = spec_of(item)
        if spec is None or not is_spmd(item):
            return None
        mark = parse_mark(item)
        return None if mark.isolation == "fresh" else (str(spec), self._harness.device_for(spec, mark))

    def _later(self, key: tuple[str, str], item: pytest.Item) -> list[pytest.Item]:
        items = self._following.get(key, [])
        while items and items.pop(0) is not item:
            pass
        return items

    # ----- reports -----

    def _ends_here(self, item: pytest.Item, spec: StrategySpec, unavailable: str | None) -> bool:
        """Skip what needs no cluster for that, and note ``xfail`` for the reports that are made here."""

        def evaluate() -> None:
            if unavailable is not None:
                raise pytest.skip.Exception(f"{spec}: {unavailable}", _use_item_location=True)
            skipping = item.config.pluginmanager.get_plugin("skipping")
            if skipping is not None:
                skipping.pytest_runtest_setup(item)

        call = pytest.CallInfo.from_call(evaluate, when="setup", reraise=(KeyboardInterrupt,))
        if call.excinfo is None:
            return False
        self._log(item, [item.ihook.pytest_runtest_makereport(item=item, call=call)])
        self._log(item, [self._empty_report(item, "teardown")])
        return True

    def _record_warnings(self, found: Iterable[RankWarning]) -> None:
        """Hand the ranks' warnings to this process's summary, equal ones of several ranks once."""
        for warning in dict.fromkeys(found):
            try:
                message = pickle.loads(warning.message)
            except Exception as error:
                message = f"a warning of a rank that cannot be shown here: {error}"
            message = message if isinstance(message, Warning) else UserWarning(message)
            recorded = warnings.WarningMessage(message, type(message), warning.filename, warning.lineno)
            self._config.hook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": recorded,
                    "when": warning.when,
                    "nodeid": warning.nodeid,
                    "location": None,
                }
            )

    def _empty_report(self, item: pytest.Item, when: Any) -> pytest.TestReport:
        return pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, 1), "passed", None, when)

    def _log(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        for report in reports:
            new = [section for section in report.sections if section not in self._sections]
            self._sections += new
            report.sections = list(self._sections)
            if self._config.getoption("capture") == "no":
                _show(new)
            item.ihook.pytest_runtest_logreport(report=report)


def _patience(body: PhaseResult) -> float | None:
    if body.failed:
        return GRACE
    last = body.reports[-1]
    return SKIP_PATIENCE if last["outcome"] == "skipped" and "wasxfail" not in last else None


def _is_given(item: pytest.Function) -> bool:
    return "hypothesis" in sys.modules and hasattr(item.obj, "hypothesis")


def _is_picklable(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _show(sections: Sequence[tuple[str, str]]) -> None:
    """With ``-s``, print what the ranks printed, each line with its rank."""
    for title, text in sections:
        rank = title[title.index("[") :] + " " if "[" in title else ""
        for line in text.splitlines() if title.startswith("Captured") else ():
            sys.stdout.write(f"\n{rank}{line}")
