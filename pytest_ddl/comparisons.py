"""Turn the comparisons of a test into the outcome of the test."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_ddl.equivalence.runs.question import SEED
from pytest_ddl.items.selection import label
from pytest_ddl.messages import no_such_argument
from pytest_ddl.terminal import EXPECTED_END, KNOWN_BEHAVIOR, NOT_COMPARED, TOLERATED, begin_with_cause, status_line
from pytest_ddl.training.compiled import STEPS_OF_FIT, CompiledTraining

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from pytest_ddl.equivalence.checks.registry import Check
    from pytest_ddl.equivalence.expectations import Expect
    from pytest_ddl.equivalence.runs.comparer import Comparer
    from pytest_ddl.equivalence.runs.question import Question, TrainFunction
    from pytest_ddl.equivalence.verdict.report import Report
    from pytest_ddl.faults.api import Injection
    from pytest_ddl.faults.report import FaultReport
    from pytest_ddl.faults.sweep import Faults
    from pytest_ddl.harness import Harness
    from pytest_ddl.items.selection import DdlMark
    from pytest_ddl.strategies.spec import StrategySpec

_EXPECTED_ENDS = pytest.StashKey[list[str]]()
_KNOWN = pytest.StashKey[list[str]]()
_COMPARER = pytest.StashKey["tuple[Comparer, Sequence[Check]]"]()


class Equivalence(Protocol):
    """Type of the fixture ``ddl_equivalence``: :func:`check_training` under the strategy of the test."""

    def __call__(
        self,
        train: TrainFunction,
        *,
        global_batch_size: int | None = None,
        steps: int | None = None,
        precision: str = "auto",
        expect: Expect = (),
        strict: bool = False,
        checks: Collection[str] | None = None,
        timeout: float | None = None,
        seed: int = SEED,
        faults: Faults | None = None,
        exact: bool = False,
        max_lost_steps: int | None = None,
        detected_within: float | None = None,
        always_loadable: bool = False,
        restart_on: str | None = None,
    ) -> Report | FaultReport:
        """Compare, and return the report if the test goes on: a ``Report``, or with ``faults=`` a ``FaultReport``.

        :raises DivergenceError: if the comparison fails, or if the program is the reason why it decides nothing.
        :raises RecoveryError: if the program does not recover from a fault as it must.
        """
        ...


class InconclusiveError(pytest.skip.Exception):  # type: ignore[misc,name-defined]
    """Outcome of a comparison that decides nothing, which pytest counts as skipped."""

    def __init__(self, report: Report) -> None:
        super().__init__(f"inconclusive: {'; '.join(report.inconclusive) or 'nothing could be compared'}")
        self.report = report


class NoRanksError(pytest.fail.Exception):  # type: ignore[misc,name-defined]
    """Outcome of a comparison whose ranks cannot be started. It says nothing about the program."""


_OF_FIT = (
    "batch_size", "epochs", "callbacks", "validation_split", "validation_data", "shuffle", "class_weight",
    "sample_weight", "initial_epoch", "steps_per_epoch", "validation_steps", "validation_batch_size", "validation_freq",
)  # fmt: skip
"""Arguments of ``fit`` in Keras 3 and tf_keras, but for those that only concern the output."""


class FitEquivalence:
    """Type of the fixture ``ddl_fit``: :class:`Equivalence` for a compiled Keras model and its data."""

    def __init__(self, compare: Equivalence) -> None:
        self._compare = compare

    def __call__(
        self, build: Callable[[], Any], data: Any = None, *, steps: int | None = STEPS_OF_FIT, **arguments: Any
    ) -> Report | FaultReport:
        """Compare ``fit`` under the strategy of the test with one device, and return the report.

        :param build: function that returns a compiled model, or without ``data`` the model and its data. It is called
            in the scope of the strategy.
        :param data: ``x``, ``(x, y)``, ``(x, y, sample_weight)``, a ``tf.data.Dataset``, a dict with arguments of
            ``fit``, or a function that returns one of these.
        :param steps: number of steps to compare; ``None`` for all.
        :param arguments: those of ``fit`` and of ``ddl_equivalence``. ``callbacks`` and ``validation_data`` may be
            functions, which are called in each run. ``batch_size`` is that of the global batch. ``shuffle`` is off,
            because both runs must use the same batches.
        :raises TypeError: for an argument that neither of them has.
        """
        __tracebackhide__ = True
        comparing = [name for name in signature(Equivalence.__call__).parameters if name not in ("self", "train")]
        for name in arguments:
            if name not in (*_OF_FIT, *comparing):
                raise TypeError(no_such_argument("ddl_fit()", name, (*_OF_FIT, *comparing)))
        of_fit = {name: value for name, value in arguments.items() if name in _OF_FIT}
        others = {name: value for name, value in arguments.items() if name not in _OF_FIT}
        if "batch_size" in of_fit:
            others.setdefault("global_batch_size", of_fit["batch_size"])
        train = CompiledTraining(build, data, {"shuffle": False, **of_fit})
        return self._compare(train, steps=steps, **others)


class ScriptEquivalence:
    """Type of the fixture ``ddl_script``: :class:`Equivalence` for a script that is run as it is."""

    def __init__(self, compare: Equivalence, item: pytest.Item, replicas: int) -> None:
        self._compare, self._item, self._replicas = compare, item, replicas

    def __call__(
        self,
        script: str | Path,
        *,
        args: Sequence[str] = (),
        steps: int = 4,
        epochs: int = 1,
        examples: int | None = None,
        data: Sequence[str | Path] = (),
        **arguments: Any,
    ) -> Report:
        """Compare a script under the strategy of the test with one device, as ``pytest-ddl try`` does.

        :param script: path of a script or notebook, relative to the folder of the test or to the root of the project.
        :param args: command line arguments of the script.
        :param steps: batches of each loop and epoch.
        :param epochs: epochs of each ``fit``.
        :param examples: training examples of the random datasets that stand in for downloads.
        :param data: files and folders that the script reads from its working directory.
        :param arguments: ``expect``, ``strict``, ``checks``, ``precision``, ``timeout`` and ``seed`` of
            ``ddl_equivalence``.
        :raises DivergenceError: if the training differs from one device.
        """
        __tracebackhide__ = True
        from pytest_ddl.trying.program import TriedScript
        from pytest_ddl.trying.source import Script, ScriptError
        from pytest_ddl.trying.verdict import UndecidedError, compare_script

        for name in arguments:
            if name not in _OF_SCRIPT:
                raise TypeError(no_such_argument("ddl_script()", name, (*_OF_SCRIPT, *_OF_RUN)))
        files = tuple(str(self._path(one)) for one in data)
        try:
            source = Script.read(self._path(script))
            program = TriedScript(source, tuple(args), self._replicas, steps, epochs, examples, files)
            return compare_script(reports_of(self._compare), program, arguments, self._tell)
        except ScriptError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        except UndecidedError as error:
            outcome = pytest.skip if error.of_framework else pytest.fail
            raise outcome.Exception(f"undecided: {error}", pytrace=False) from None

    def _path(self, given: str | Path) -> Path:
        beside = self._item.path.parent / given
        return beside if beside.exists() else self._item.config.rootpath / given

    def _tell(self, text: str) -> None:
        self._item.add_report_section("call", "in the script", text)


_OF_SCRIPT = ("expect", "strict", "checks", "precision", "timeout", "seed")
_OF_RUN = ("args", "steps", "epochs", "examples", "data")


def reports_of(compare: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that compares as another one does, and that also returns a report that decides nothing."""

    def report_of(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return compare(*args, **kwargs)
        except InconclusiveError as undecided:
            return undecided.report

    return report_of


def registered_checks(config: pytest.Config) -> list[Check]:
    """Return the checks of this package and of plugins.

    :raises pytest.UsageError: if a plugin registers something else than a check, or a name twice.
    """
    from pytest_ddl.equivalence.checks.registry import CHECKS, Check, adapted

    checks = list(CHECKS)
    config.hook.pytest_ddl_register_checks(checks=checks)
    for check in checks:
        if not isinstance(check, Check):
            raise pytest.UsageError(f"pytest_ddl_register_checks: {check!r} is no pytest_ddl.Check")
    names = [check.name for check in checks]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise pytest.UsageError(f"pytest_ddl_register_checks: the check {twice.pop()!r} is registered twice")
    return [adapted(check) for check in checks]


def assert_equivalence(
    harness: Harness,
    item: pytest.Item,
    spec: StrategySpec,
    mark: DdlMark,
    train: Any,
    **arguments: Any,
) -> Report | FaultReport:
    """Compare a training function with one device and turn the verdict into an outcome of the test.

    A known behavior of a framework makes the test an expected failure, unless the test is marked as one itself. Faults
    are injected in any case but a failure, since what is excused in the comparison excuses nothing in a recovery.

    :raises DivergenceError: if the comparison fails. It is also raised for an inconclusive comparison in strict mode,
        or if the program is the reason. That is so if the program fails on one device too, records nothing, is not
        finite on one device, or draws other data in each run.
    :raises RecoveryError: if the program does not recover from a fault of ``faults=`` as it must.
    """
    __tracebackhide__ = True
    from pytest_ddl.equivalence.runs.question import Question
    from pytest_ddl.equivalence.verdict.report import DivergenceError
    from pytest_ddl.pages.watch import compared, failed

    comparer, known_checks = _comparer(item.config, harness)
    further = {name: arguments.pop(name) for name in {*arguments} - Question.__dataclass_fields__.keys()}
    injection = None
    if further:
        from pytest_ddl.faults.api import injection_of

        injection = injection_of(further, spec, harness.registry)
    given = arguments.pop("strict", False)
    strict = True if harness.settings["strict"] else given
    test = _without_strategy(item, spec, harness)
    question = Question(train, spec, mark, strict=strict, test=test, known=known_checks, **arguments)
    with status_line(item.config) as harness.show:
        report = comparer.compare(question)
    compared(item, report)
    item.user_properties += _properties(report)
    known = report.verdict == "known" and not _is_marked_xfail(item)
    blamed = strict or not report.comparable or report.program_reasons
    excused = known or report.expected_end is not None
    if not excused and (report.verdict in ("fail", "known") or (not report.passed and blamed)):
        failed(item, report)
        raise DivergenceError(report)
    recovery = None if injection is None else _recovery(item, comparer, question, report, injection)
    if known:
        reasons = [f"{behavior.id}: {behavior.explanation}" for behavior in report.known_behaviors]
        item.stash.setdefault(_KNOWN, []).extend(reasons)
    elif report.expected_end is not None:
        item.stash.setdefault(_EXPECTED_ENDS, []).append(report.expected_end)
        item.user_properties.append((EXPECTED_END, report.expected_end))
    elif not report.passed:
        raise InconclusiveError(report)
    return report if recovery is None else recovery


def _recovery(
    item: pytest.Item, comparer: Comparer, question: Question, report: Report, injection: Injection
) -> FaultReport:
    """Inject faults into a program whose comparison has not failed.

    :raises RecoveryError: if it does not recover as it must.
    """
    __tracebackhide__ = True
    from pytest_ddl.faults.api import with_faults
    from pytest_ddl.faults.report import RecoveryError

    with status_line(item.config) as comparer.harness.show:
        recovery = with_faults(comparer, question, report, injection)
    if not recovery.recovered:
        raise RecoveryError(recovery)
    return recovery


def _properties(report: Report) -> Iterator[tuple[str, object]]:
    """Yield what was tolerated, known or not compared, as properties of the test."""
    for finding in report.approximations:
        text = f"{finding.cause} at step {finding.step}: {finding.message}"
        yield TOLERATED, text + (f"; tolerated, because {finding.evidence}" if finding.evidence else "")
    for behavior in report.known_behaviors:
        yield KNOWN_BEHAVIOR, behavior.id
    for name in report.known_ends:
        yield NOT_COMPARED, name


def _comparer(config: pytest.Config, harness: Harness) -> tuple[Comparer, Sequence[Check]]:
    """Return what compares all tests of a session, and all checks that exist."""
    from pytest_ddl.equivalence.runs.comparer import Comparer

    if _COMPARER not in config.stash:
        config.stash[_COMPARER] = Comparer(harness), registered_checks(config)
    return config.stash[_COMPARER]


def report_expected_ends(item: pytest.Item, report: pytest.TestReport, comparisons: int) -> None:
    """Report a test as an expected failure if its comparisons do not let it count as passed.

    This is so if one of them met a known behavior of a framework. It is also so if all of them ended in a crash that
    ``expect=`` declares: then nothing was compared. The body of the test ran to its end.
    """
    known = item.stash.get(_KNOWN, [])
    ends = item.stash.get(_EXPECTED_ENDS, [])
    decided = not report.passed or hasattr(report, "wasxfail") or item.config.getoption("runxfail", False)
    if report.when == "call" and (known or (ends and len(ends) == comparisons)) and not decided:
        report.outcome = "skipped"
        report.wasxfail = "; ".join(dict.fromkeys((*known, *ends)))


def _is_marked_xfail(item: pytest.Item) -> bool:
    """Return whether the user decides about failures: by a marker, or by ``--runxfail``."""
    return bool(item.config.getoption("runxfail", False)) or item.get_closest_marker("xfail") is not None


def report_cause(call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Make the summary of a test begin with the cause if its comparison failed, or with the verdict of a fault."""
    if not report.failed or call.excinfo is None:
        return
    from pytest_ddl.equivalence.verdict.report import DivergenceError
    from pytest_ddl.faults.report import RecoveryError

    error, crash = call.excinfo.value, getattr(report.longrepr, "reprcrash", None)
    if isinstance(error, DivergenceError):
        begin_with_cause(report, error.report)
    elif isinstance(error, RecoveryError) and crash is not None:
        crash.message = error.report.first_line


def attach_comparisons(item: pytest.Item, report: pytest.TestReport) -> None:
    """Give the facts of a test's comparisons to its report, for the process that shows the reports."""
    from pytest_ddl.pages.watch import attach

    attach(item, report)


def _without_strategy(item: pytest.Item, spec: StrategySpec, harness: Harness) -> str:
    """Return the id of a test without its strategy, so that all its strategies share the id."""
    return item.nodeid.replace(label(spec, harness.registry), "")
