"""Run the set-up, body and tear-down of an item on the ranks of a cluster, within pytest's own protocol.

The ranks run real pytest sessions. This process sends SETUP, BODY and TEARDOWN and waits for all ranks after each.
No rank therefore enters the body if the set-up failed on another rank.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import pytest

from pytest_ddl.cluster.cluster import GRACE, Answer, Cluster, ClusterError, Fate
from pytest_ddl.cluster.explain import sections
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.parameters import difference, in_words
from pytest_ddl.cluster.protocol import PhaseResult, RankWarning, RequestKind
from pytest_ddl.items.long_output import shortened
from pytest_ddl.items.merge import (
    collection_differs,
    count_failed,
    crash_message,
    failed_report,
    is_unexpected_pass,
    merge_phase,
    output_sections,
    session_exit,
)
from pytest_ddl.items.selection import DdlMark, parse_mark
from pytest_ddl.strategies.spec import StrategySpec

SKIP_PATIENCE = 10.0
"""Seconds to wait for the other ranks after one has skipped. They may skip later, because an import takes longer there.
But a rank that waits in a collective for the skipped one would wait for ever."""
ON_RANKS = pytest.StashKey["ItemOnRanks"]()
"""Runner of an item's phases, if the item runs on ranks."""
PLUGIN_TIMEOUT = pytest.StashKey[Any]()
"""Settings of pytest-timeout for the item: ``timeout`` in seconds and ``func_only``."""


class _NotPassedError(AssertionError):
    """The merged report of a phase is not a pass. Allure calls a test with another kind of exception broken."""


class ItemRunner(Protocol):
    """The clusters that all items of a process share, and the reports about them."""

    def lease(self, spec: StrategySpec, mark: DdlMark) -> AbstractContextManager[Cluster]:
        """Lease a cluster for one item."""

    def unavailable(self, spec: StrategySpec, mark: DdlMark) -> str | None:
        """Return why a variant cannot run here, or ``None``."""

    def timeout(self, mark: DdlMark) -> float:
        """Return the time limit of an item in seconds."""

    def open_session(self, cluster: Cluster, item: pytest.Item) -> None:
        """Make the ranks collect the item's file, unless they already have.

        :raises ClusterError: if pytest cannot start in a rank.
        """

    def next_in(self, cluster: Cluster, item: pytest.Item, nextitem: pytest.Item | None) -> str | None:
        """Return the id of the item that these ranks run next. It decides which of their fixtures stay alive."""

    def report_session_end(
        self, item: pytest.Item, cluster: Cluster, answers: Sequence[Answer], *, later: bool = False
    ) -> None:
        """Report failures of fixtures of wider scopes that were torn down after an item's own tear-down."""

    def record_warnings(self, found: Iterable[RankWarning]) -> None:
        """Add the ranks' warnings to the summary of this process."""


