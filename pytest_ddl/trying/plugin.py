"""Collect a script as a test that runs it under every strategy: the pytest plugin behind ``pytest-ddl try``."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Generator, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddl.checking.plugin import report_or
from pytest_ddl.terminal import NOT_COMPARED
from pytest_ddl.trying.source import Script

if TYPE_CHECKING:
    from pytest_ddl.trying.verdict import UndecidedError

_PLAN = pytest.StashKey[dict[str, Any]]()
_FOUND = "ddl_found"
_NO_VERDICT = 1
_UNDECIDED = "undecided"
"""Name of an outcome of pytest: a script about which nothing can be said, which a skip would hide."""
_OTHER = "tf_keras, because the script fails with Keras 3; see --keras"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ddl-try", help=argparse.SUPPRESS)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_PLAN] = json.loads(config.option.ddl_try)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return _module(file_path, parent) if file_path.suffix != ".py" else None  # pytest itself asks for the module


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return _module(module_path, parent)


def _module(path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if path != Path(parent.config.stash[_PLAN]["file"]):
        return None
    module: pytest.Module = ScriptModule.from_parent(parent, path=path)
    return module


class ScriptModule(pytest.Module):
    """Module with one test, which runs the script. The script itself is never imported."""

    def _getobj(self) -> ModuleType:
        module = ModuleType("pytest_ddl_try")
        module.script = _test_of(self.config.stash[_PLAN])  # type: ignore[attr-defined]
        return module

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Collect the test, under each strategy."""
        for item in self._genfunctions("script", self.obj.script):
            item.repr_failure = report_or(item.repr_failure)  # type: ignore[method-assign]
            yield item


def _test_of(plan: dict[str, Any]) -> Any:
    def script(ddl_equivalence: Any, _ddl_spec: Any, request: pytest.FixtureRequest) -> None:
        __tracebackhide__ = True
        from pytest_ddl.cluster.obstacles import LaunchError
        from pytest_ddl.comparisons import NoRanksError, assert_equivalence, reports_of
        from pytest_ddl.equivalence.verdict.report import DivergenceError
        from pytest_ddl.items.selection import parse_mark
        from pytest_ddl.session import harness_of
        from pytest_ddl.trying.program import TriedScript
        from pytest_ddl.trying.verdict import UndecidedError, compare_script

        def tell(text: str) -> None:
            properties = request.node.user_properties
            properties[:] = [*(pair for pair in properties if pair[0] != _FOUND), (_FOUND, text)]

        registry = harness_of(request.config).registry
        source = Script(plan["file"], plan["code"], tuple(plan["left_out"]))
        replicas = registry[_ddl_spec.name].num_replicas(_ddl_spec) or 1
        settings: dict[str, Any] = {
            name: tuple(one) if isinstance(one, list) else one for name, one in plan["script"].items()
        }
        program = TriedScript(source, replicas=replicas, **settings)

        def reason_of(compare: Any, program: TriedScript) -> UndecidedError | None:
            __tracebackhide__ = True
            try:
                compare_script(reports_of(compare), program, plan["arguments"], tell)
            except UndecidedError as error:
                return error
            except (NoRanksError, LaunchError) as error:
                return UndecidedError(str(error))  # the machine decides nothing about the script
            return None

        undecided = reason_of(ddl_equivalence, program)
        if undecided is not None and undecided.fails and plan["or_tf_keras"]:
            told = list(request.node.user_properties)
            mark = replace(parse_mark(request.node), keras="tf_keras")
            with_tf_keras = partial(assert_equivalence, harness_of(request.config), request.node, _ddl_spec, mark)
            try:
                other: object = reason_of(with_tf_keras, replace(program, keras=_OTHER))
            except DivergenceError:
                # The script may be meant for Keras 3, so a difference with another Keras is no failure of it.
                other = "the training differs from one device; --keras=tf_keras shows how"
            if other is None:
                return
            request.node.user_properties[:] = told
            undecided = with_other_keras(undecided, other)
        if undecided is not None:
            reason = f"{_UNDECIDED}: {undecided}"
            tell("\n".join([*(text for name, text in request.node.user_properties if name == _FOUND), reason]))
            pytest.skip(reason)

    return script


def with_other_keras(undecided: object, other: object) -> UndecidedError:
    """Return why a script is undecided with both packages of Keras. A reason that both have is given once."""
    from pytest_ddl.trying.verdict import UndecidedError

    both = str(undecided) == str(other)
    return UndecidedError(f"{undecided} (with tf_keras, too)" if both else f"{undecided}. With tf_keras: {other}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        # The test is a function of this package, whose place says nothing to the author of the script.
        report.longrepr = (str(item.path), 1, report.longrepr[2])
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    undecided = report.skipped and not hasattr(report, "wasxfail")
    return (_UNDECIDED, "u", _UNDECIDED.upper()) if undecided else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was found in the script, once if it is the same under all strategies."""
    texts: dict[str, list[str]] = {}
    outcomes = ("passed", "xfailed", "failed", _UNDECIDED)
    for report in (one for kind in outcomes for one in terminalreporter.getreports(kind)):
        text = dict(getattr(report, "user_properties", ())).get(_FOUND)
        name = report.nodeid.rpartition("[")[2].rstrip("]")
        if text and name not in texts.setdefault(text, []):
            texts[text].append(name)
    for text, names in texts.items():
        terminalreporter.section(f"found in the script ({', '.join(names)})")
        terminalreporter.write_line(text)
    for report in terminalreporter.getreports(_UNDECIDED):
        if not dict(getattr(report, "user_properties", ())).get(_FOUND):
            path, _line, reason = report.longrepr
            terminalreporter.write_line(f"{_UNDECIDED}: {os.path.relpath(path)}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    decided = reporter is None or any(reporter.stats.get(kind) for kind in ("passed", "failed", "error"))
    if exitstatus == 0 and not decided and not _decided_by_known(reporter):
        session.exitstatus = _NO_VERDICT


def _decided_by_known(reporter: Any) -> bool:
    """Return whether known behaviors of TensorFlow and Keras are an answer.

    Those that end a run decide nothing if another strategy is undecided.
    """
    ends = [NOT_COMPARED in dict(report.user_properties) for report in reporter.stats.get("xfailed", ())]
    return bool(ends) and not (all(ends) and reporter.stats.get(_UNDECIDED))
