"""Run a pytest session inside a rank. It collects the controller's items, runs their phases and returns the reports.

The session is an ordinary one with conftests, fixtures, plugins and assertion rewriting. It is started through
``Config.fromdictargs``, as in pytest-xdist. Its test loop serves requests from the controller instead of running all
items. Output is not captured here. It goes to the rank's log, which the controller can read even after the rank has
died.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

import pytest

from pytest_ddl.cluster.call_warnings import pickled
from pytest_ddl.cluster.examples import asked_exit, run_example
from pytest_ddl.cluster.parameters import in_words
from pytest_ddl.cluster.proof import Proof
from pytest_ddl.cluster.protocol import (
    UNEXPECTED_PASS,
    ExampleResult,
    PhaseResult,
    RankWarning,
    Request,
    RequestKind,
    SessionPlan,
)
from pytest_ddl.cluster.state import user_files
from pytest_ddl.strategies.base import RankContext
from pytest_ddl.strategies.parameter_server import join_scheduled

if TYPE_CHECKING:
    from pytest_ddl.cluster.state.process_state import ProcessState

_NO_REWRITE_WARNING = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")
"""Options against a warning. A rank has imported this package before pytest starts, and pytest warns about that. If
warnings are errors, pytest would not start."""


class SessionWorker(Protocol):
    """Part of a worker process that its session uses."""

    state: ProcessState
    context: RankContext

    def next_request(self) -> Request:
        """Wait for the next request."""

    def push_back(self, request: Request) -> None:
        """Put a request back, so that it is the next one."""

    def reply(self, request: Request, body: Any = None) -> None:
        """Send the reply to a request."""

    def answer(self, request: Request) -> None:
        """Carry out a request that needs no open session, and reply."""

    def notify(self) -> None:
        """Send a notice that the current request has ended with an exception."""

    def text_here(self, text: str) -> str:
        """Return a text with the paths of the pytest process."""


# Compared by identity, because pluggy keeps plugins in sets.
@dataclass(eq=False)
class RankSession:
    """Pytest session in this process. It runs from the request that opens it until another request ends it."""

    worker: SessionWorker
    opening: Request
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _not_collected: dict[str, str] = field(default_factory=dict)
    """Reason by node, for files and classes that pytest did not collect in this rank."""
    _end: str = ""
    """Reason for which pytest ended before it ran its test loop."""
    _reports: list[Any] = field(default_factory=list)
    _proof: Proof = field(default_factory=Proof)
    _warnings: list[RankWarning] = field(default_factory=list)
    _opened: bool = False
    _request: Request | None = None
    _torn_down: tuple[Request, PhaseResult] | None = None
    _last: pytest.Item | None = None

    def run(self) -> None:
        """Collect the items, serve requests and end the session at a request for a new session or to stop.

        :raises RuntimeError: if pytest did not start.
        """
        plan: SessionPlan = self.opening.body
        options = dict(plan.options)
        if plan.basetemp is not None:
            parent, name = os.path.split(plan.basetemp)
            # Another host need not have the folder of the controller, and one of this name may belong to another run
            # there. The agent removes this rank's own one.
            is_chosen = options.get("basetemp") is not None and os.path.isdir(parent)
            parent = parent if is_chosen or not user_files.on_host_of_agent() else tempfile.gettempdir()
            options["basetemp"] = f"{parent}/{name}-rank{self.worker.context.rank}"
        config = pytest.Config.fromdictargs(options, [*_NO_REWRITE_WARNING, *plan.args, *plan.files])
        config.pluginmanager.register(self, "ddl-rank-session")
        status = config.hook.pytest_cmdline_main(config=config)
        if not self._opened:
            why = self._end or "see the rank's output"
            raise RuntimeError(f"pytest could not start in this rank (exit status {status}): {why}")

    # ----- hooks -----

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        known = set(config.getini("markers"))
        for line in self.opening.body.markers:
            if line not in known:
                config.addinivalue_line("markers", line)

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self) -> bool:
        """Ignore each file that is not one of the plan, which pytest does not ask about.

        It would make nodes of all files in a folder, and once more for each file of the plan that is in there.
        """
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        # Parameters may be paths, which are other ones here than in the pytest process.
        self._items = {self.worker.text_here(item.nodeid): item for item in session.items}
        self._opened = True
        self.worker.state.adopt()
        self.worker.reply(self.opening)
        while True:
            request = self.worker.next_request()
            if request.kind in (RequestKind.STOP, RequestKind.OPEN_SESSION):
                self.worker.push_back(request)
                return True
            if request.kind is RequestKind.SETUP:
                self._run_item(session, request)
            elif request.kind is RequestKind.TEARDOWN:
                # This rank did not collect the item.
                self.worker.reply(request, PhaseResult((), False))
            elif request.kind is RequestKind.END_SESSION:
                self._tear_all_down(session, request)
            else:
                self.worker.answer(request)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._not_collected[report.nodeid] = f"{report.nodeid} could not be collected:\n{report.longreprtext}"
        elif report.skipped:
            file, line, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, report.longrepr)
            self._not_collected[report.nodeid] = f"{file}:{line} skipped {report.nodeid}: {reason}"

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._not_collected.update({item.nodeid: "a plugin or a conftest deselected it" for item in items})

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # pytest.exit() ends a session like this too.
        self._end = excinfo.exconly()

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._end = f"{excinfo.exconly()}, at {excinfo.traceback[-1].path}:{excinfo.traceback[-1].lineno + 1}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        # Pytest's terminal plugin is off in a rank, but other plugins that log reports need the result of this hook.
        return report.outcome, "", ""

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        self._warnings.append(
            RankWarning(
                pickled(warning_message.message), warning_message.filename, warning_message.lineno, when, nodeid
            )
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        assert self._request is not None
        self._reply(self._request, self._phase(item, "setup"))
        while True:
            request = self.worker.next_request()
            if request.kind is RequestKind.TEARDOWN:
                # In a retired cluster, tear down only this item. Otherwise its xfail marker or a rerun could hide the
                # failed tear-down of a fixture that it shares with other items.
                keep = nextitem if request.body else item.parent
                self._torn_down = request, self._phase(item, "teardown", {"nextitem": keep})
                return True
            if request.kind is not RequestKind.BODY:
                self.worker.answer(request)
            elif request.body is None:
                self._reply(request, self._phase(item, "call"))
            else:
                self.worker.reply(request, self._example(item, pickle.loads(request.body)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        result = yield
        join_scheduled(self.worker.context.strategy)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        with self.worker.state.kept_by(fixturedef):
            return (yield)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self.worker.state.release(fixturedef)

    # ----- phases -----

    def _run_item(self, session: pytest.Session, request: Request) -> None:
        nodeid, next_nodeid = request.body
        item = self._items.get(self.worker.text_here(nodeid))
        if item is None:
            self.worker.reply(request, PhaseResult((), True, not_collected=self._why_not_collected(nodeid)))
            return
        self._request = request
        self._last = item
        following = next_nodeid and self._items.get(self.worker.text_here(next_nodeid))
        with self._proved(item):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if self._torn_down is not None:
            # Reply only now, because pytest reports the warnings of an item at the end of its protocol.
            self._reply(*self._torn_down)
            self._torn_down = None

    def _why_not_collected(self, nodeid: str) -> str:
        here = self.worker.text_here(nodeid)
        # Nodes are named by path and then by class: "tests/test_a.py::TestB::test_c".
        above = [why for node, why in self._not_collected.items() if here.startswith(node)]
        return "\n".join(above) or (
            f"its pytest found {len(self._items)} other tests and not this one. Either the file defines other tests "
            "there, or a conftest leaves the file out"
        )

    @contextmanager
    def _proved(self, item: pytest.Item) -> Iterator[None]:
        """Count the calls of the collected function. It is wrapped before fixtures and plugins can replace it."""
        if not isinstance(item, pytest.Function):
            yield
            return
        collected = item.obj
        item.obj = self._proof.of(collected)
        try:
            yield
        finally:
            item.obj = collected

    def _phase(self, item: pytest.Item, when: Any, arguments: Mapping[str, Any] = MappingProxyType({})) -> PhaseResult:
        self._reports.clear()
        self._proof.reset()
        hook = getattr(item.ihook, f"pytest_runtest_{when}")
        call = pytest.CallInfo.from_call(lambda: hook(item=item, **arguments), when=when)
        if call.excinfo is not None:
            self.worker.notify()
        report = self._report(item, call)
        if when == "call" and call.excinfo is None and report.failed and item.get_closest_marker("xfail") is not None:
            setattr(report, UNEXPECTED_PASS, True)
        item.ihook.pytest_runtest_logreport(report=report)
        reports = self._serialized(item, self._reports)
        parameters = in_words(item) if when == "setup" else {}
        # An error of a GPU may stay with its process, and so may what ends a program.
        told = call.excinfo is None or isinstance(call.excinfo.value, (Exception, pytest.xfail.Exception))
        intact = told and self.worker.context.device == "cpu"
        # Pytest keeps an exception for a debugger, and with it all values of the test, until the next body.
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)
        entered, finished = self._proof.entered, self._proof.finished
        ended = asked_exit(call.excinfo and call.excinfo.value)
        return PhaseResult(
            reports, bool(report.failed), entered, finished, parameters=parameters, intact=intact, exit=ended
        )

    @staticmethod
    def _report(item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
        """Make the report of a phase. The traceback of an expected failure shows one line of each frame.

        Pytest parses all files of a longer traceback, those of TensorFlow and Keras too, which takes a second. Only
        ``--xfail-tb`` shows it.
        """
        hook, option = item.ihook.pytest_runtest_makereport, item.config.option
        error = call.excinfo
        expected = item.get_closest_marker("xfail") or isinstance(error and error.value, pytest.xfail.Exception)
        style = getattr(option, "tbstyle", "no")  # pytest has no such options without its terminal
        if error is None or not expected or call.when != "call" or style == "no" or option.xfail_tb:
            return cast("pytest.TestReport", hook(item=item, call=call))
        option.tbstyle = "native"
        try:
            report = hook(item=item, call=call)
        finally:
            option.tbstyle = style
        if report.failed:
            report.longrepr = item.repr_failure(error)
        return cast("pytest.TestReport", report)

    def _tear_all_down(self, session: pytest.Session, request: Request) -> None:
        """Tear down the fixtures that were kept for a next item which does not run."""
        item = self._last
        if item is None:
            self.worker.reply(request, PhaseResult((), False))
            return
        # Call pytest's implementation and not the hook, because other plugins have already seen this item's tear-down.
        runner: Any = session.config.pluginmanager.get_plugin("runner")

        def tear_down() -> None:
            __tracebackhide__ = True
            runner.pytest_runtest_teardown(item, None)

        call = pytest.CallInfo.from_call(tear_down, when="teardown")
        # Not the hook, because pytest's own implementation would turn this into an expected failure (xfail).
        report = pytest.TestReport.from_item_and_call(item, call)
        self._reply(request, PhaseResult(self._serialized(item, [report]), bool(report.failed)))

    @staticmethod
    def _serialized(item: pytest.Item, reports: Iterable[pytest.TestReport]) -> tuple[Mapping[str, Any], ...]:
        hook = item.config.hook
        return tuple(hook.pytest_report_to_serializable(config=item.config, report=report) for report in reports)

    def _reply(self, request: Request, result: PhaseResult) -> None:
        self.worker.reply(request, replace(result, warnings=tuple(self._warnings)))
        self._warnings.clear()

    def _example(self, item: pytest.Item, drawn: Mapping[str, Any]) -> ExampleResult:
        """Call the body of a ``@given`` test with drawn values and with fixtures of this rank."""
        assert isinstance(item, pytest.Function)
        self._reports.clear()
        self._proof.reset()
        ending = run_example(
            item,
            drawn,
            self._proof,
            finish=lambda: join_scheduled(self.worker.context.strategy),
            on_error=self.worker.notify,
        )
        return ExampleResult(
            self._serialized(item, [*self._reports, ending.report(item)]),
            ending.outcome == "failed",
            self._proof.entered,
            self._proof.finished,
            exit=asked_exit(ending.error),
            failure=ending.failure,
            rejected=ending.rejected,
            returned=ending.returned,
        )