class ItemOnRanks:
    """Runner of one item, whose set-up, body and tear-down run on the ranks of a cluster.

    Its methods replace the item's own methods. Pytest's protocol and other plugins (timeouts, reruns,
    ``--setup-only``) then treat the item like any other. An exception that a plugin raises while ranks are busy fails
    the phase.
    """

    def __init__(
        self, runner: ItemRunner, item: pytest.Function, nextitem: pytest.Item | None, spec: StrategySpec
    ) -> None:
        self._runner = runner
        self._item = item
        self._nextitem = nextitem
        self._spec = spec
        self._mark = parse_mark(item)
        self._test = item.obj
        self._lease = ExitStack()
        self._begin()
        for name in ("setup", "runtest", "teardown"):
            setattr(item, name, getattr(self, name))

    def _begin(self) -> None:
        """Reset the state of an earlier attempt, because pytest-rerunfailures sets up the same item repeatedly."""
        self._cluster: Cluster | None = None
        self._following: str | None = None
        """Id of the item that the ranks run next. They keep fixtures for it."""
        self._deadline = math.inf
        self._cut = ""
        """Message of another plugin if its time limit is the deadline."""
        self._spoiled = False
        """True if the item failed, also if it was expected to."""
        self._intact = False
        """True if the item only failed as expected, and its process can be checked as after a passed test."""
        self._sections: list[tuple[str, str]] = []
        """Sections of the item's reports so far. Each report also contains the sections of the earlier ones."""
        self._shown: list[tuple[str, str]] = []
        """The same sections, of which the long ones are cut."""
        self._merged: dict[str, pytest.TestReport] = {}
        self._printed: list[tuple[int, int]] = []
        """Sizes of stdout and stderr of each process before the current phase."""
        self._raised: BaseException | None = None
        """Exception that this object raised to end a phase that the ranks did not pass."""
        self._interrupted: tuple[BaseException, str] | None = None
        """Exception that other code raised while the ranks were busy, and the text that explains it in the report."""

    # ----- what pytest calls instead of the item's own methods -----

    def setup(self) -> None:
        """Lease a cluster and set up the item on its ranks."""
        __tracebackhide__ = True
        self._begin()
        unavailable = self._runner.unavailable(self._spec, self._mark)
        if unavailable is not None:
            raise pytest.skip.Exception(f"{self._spec}: {unavailable}", _use_item_location=True)
        with self._waiting("setup"):
            cluster = self._cluster = self._lease.enter_context(self._runner.lease(self._spec, self._mark))
            if cluster.next_item != self._item.nodeid:
                # The last item left its fixtures for another item, which was skipped.
                cluster.tear_down_session()
            self._runner.open_session(cluster, self._item)
            # The time limit of the test starts when its ranks are ready: how long that takes depends on earlier tests.
            self._limit(self._runner.timeout(self._mark))
            self._limit_by_plugin(func_only=False)
            self._following = self._runner.next_in(cluster, self._item, self._nextitem)
            # From now on, this item reports what its ranks cannot tear down.
            cluster.on_session_end = None
            self._phase(cluster, "setup", RequestKind.SETUP, (self._item.nodeid, self._following))
        if _is_given(self._item):
            # To check the scopes of a @given test's fixtures, Hypothesis's own hook would set them up in this process.
            self._item.obj = _runs_on_ranks

    def runtest(self) -> None:
        """Run the item's body on the ranks."""
        __tracebackhide__ = True
        cluster = self._cluster
        assert cluster is not None
        self._limit_by_plugin(func_only=True)
        self._item.obj = self._test
        if _is_given(self._item):
            self._examples(cluster)
            return
        with self._waiting("call"):
            self._phase(cluster, "call", RequestKind.BODY, None)

    def teardown(self) -> None:
        """Tear the item down on the ranks and give the cluster back."""
        __tracebackhide__ = True
        cluster = self._cluster
        with self._lease, self._waiting("teardown"):
            # Ranks that have died or are stuck cannot tear down. Their cluster is ended instead.
            if cluster is None or cluster.dirty or cluster.session_plan is None:
                return
            if self._spoiled and not self._intact:
                cluster.retired = cluster.retired or f"{self._item.nodeid} failed in it"
            cluster.next_item = None
            cluster.on_session_end = self._rest_is_torn_down
            try:
                self._phase(cluster, "teardown", RequestKind.TEARDOWN, not (cluster.retired or self._spoiled))
            except BaseException:
                cluster.retired = cluster.retired or f"{self._item.nodeid} failed in it"
                raise
            finally:
                self._keep_or_end(cluster)

    def _keep_or_end(self, cluster: Cluster) -> None:
        """Keep the fixtures of wider scopes for the next item, if there is one."""
        if cluster.dirty:
            # The report of this phase says that the ranks were lost.
            cluster.on_session_end = None
            return
        if cluster.retired or (self._spoiled and not self._is_followed_inside()):
            # The cluster is about to be ended, or the item has torn down only its own fixtures. So everything that the
            # cluster still holds is torn down now.
            cluster.tear_down_session(self._deadline)
            return
        cluster.next_item = self._following
        cluster.on_session_end = None
        if self._following:
            cluster.on_session_end = functools.partial(self._runner.report_session_end, self._item, cluster)

    def _is_followed_inside(self) -> bool:
        """Return whether the next item is in the same class, or in the same module if this one is in no class."""
        parent = self._item.parent
        return parent is not None and (self._following or "").startswith(f"{parent.nodeid}::")

    def _rest_is_torn_down(self, answers: Sequence[Answer]) -> None:
        """Report the tear-down of fixtures of wider scopes. It does not change the item's own outcome."""
        assert self._cluster is not None
        self._runner.report_session_end(self._item, self._cluster, answers, later=True)
        self._add_sections(output_sections(answers, "teardown"))

    def report(self, call: pytest.CallInfo[None], made_here: pytest.TestReport) -> pytest.TestReport:
        """Return the merged report of the ranks.

        If the phase did not end with the outcome of the ranks, return ``made_here``, the report of this process.
        """
        report = made_here
        merged = self._merged.pop(call.when, None)
        error = call.excinfo.value if call.excinfo is not None else None
        if merged is not None and error in (None, self._raised) and not (merged.passed and made_here.failed):
            report = merged
            report.duration, report.start, report.stop = made_here.duration, made_here.start, made_here.stop
        elif self._interrupted is not None and error is self._interrupted[0] and made_here.failed:
            report.longrepr = self._interrupted[1]
        self._spoiled = self._spoiled or report.failed or hasattr(report, "wasxfail")
        self._add_sections(made_here.sections)
        report.sections = list(self._shown)
        return report

    # ----- phases -----

    def _phase(self, cluster: Cluster, when: Any, kind: RequestKind, body: Any) -> None:
        """Run one phase on all ranks and keep their merged report.

        :raises Exception: if the merged report is not a pass.
        """
        __tracebackhide__ = True
        self._printed = [process.output_offsets() for process in cluster.processes]
        answers = cluster.ask(kind, body, deadline=self._deadline, patience=_patience)
        self._runner.record_warnings(warning for answer in answers if answer.ok for warning in answer.body.warnings)
        parameters = [(answer.rank, answer.body.parameters) for answer in answers if answer.ok]
        mismatch = difference(in_words(self._item), parameters) if kind is RequestKind.SETUP else None
        lost: BaseException | None = None
        try:
            subtests: list[pytest.TestReport] = []
            uncollected = collection_differs(self._item, answers) if kind is RequestKind.SETUP else None
            if uncollected is None:
                *subtests, report = merge_phase(self._item, when, answers)
                report = report if mismatch is None else failed_report(self._item, when, mismatch)
            else:
                report = uncollected
        except pytest.fail.Exception as error:
            lost = error
        self._add_sections(output_sections(answers, when))
        if (ended := session_exit(self._item, answers)) is not None:
            raise ended
        if lost is not None:
            cut = self._cut if any(answer.fate is Fate.DEADLINE for answer in answers) else ""
            self._raise(pytest.fail.Exception(f"{cut}{lost}", pytrace=False))
        for subtest in subtests:
            self._item.ihook.pytest_runtest_logreport(report=subtest)
        self._merged[when] = report
        if hasattr(report, "wasxfail") and report.skipped:
            # A process without servers has no operations that wait for those of another one.
            alone = len(cluster.processes) == 1 and not cluster.reservation.addresses
            self._intact = when == "call" and alone and all(answer.ok and answer.body.intact for answer in answers)
            self._raise(pytest.xfail.Exception(report.wasxfail))
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self._raise(pytest.skip.Exception(reason))
        if report.failed and not is_unexpected_pass(report):
            self._raise(_NotPassedError(crash_message(report)))

    def _examples(self, cluster: Cluster) -> None:
        from pytest_ddl.items.given import ExampleDispatcher, RankDisagreementError

        __tracebackhide__ = True
        dispatcher = ExampleDispatcher(cluster, self._item, self._deadline, _patience)
        try:
            dispatcher.run_engine()
        except RankDisagreementError as error:
            # The notes of Hypothesis name the example.
            text = "\n".join([str(error), *getattr(error, "__notes__", ())])
            self._merged["call"] = failed_report(self._item, "call", text)
            self._raise(error)
        finally:
            self._add_sections(dispatcher.sections())
        if dispatcher.failed_subtests:
            text = count_failed(dispatcher.failed_subtests)
            self._merged["call"] = failed_report(self._item, "call", text)
            self._raise(_NotPassedError(text))

    @contextmanager
    def _waiting(self, when: Any) -> Iterator[None]:
        """Record why a phase ends, even if a signal handler raises an exception in this process in the meantime."""
        __tracebackhide__ = True
        try:
            yield
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except (ClusterError, LaunchError) as error:
            self._merged[when] = failed_report(self._item, when, str(error))
            self._raise(error)
        except BaseException as error:
            if error is not self._raised:
                self._interrupted = error, self._explain_interruption(when, error)
            raise

    def _explain_interruption(self, when: str, error: BaseException) -> str:
        cluster = self._cluster
        said = f"{type(error).__name__}: {error}\nIt was raised in the pytest process during the {when} of this test"
        if cluster is None:
            return f"{said}, while its cluster was being started."
        cluster.dirty = cluster.dirty or "interrupted"
        with suppress(LaunchError):
            answers = [
                Answer(rank, str(cluster.tasks[rank]), Fate.INTERRUPTED, stacks=text)
                for rank, text in cluster.stacks().items()
            ]
            if self._printed:
                outputs = [cluster.processes[answer.rank].output(self._printed[answer.rank]) for answer in answers]
                pairs = zip(answers, outputs, strict=True)
                printed = [replace(answer, stdout=out, stderr=err) for answer, (out, err) in pairs]
                self._add_sections(output_sections(printed, when))
            parts = "\n".join(f"\n{title}\n{text}" for title, text in sections(answers))
            return f"{said}, while its ranks were here:\n{parts}"
        return f"{said}."

    def _raise(self, error: BaseException) -> NoReturn:
        # This frame must not be hidden: if all frames are hidden, pytest adds a line about that to the message.
        self._raised = error
        raise error

    def _add_sections(self, found: Iterable[tuple[str, str]]) -> None:
        """Add the new sections, and print them if output is not captured."""
        new = [section for section in found if section not in self._sections]
        self._sections += new
        self._shown += [shortened(self._item.config, *section) for section in new]
        if self._item.config.getoption("capture") == "no":
            _show(new)

    # ----- deadlines -----

    def _limit(self, seconds: float, cut: str = "") -> None:
        deadline = time.monotonic() + seconds
        if deadline < self._deadline:
            self._deadline, self._cut = deadline, cut

    def _limit_by_plugin(self, *, func_only: bool) -> None:
        limit = self._item.stash.get(PLUGIN_TIMEOUT, None)
        if limit is not None and limit.func_only == func_only:
            self._limit(limit.timeout, f"Timeout (>{limit.timeout}s) from pytest-timeout: ")


def _patience(body: PhaseResult) -> float | None:
    if body.failed:
        return GRACE
    if not body.reports:
        return None
    last = body.reports[-1]
    return SKIP_PATIENCE if last["outcome"] == "skipped" and "wasxfail" not in last else None


def _runs_on_ranks() -> None:
    """Replace a test's function until its body runs."""


def _is_given(item: pytest.Function) -> bool:
    return "hypothesis" in sys.modules and hasattr(item.obj, "hypothesis")


def _show(sections: Sequence[tuple[str, str]]) -> None:
    """Print the output of the ranks, each line with its rank."""
    for title, text in sections:
        rank = title[title.index("[") :] + " " if "[" in title else ""
        for line in text.splitlines() if title.startswith("Captured") else ():
            sys.stdout.write(f"\n{rank}{line}")
