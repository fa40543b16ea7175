"""Expect the known failures of the suite: each test with an entry must fail, and only as its entry says."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from pytest_ddl import DivergenceError, RankError, RecoveryError, current_rank
from pytest_ddl.items.selection import SPEC_FIXTURE, parse_mark
from pytest_ddl.session import harness_of
from suites import subject
from suites.known_failures import FILE, KnownFailure, entry_to_paste, installed, known_failures, load, of_installed

KNOWN = pytest.StashKey[KnownFailure]()
"""Entry of a test."""
OF_FAULTS = pytest.StashKey[tuple[KnownFailure, ...]]()
"""Entries of a test that injects faults. Each explains the verdicts after some of them."""
EXPECTED = pytest.StashKey["Expected"]()
OPTION = "--ddl-expected-failures"


class NoLongerFailsError(pytest.fail.Exception):
    """A test with a known failure passes. Like each failure that pytest itself makes, it is no ``Exception``."""


def add_option(group: pytest.OptionGroup) -> None:
    group.addoption(
        OPTION,
        action="append",
        default=[],
        metavar="FILE",
        help=f"File with more known failures, in the format of {FILE.name}. May be given several times",
    )


def register(config: pytest.Config) -> None:
    """Read the entries, and expect these failures from now on.

    :raises pytest.UsageError: if a file of the option cannot be read.
    """
    expected = Expected(config, [*known_failures(), *_given(config)])
    config.stash[EXPECTED] = expected
    config.pluginmanager.register(expected, "ddl-suite-expected-failures")
    # The warning about an outdated entry must not become an error, which would hide the results of the tests.
    config.addinivalue_line("filterwarnings", r"default:.*matches no test:pytest.PytestWarning")


def _given(config: pytest.Config) -> Sequence[KnownFailure]:
    found: list[KnownFailure] = []
    for name in config.getoption(OPTION):
        file = config.invocation_params.dir / name
        try:
            found += of_installed(load(file.read_text(encoding="utf-8"), file))
        except (OSError, ValueError) as error:  # a TOML error is a ValueError
            raise pytest.UsageError(f"{OPTION}={name}: {error}") from error
    return found


DIVERGED = "workers-diverged"
"""Cause with which the copies of some ranks may be right."""


def shows(known: KnownFailure, error: Exception) -> bool:
    """Return whether an exception shows a known failure: by its message, or else by a wrong result."""
    if known.message:
        return re.search(known.message, str(error)) is not None
    if isinstance(error, RankError):
        return "AssertionError" in {answer.failure.type for answer in error.answers if answer.failure is not None}
    return isinstance(error, AssertionError | DivergenceError)


def injected(entries: Sequence[KnownFailure], inject: Callable[[], Any]) -> None:
    """Inject faults of which some are known to show defects. Entries must explain all failures, and each entry one."""
    __tracebackhide__ = True
    used = []
    try:
        inject()
    except RecoveryError as error:
        for trial, _why in error.report.broken:
            faults = "; then ".join(map(str, trial.schedule))
            cause = trial.finding.cause if trial.finding is not None else None
            given = faults, trial.verdict.value, cause, trial.message
            entry = next((one for one in entries if one.explains(*given)), None)
            if entry is None:
                raise
            used.append(entry)
    if left := [entry for entry in entries if entry not in used]:
        told = f"{left[0].file.name}: {left[0]} explains no fault of this test: take the entry out, or change it"
        raise NoLongerFailsError(told, pytrace=False)
    pytest.xfail("; ".join(dict.fromkeys(f"{', '.join(one.verdicts)}: {one.explanation}" for one in used)))


class Expected:
    """The known failures of one run. An entry of a later file goes before one of an earlier file."""

    def __init__(self, config: pytest.Config, entries: Sequence[KnownFailure]) -> None:
        self._config = config
        self._entries = entries

    def apply(self, tests: Sequence[pytest.Item], whole: bool) -> None:
        """Attach the entries to the tests, and warn of those without a test if ``tests`` is the whole suite."""
        strategies = set()
        matched = set()
        for test in tests:
            strategy = strategy_of(test)
            if strategy is None:
                continue
            strategies.add(strategy)
            for entry in self._entries:
                if entry.matches(test.nodeid, strategy) and entry.applies(installed(), subject.of_test(test)):
                    matched.add(entry)
                    if entry.device and entry.device != device_of(test):
                        continue
                    if entry.verdicts:
                        test.stash[OF_FAULTS] = (*test.stash.get(OF_FAULTS, ()), entry)
                    else:
                        test.stash[KNOWN] = entry
            known = test.stash.get(KNOWN, None)
            if known is not None and "ddl_equivalence" not in test.fixturenames:  # type: ignore[attr-defined]
                reason = f"{', '.join(known.causes)}: {known.explanation}"
                # A strict marker says that every rank fails. Workers that diverge may do so on some of them.
                strict = DIVERGED not in known.causes
                test.add_marker(pytest.mark.xfail(reason=reason, raises=Exception, strict=strict))
        if not whole or not self._runs_the_suite():
            return
        for entry in self._entries:
            if entry in matched or not entry.applies(installed(), subject.name()):
                continue
            if not entry.strategies or strategies.issuperset(entry.strategies):
                warnings.warn(f"{entry.file.name}: {entry} matches no test", pytest.PytestWarning, stacklevel=1)

    def _runs_the_suite(self) -> bool:
        """Return whether an argument of the run is a folder that holds every test of the suite."""
        folder = self._config.invocation_params.dir
        return any(FILE.parent.is_relative_to((folder / argument).resolve()) for argument in self._config.args)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Let a test with a known failure fail with this failure only."""
        known = item.stash.get(KNOWN, None)
        try:
            return (yield)
        except pytest.fail.Exception as error:
            # The plugin's failure of a test whose ranks died is no Exception, which the marker would expect.
            died = known is not None and "worker-died" in known.causes and known.message
            if died and re.search(known.message, str(error)) and not isinstance(error, NoLongerFailsError):
                pytest.xfail(f"{', '.join(known.causes)}: {known.explanation}")
            raise
        except Exception as error:
            if known is None or shows(known, error):
                raise
            wanted = f"a message with {known.message!r}" if known.message else "an AssertionError"
            begin = f"{known.file.name}: {known} fails in another way"
            told = str(error)  # begins so if the test ran in another process
            text = told if begin in told else f"{begin}: expected {wanted}, got {type(error).__name__}: {told}"
            # pytest.fail raises no Exception, so that the test is no expected failure.
            raise pytest.fail.Exception(text, pytrace=False) from error

    # Around the plugin, whose reports hold those of the ranks.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Show the entry that would make a failure an expected one."""
        report = yield
        strategy = strategy_of(item)
        known = KNOWN in item.stash or OF_FAULTS in item.stash
        if known and report.passed and hasattr(report, "wasxfail") and current_rank() is None:
            report.outcome, report.longrepr = "failed", f"[XPASS(strict)] {report.wasxfail}"
            del report.wasxfail
        own = item.path.is_relative_to(FILE.parent) and strategy is not None and not known
        if call.when == "call" and report.failed and own and call.excinfo is not None:
            title = f"entry for {OPTION}, if TensorFlow or Keras is wrong"
            of_ranks = [text for name, text in report.sections if name.startswith(title)]
            text = (
                of_ranks or [entry_to_paste(item.nodeid, str(strategy), call.excinfo.value, subject.of_test(item))]
            )[0]
            others = [section for section in report.sections if not section[0].startswith(title)]
            report.sections = [*others, (title, text)]
        return report


def strategy_of(test: pytest.Item) -> str | None:
    spec = getattr(getattr(test, "callspec", None), "params", {}).get(SPEC_FIXTURE)
    return None if spec is None else str(spec.name)


def device_of(test: pytest.Item) -> str:
    """Return the kind of device on which the replicas of a test run: ``cpu``, ``gpu`` or ``tpu``."""
    rank = current_rank()
    if rank is not None:
        return rank.device
    return harness_of(test.config).device_for(test.callspec.params[SPEC_FIXTURE], parse_mark(test))  # type: ignore[attr-defined]
