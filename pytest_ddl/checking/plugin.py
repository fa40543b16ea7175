"""Collect a training function as a test that compares it: the pytest plugin behind ``pytest-ddl check`` and ``faults``.

The plugin registers it if its hidden option is given, as it also is to the workers of pytest-xdist.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddl.config import front_end_of
from pytest_ddl.messages import did_you_mean
from pytest_ddl.training.compiled import STEPS_OF_FIT, CompiledTraining

if TYPE_CHECKING:
    from pytest_ddl.strategies.registry import StrategyRegistry
    from pytest_ddl.strategies.spec import StrategySpec

_PLAN = pytest.StashKey[dict[str, Any]]()
"""``file``, ``function`` and the ``arguments`` of the comparison."""
FAULTS = "ddl_faults"
"""Property of a test: the report of its faults, as text."""


def pytest_configure(config: pytest.Config) -> None:
    plan = config.stash[_PLAN] = json.loads(config.option.ddl_check)
    if not hasattr(config, "workerinput"):
        _refuse_wrong_arguments(config, plan["arguments"], plan.get("injected"))


def _refuse_wrong_arguments(config: pytest.Config, arguments: dict[str, Any], injected: dict[str, Any] | None) -> None:
    """Refuse wrong arguments of the comparison before anything runs. Plugins may have added checks.

    Faults are refused if none of the strategies can have them.

    :raises pytest.UsageError: for the first wrong argument. The message is one line.
    """
    from pytest_ddl.comparisons import registered_checks
    from pytest_ddl.equivalence.runs.question import ArgumentError, Question
    from pytest_ddl.items.selection import DdlMark
    from pytest_ddl.session import harness_of

    harness = harness_of(config)
    registry = harness.registry
    # The training function and the strategies are not known before the file is collected.
    unknown = (lambda run: None), registry.default("one_device"), DdlMark()
    try:
        Question(*unknown, known=registered_checks(config), **arguments).checked(registry)
        if injected is not None:
            _refuse_wrong_faults(injected, registry.parse_selection(harness.settings["strategy"]), registry)
    except ArgumentError as error:
        raise pytest.UsageError(error.rendered(front_end_of(config))) from None


def _refuse_wrong_faults(injected: dict[str, Any], specs: Sequence[StrategySpec], registry: StrategyRegistry) -> None:
    from pytest_ddl.equivalence.runs.question import ArgumentError
    from pytest_ddl.faults.api import injection_of

    given = {"faults": _faults_of(injected), **injected["limits"]}
    for number, spec in enumerate(specs, 1):
        try:
            injection_of(given, spec, registry)
        except ArgumentError:
            if number == len(specs):
                raise
        else:
            return


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path != Path(parent.config.stash[_PLAN]["file"]):
        return None
    return CheckedModule.from_parent(parent, path=module_path)


class CheckedModule(pytest.Module):
    """Module in which pytest collects nothing but the training function."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Collect the training function.

        :raises pytest.Collector.CollectError: if the module has no such function. The message is one line.
        """
        name = self.config.stash[_PLAN]["function"]
        if not callable(getattr(self.obj, name, None)):
            functions = [one for one, value in vars(self.obj).items() if callable(value) and not one.startswith("_")]
            problem = "is not a function" if hasattr(self.obj, name) else "does not exist"
            raise self.CollectError(f"{self.path.name}:{name} {problem}{did_you_mean(name, functions)}")
        return super().collect()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: Any) -> list[pytest.Function] | None:
    if not isinstance(collector, CheckedModule):
        return None
    plan = collector.config.stash[_PLAN]
    return list(_items(collector, name, _test_of(obj, plan))) if name == plan["function"] else []


def _items(module: CheckedModule, name: str, test: Callable[..., None]) -> Iterable[pytest.Function]:
    for item in module._genfunctions(name, test):
        item.obj = test
        # The only frames of a difference are those of the plugin, so the report itself is all there is to show.
        item.repr_failure = report_or(item.repr_failure)  # type: ignore[method-assign]
        yield item


def _test_of(function: Any, plan: dict[str, Any]) -> Callable[..., None]:
    injected = plan.get("injected")
    train, arguments = _training_of(function, plan["arguments"])

    def test(ddl_equivalence: Any, request: pytest.FixtureRequest) -> None:
        __tracebackhide__ = True
        if injected is None:
            ddl_equivalence(train, **arguments)
        else:
            recovery = inject_into(ddl_equivalence, train, arguments, injected)
            request.node.user_properties.append((FAULTS, str(recovery)))

    return test


def _training_of(function: Any, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the training function and its arguments. A function without parameters returns a model and its data."""
    if signature(function).parameters:
        return function, arguments
    size = arguments.get("global_batch_size")
    of_fit = {"shuffle": False, **({} if size is None else {"batch_size": size})}
    return CompiledTraining(function, None, of_fit), {"steps": STEPS_OF_FIT, **arguments}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    show_recoveries(terminalreporter)


def report_or(represent: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that shows only the text of a report, or of ranks that did not start, and others as before."""

    def repr_failure(excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        from pytest_ddl.equivalence.verdict.report import DivergenceError
        from pytest_ddl.faults.report import RecoveryError

        if isinstance(excinfo.value, DivergenceError | RecoveryError | pytest.fail.Exception):
            return excinfo.getrepr(style="value", tbfilter=False)
        return represent(excinfo, *args, **kwargs)

    return repr_failure


def inject_into(compare: Any, train: Any, arguments: dict[str, Any], injected: dict[str, Any]) -> Any:
    """Compare a training function and inject faults into it. Return the report.

    :param compare: the fixture ``ddl_equivalence``.
    :param injected: ``faults`` as texts (empty to strike at every point), ``sweep`` and ``limits`` by name, and
        ``report``, a folder for pages and JSON.
    :raises RecoveryError: if the program does not recover.
    """
    __tracebackhide__ = True
    from pytest_ddl.faults.report import RecoveryError, write

    faults = _faults_of(injected)
    folder = Path(injected["report"]) if "report" in injected else None
    try:
        recovery = compare(train, faults=faults, **injected["limits"], **arguments)
    except RecoveryError as error:
        if folder is not None:
            write(error.report, folder)
        raise
    if folder is not None and hasattr(recovery, "trials"):
        write(recovery, folder)
    return recovery


def _faults_of(injected: dict[str, Any]) -> Any:
    from pytest_ddl.faults.sweep import Sweep

    return injected["faults"] or Sweep(**injected["sweep"])


def show_recoveries(terminal: pytest.TerminalReporter) -> None:
    """Show the reports of faults that were all survived. Those of failed tests are shown with the failure."""
    reports = [*terminal.getreports("passed"), *terminal.getreports("xfailed")]
    passed = [dict(report.user_properties).get(FAULTS) for report in reports]
    for text in dict.fromkeys(filter(None, passed)):
        terminal.section("faults")
        terminal.write_line(str(text))
