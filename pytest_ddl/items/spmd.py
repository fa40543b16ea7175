"""Running a test on all ranks: the controller's side of one item, phase by phase.

The body runs in the ranks, in real pytest sessions; this process sends SETUP, BODY, TEARDOWN and
waits for all ranks after each, so that no rank enters a body whose set-up failed elsewhere.
"""

from __future__ import annotations

import math
import pickle
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from pytest_ddl.cluster.cluster import GRACE, Answer, Cluster, ClusterError, Fate
from pytest_ddl.cluster.explain import explain, sections
from pytest_ddl.cluster.launcher import LaunchError
from pytest_ddl.cluster.protocol import Kind, PhaseResult, RankWarning, SessionPlan
from pytest_ddl.cluster.resources import ResourcesBusyError
from pytest_ddl.harness import START_TIMEOUT, Harness
from pytest_ddl.items.merge import crash_message, failed_report, is_unexpected_pass, merge_phase, output_sections
from pytest_ddl.items.selection import DdlMark, parse_mark
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
"""What only the controller does with the tests: choosing, ordering, reporting.

A report that a rank writes when its session ends would replace the file of the controller."""
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
"""The variant that an item was collected for."""


ON_RANKS = pytest.StashKey["ItemOnRanks"]()
"""What runs the item's phases on ranks, for an item that does not run here."""
PLUGIN_TIMEOUT = pytest.StashKey[Any]()
"""The settings with which pytest-timeout would time the item: ``timeout`` in seconds, ``func_only``."""


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
        self._following: dict[tuple[str, str], list[pytest.Item]] = {}
        """The items that still come, by the warm cluster in which they run."""
        for item in harness.items:
            key = self._cluster_key(item)
            if key is not None:
                self._following.setdefault(key, []).append(item)

    def attach(self, item: pytest.Function, nextitem: pytest.Item | None) -> None:
        """Have pytest's own protocol run the phases of this item on the ranks."""
        item.stash[ON_RANKS] = ItemOnRanks(self, item, nextitem)

    def lease(self, spec: StrategySpec, mark: DdlMark) -> AbstractContextManager[Cluster]:
        """Lease a cluster for one item."""
        return self._harness.cluster(spec, mark)

    def unavailable(self, spec: StrategySpec, mark: DdlMark) -> str | None:
        """Return why a variant cannot run here, or ``None``."""
        return self._harness.unavailable(spec, mark)

    def timeout(self, mark: DdlMark) -> float:
        """Return the deadline of an item in seconds."""
        return self._harness.timeout(mark)

    # ----- sessions in the ranks -----

    def open_session(self, cluster: Cluster, item: pytest.Item, deadline: float) -> None:
        """Have the ranks collect the item's file, unless they have.

        :raises pytest.fail.Exception: if pytest cannot start in a rank.
        """
        file = str(item.path)
        if cluster.session_plan is not None and file in cluster.session_plan.files:
            return
        plan = self._plan(cluster.spec, item)
        answers: Sequence[Answer] = cluster.ask(Kind.OPEN_SESSION, plan, deadline=deadline)
        if not all(answer.ok for answer in answers):
            raise pytest.fail.Exception(f"pytest could not start in the ranks\n{explain(answers)}", pytrace=False)
        cluster.session_plan = plan

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
        return SessionPlan(
            options, tuple(args), tuple(chosen), self._basetemp(spec), tuple(self._config.getini("markers"))
        )

    def _basetemp(self, spec: StrategySpec) -> str | None:
        """A place of their own for the ranks' ``tmp_path``, inside the controller's, as pytest-xdist has it."""
        factory = getattr(self._config, "_tmp_path_factory", None)
        self._opened += 1
        return f"{factory.getbasetemp()}/{spec.name}-{self._opened}" if factory is not None else None

    def next_in(self, cluster: Cluster, item: pytest.Item, nextitem: pytest.Item | None) -> str | None:
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
        # An item that is run again, as pytest-rerunfailures does, has left the list already.
        if item in items:
            del items[: items.index(item) + 1]
        return items

    # ----- reports -----

    def record_warnings(self, found: Iterable[RankWarning]) -> None:
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


class _NotPassedError(Exception):
    """The ranks' merged report of a phase is not a pass; the report has the reason."""


class ItemOnRanks:
    """One item whose set-up, body and tear-down run on the ranks of a cluster.

    Its methods replace the item's own. Pytest's protocol and the plugins in it (timeouts, reruns, ``--setup-only``)
    then treat the item as any other, and an exception that one of them raises while ranks are busy fails the phase.
    """

    def __init__(self, runner: SpmdRunner, item: pytest.Function, nextitem: pytest.Item | None) -> None:
        spec = spec_of(item)
        assert spec is not None
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
        """Forget an earlier attempt: pytest-rerunfailures sets one item up again and again."""
        self._cluster: Cluster | None = None
        self._deadline = math.inf
        self._cut = ""
        """The message of another plugin whose time limit is the deadline."""
        self._spoiled = False
        self._sections: list[tuple[str, str]] = []
        """What the item's reports have said so far: each report has the earlier ones' sections too."""
        self._merged: dict[str, pytest.TestReport] = {}
        self._printed: list[tuple[int, int]] = []
        """How much each process had printed before the current phase."""
        self._raised: BaseException | None = None
        """What this object raised itself, to end a phase that the ranks did not pass."""
        self._interrupted: tuple[BaseException, str] | None = None
        """What somebody else raised while the ranks were busy, and how the report explains it."""

    # ----- what pytest calls instead of the item's own methods -----

    def setup(self) -> None:
        """Lease a cluster and set the item up on its ranks."""
        __tracebackhide__ = True
        self._begin()
        unavailable = self._runner.unavailable(self._spec, self._mark)
        if unavailable is not None:
            raise pytest.skip.Exception(f"{self._spec}: {unavailable}", _use_item_location=True)
        with self._waiting("setup"):
            cluster = self._cluster = self._lease.enter_context(self._runner.lease(self._spec, self._mark))
            self._runner.open_session(cluster, self._item, time.monotonic() + START_TIMEOUT)
            # The test's time begins when its ranks are ready: how long that takes depends on what ran before.
            self._limit(self._runner.timeout(self._mark))
            self._limit_by_plugin(func_only=False)
            following = self._runner.next_in(cluster, self._item, self._nextitem)
            self._phase(cluster, "setup", Kind.SETUP, (self._item.nodeid, following))
        if _is_given(self._item):
            # Hypothesis's own hook would set the fixtures of a @given test up in this process, to check their scopes.
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
            self._phase(cluster, "call", Kind.BODY, None)

    def teardown(self) -> None:
        """Tear the item down on the ranks and give the cluster back."""
        __tracebackhide__ = True
        cluster = self._cluster
        with self._lease, self._waiting("teardown"):
            # Ranks that are gone or stuck cannot tear down; they are ended as a whole instead.
            if cluster is None or cluster.dirty or cluster.session_plan is None:
                return
            # After a failure the cluster is ended, so everything that it holds is torn down now.
            clean = not (self._spoiled or cluster.retired)
            if not clean:
                cluster.retired = cluster.retired or f"{self._item.nodeid} failed in it"
            self._phase(cluster, "teardown", Kind.TEARDOWN, clean)

    def report(self, call: pytest.CallInfo[None], made_here: pytest.TestReport) -> pytest.TestReport:
        """Return the ranks' report of a phase, or the one made here if the phase ended for another reason."""
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
        report.sections = list(self._sections)
        return report

    # ----- phases -----

    def _phase(self, cluster: Cluster, when: Any, kind: Kind, body: Any) -> None:
        """Run one phase on all ranks, keep their merged report, and raise unless it is a pass."""
        __tracebackhide__ = True
        self._printed = [process.output_offsets() for process in cluster.processes]
        answers = cluster.ask(kind, body, deadline=self._deadline, patience=_patience)
        self._runner.record_warnings(warning for answer in answers if answer.ok for warning in answer.body.warnings)
        lost: BaseException | None = None
        try:
            *subtests, report = merge_phase(self._item, when, answers)
            self._add_sections(report.sections)
        except pytest.fail.Exception as error:
            lost = error
        self._add_sections(output_sections(answers, when))
        if lost is not None:
            cut = self._cut if any(answer.fate is Fate.DEADLINE for answer in answers) else ""
            self._raise(pytest.fail.Exception(f"{cut}{lost}", pytrace=False))
        for subtest in subtests:
            self._item.ihook.pytest_runtest_logreport(report=subtest)
        self._merged[when] = report
        if hasattr(report, "wasxfail") and report.skipped:
            self._raise(pytest.xfail.Exception(report.wasxfail))
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self._raise(pytest.skip.Exception(reason))
        if report.failed and not is_unexpected_pass(report):
            self._raise(_NotPassedError(crash_message(report)))

    def _examples(self, cluster: Cluster) -> None:
        from pytest_ddl.items.given import ExampleDispatcher

        __tracebackhide__ = True
        dispatcher = ExampleDispatcher(cluster, self._item, self._deadline)
        try:
            dispatcher.run_engine()
        finally:
            self._add_sections(dispatcher.sections())

    @contextmanager
    def _waiting(self, when: Any) -> Iterator[None]:
        """Keep the reason for whatever ends a phase, also what a signal handler raises in this process meanwhile."""
        __tracebackhide__ = True
        try:
            yield
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except (ClusterError, LaunchError, ResourcesBusyError) as error:
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
                told = [cluster.processes[answer.rank].output(self._printed[answer.rank]) for answer in answers]
                pairs = zip(answers, told, strict=True)
                printed = [replace(answer, stdout=out, stderr=err) for answer, (out, err) in pairs]
                self._add_sections(output_sections(printed, when))
            parts = "\n".join(f"\n{title}\n{text}" for title, text in sections(answers))
            return f"{said}, while its ranks were here:\n{parts}"
        return f"{said}."

    def _raise(self, error: BaseException) -> NoReturn:
        # The one frame that is not hidden: pytest adds a line about hidden frames to a message that has none.
        self._raised = error
        raise error

    def _add_sections(self, found: Iterable[tuple[str, str]]) -> None:
        """Add what is new, and print it if output is not captured."""
        new = [section for section in found if section not in self._sections]
        self._sections += new
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
    last = body.reports[-1]
    return SKIP_PATIENCE if last["outcome"] == "skipped" and "wasxfail" not in last else None


def _runs_on_ranks() -> None:
    """Stand in for a test's function until its body is run."""


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
