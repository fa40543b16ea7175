"""Implement the plugin's hooks. This module is imported only when a run needs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_ddl.config import SETTINGS
from pytest_ddl.harness import Harness, built_in_launchers
from pytest_ddl.items.selection import CONTROLLER_FIXTURES, SPEC_FIXTURE, label, parse_mark, select
from pytest_ddl.strategies.registry import StrategyRegistry, UnknownStrategyError

if TYPE_CHECKING:
    from pytest_ddl.equivalence.checks.registry import Check
    from pytest_ddl.equivalence.report import Report
    from pytest_ddl.items.selection import DdlMark
    from pytest_ddl.strategies.spec import StrategySpec

HARNESS = pytest.StashKey[Harness]()
_RUNNER = pytest.StashKey[Any]()
TOLERATED = "ddl_tolerated"
"""Name of a report property that describes an approximation with which a test passed."""
EXPECTED_END = "ddl_expected_end"
"""Name of a report property that describes a comparison that ended in a crash or hang that ``expect=`` declares."""
EXPECTED_ENDS = pytest.StashKey[list[str]]()
KNOWN_BEHAVIOR = "ddl_known"
"""Name of a report property that holds the id of a known behavior of a framework, which a comparison met."""
_KNOWN = pytest.StashKey[list[str]]()
_COMPARER = pytest.StashKey[Any]()


def harness_of(config: pytest.Config) -> Harness:
    """Return the harness of this pytest process. Make it at the first call."""
    harness = config.stash.get(HARNESS, None)
    if harness is None:
        registry = StrategyRegistry()
        config.hook.pytest_ddl_register_strategies(registry=registry)
        workerinput = getattr(config, "workerinput", {})
        launchers = built_in_launchers(config.stash[SETTINGS], shared=bool(workerinput))
        config.hook.pytest_ddl_register_launchers(launchers=launchers)
        folder = workerinput.get("ddl_folder") or getattr(config.option, "ddl_folder", None)
        harness = Harness(
            config.stash[SETTINGS],
            registry,
            launchers,
            address=workerinput.get("ddl_address"),
            folder=Path(folder) if folder else None,
            machine=getattr(config.option, "ddl_machine", None),
            shared=bool(workerinput),
        )
        config.stash[HARNESS] = harness
    return harness


def fail_collection(node: Any, problem: object) -> NoReturn:
    """Fail the collection of a test's file with a one-line message."""
    raise pytest.fail.Exception(f"{getattr(node, 'nodeid', node)}: {problem}", pytrace=False) from None


def watch_gates(config: pytest.Config) -> None:
    """Make a run with ``--ddl-gate`` fail if it measures nothing.

    Only the process that the user started does this. Ranks and xdist workers do not.
    """
    if not _in_rank() and not hasattr(config, "workerinput"):
        from pytest_ddl.items.gated import GateWatch

        config.pluginmanager.register(GateWatch(config), "ddl-gate-watch")


def close(config: pytest.Config) -> None:
    """End all processes that the run has started."""
    harness = config.stash.get(HARNESS, None)
    if harness is not None and not _in_rank():
        harness.close()
        del config.stash[HARNESS]
        overrides = sys.modules.get("pytest_ddl.cluster.overrides")
        if overrides is not None:
            overrides.forget()


def tear_down(session: pytest.Session) -> None:
    """Tear down the fixtures that warm clusters still hold, while their errors can still be reported."""
    harness = session.config.stash.get(HARNESS, None)
    if harness is None or _in_rank():
        return
    harness.tear_down_sessions()
    if session.testsfailed and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def prepare(config: pytest.Config) -> None:
    """Check the chosen strategies and start to import TensorFlow while pytest collects.

    :raises pytest.UsageError: if a strategy does not exist, or if a required one cannot run. The message is one line.
    """
    harness = harness_of(config)
    try:
        harness.registry.parse_selection(harness.settings["strategy"])
    except UnknownStrategyError as error:
        raise harness.settings.error("strategy", error) from None
    if _in_rank() or config.option.collectonly or config.option.ddl_list or config.option.help:
        return
    _ = harness.machine
    if harness.settings["launcher"] not in harness._launchers:
        harness.make_launcher()
    harness.check_required()
    harness.warm_up()


def parametrize(metafunc: pytest.Metafunc, harness: Harness) -> None:
    """Parametrize ``_ddl_spec`` with the variants that a test asks for. Mark those that cannot run here as skipped."""
    fixtures = metafunc.fixturenames
    try:
        mark = parse_mark(metafunc.definition)
        by_user = _is_parametrized_by_user(metafunc)
        if SPEC_FIXTURE not in fixtures:
            _refuse_idle_marker(metafunc)
            return
        _refuse_conflicts(metafunc)
        if by_user:
            return
        specs = select(mark, fixtures, harness.settings["strategy"], harness.registry, metafunc.definition)
        unavailable = [harness.unavailable(spec, mark) for spec in specs]
    except (ValueError, pytest.UsageError) as error:
        fail_collection(metafunc.definition, error)
    chosen = harness.settings["strategy"] if mark.strategies is None else mark.strategies
    only_available = "available" in (chosen.split(",") if isinstance(chosen, str) else chosen)
    parameters = []
    for spec, reason in zip(specs, unavailable, strict=True):
        if reason is None or not only_available:
            marks = [pytest.mark.skip(reason=f"{spec}: {reason}")] if reason else []
            parameters.append(pytest.param(spec, id=label(spec, harness.registry), marks=marks))
    if not parameters:
        reason = "none of the selected strategies can run here; see pytest --ddl-list"
        parameters = [pytest.param(specs[0], id="unavailable", marks=[pytest.mark.skip(reason=reason)])]
    metafunc.parametrize(SPEC_FIXTURE, parameters, indirect=True, scope="session")


def _refuse_idle_marker(metafunc: pytest.Metafunc) -> None:
    """Refuse a ``ddl`` marker on a test that asks for no strategy.

    A marker on its class or module is accepted, because it may be meant for other tests.
    """
    if any(mark.name == "ddl" for mark in metafunc.definition.own_markers):
        raise ValueError(
            "@pytest.mark.ddl has no effect: the test asks for none of ddl_strategy, ddl_cluster, ddl_equivalence"
        )


def _refuse_conflicts(metafunc: pytest.Metafunc) -> None:
    driving = [name for name in CONTROLLER_FIXTURES if name in metafunc.fixturenames]
    if driving and "ddl_strategy" in metafunc.fixturenames:
        raise ValueError(
            f"asks for ddl_strategy, which runs the test in the ranks, and for {driving[0]}, which runs the test in "
            "the pytest process; use one of them"
        )
    if not isinstance(getattr(metafunc.definition, "parent", None), (pytest.Class, pytest.Module)):
        raise ValueError("ddl tests must be functions, or methods of plain classes")


def _is_parametrized_by_user(metafunc: pytest.Metafunc) -> bool:
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", "")
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        if "ddl_strategy" in names:
            indirect = mark.kwargs.get("indirect", mark.args[2] if len(mark.args) > 2 else False)
            if indirect is True or (isinstance(indirect, (list, tuple)) and "ddl_strategy" in indirect):
                return True
            raise ValueError('parametrize("ddl_strategy", …) takes names of variants: add indirect=True')
    return False


def after_collection(harness: Harness, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Record the variant of each item and start to import TensorFlow, if that has not started yet."""
    from pytest_ddl.items.spmd import SPEC

    harness.items = items
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        spec = parameters.get(SPEC_FIXTURE)
        if spec is None and isinstance(parameters.get("ddl_strategy"), str):
            try:
                spec = harness.registry.parse_variant(parameters["ddl_strategy"])
            except UnknownStrategyError as error:
                raise pytest.UsageError(f"{item.nodeid}: parametrize('ddl_strategy', …): {error}") from None
        if spec is not None:
            item.stash[SPEC] = spec
    if not _in_rank() and not config.option.collectonly and not in_process(config):
        from pytest_ddl.cluster import overrides

        overrides.remember()
        harness.warm_up()


def runs_in_ranks(item: pytest.Item) -> bool:
    """Return whether this process sends the item to ranks. A rank and a process under a debugger do not."""
    from pytest_ddl.items.spmd import is_spmd

    return is_spmd(item) and not _in_rank() and not in_process(item.config)


def in_process(config: pytest.Config) -> bool:
    """Return whether single-process strategies run in the pytest process."""
    return bool(config.stash[SETTINGS]["in-process"] or config.option.usepdb or config.option.trace)


def run_on_ranks(harness: Harness, item: pytest.Function, nextitem: pytest.Item | None) -> bool | None:
    """Make pytest's protocol run the item's phases on ranks. Return ``True`` if the protocol was already run here."""
    config = item.config
    if _RUNNER not in config.stash:
        from pytest_ddl.items.spmd import SpmdRunner

        config.stash[_RUNNER] = SpmdRunner(harness, config)
        config.pluginmanager.register(config.stash[_RUNNER], "ddl-spmd-runner")
    config.stash[_RUNNER].attach(item, nextitem)
    if config.getoption("forked", False) or item.get_closest_marker("forked"):
        # pytest-forked would fork this process, and a copy cannot share the connections to the ranks.
        # The ranks are separate processes anyway.
        runner: Any = config.pluginmanager.get_plugin("runner")
        runner.pytest_runtest_protocol(item, nextitem)
        return True
    return None


def takes_timeout(item: pytest.Item, settings: Any) -> bool:
    """Use the limit of pytest-timeout as the deadline of an item that runs on ranks.

    Return ``False`` if the item does not run on ranks.
    """
    from pytest_ddl.items.on_ranks import PLUGIN_TIMEOUT
    from pytest_ddl.items.spmd import is_spmd

    if not is_spmd(item) or in_process(item.config):
        return False
    # A rank needs no timer either: the pytest process keeps the deadline for all ranks.
    item.stash[PLUGIN_TIMEOUT] = settings
    return True


def strategy_here(harness: Harness, spec: StrategySpec) -> Any:
    """Return the strategy of this rank. Outside a rank, build it in this process for a debugger."""
    from pytest_ddl.cluster.worker import current_rank
    from pytest_ddl.strategies.spec import BuildContext

    rank = current_rank()
    if rank is not None:
        if rank.spec != spec:
            raise RuntimeError(f"this rank runs {rank.spec}, but the test needs {spec}")
        return rank.strategy
    definition = harness.registry[spec.name]
    topology = definition.topology(spec)
    if len(topology.ranks) + len(topology.servers) > 1:
        pytest.skip(f"{spec} needs {len(topology.ranks)} processes; --pdb and --ddl-in-process run one")
    return harness.build_here(definition, BuildContext(spec, topology, topology.ranks[0], 0, device="cpu"))


def check_accelerator(harness: Harness, name: str, mark: pytest.Mark) -> None:
    """Skip a test if its ``gpu`` or ``tpu`` marker asks for more devices than this machine has."""
    machine = harness.machine
    if name == "tpu":
        if not machine.tpus:
            pytest.skip(f"needs a TPU: {machine.tpu_reason}")
        return
    wanted = gpus_wanted(mark)
    if machine.gpus < wanted:
        reason = machine.gpu_reason if machine.gpus == 0 else f"this machine has {machine.gpus}"
        pytest.skip(f"needs {wanted} GPU{'s' if wanted > 1 else ''}: {reason}")


def check_accelerator_marks(definition: Any) -> None:
    """Fail the collection if a ``gpu`` or ``tpu`` marker has wrong arguments."""
    try:
        for mark in definition.iter_markers("gpu"):
            gpus_wanted(mark)
        for mark in definition.iter_markers("tpu"):
            if mark.args or mark.kwargs:
                raise ValueError(f"@pytest.mark.tpu takes no arguments, not {mark.args or mark.kwargs}")
    except ValueError as error:
        fail_collection(definition, error)


def gpus_wanted(mark: pytest.Mark) -> int:
    """Return the number of GPUs that a ``gpu`` marker asks for.

    :raises ValueError: if an argument is wrong. The message is one line.
    """
    unknown = sorted(set(mark.kwargs) - {"min"})
    if unknown or len(mark.args) + len(mark.kwargs) > 1:
        raise ValueError(f"@pytest.mark.gpu takes only min=1, not {unknown or mark.args}")
    wanted: int = mark.kwargs.get("min", mark.args[0] if mark.args else 1)
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise ValueError(f"@pytest.mark.gpu: min={wanted!r} must be a whole number, at least 1")
    return wanted


def auto_num_workers(harness: Harness) -> int:
    """Return the number of xdist workers that ``-n auto`` starts.

    Each worker may run a cluster of the selected strategy with the most ranks. The number of CPU cores is therefore
    divided by the number of these ranks.
    """
    specs = harness.registry.parse_selection(harness.settings["strategy"])
    runnable = [spec for spec in specs if harness.registry[spec.name].topology(spec).ranks]
    widest = max(len(harness.registry[spec.name].topology(spec).ranks) for spec in runnable)
    return max(1, (os.cpu_count() or 1) // widest)


def _registered_checks(config: pytest.Config) -> list[Check]:
    from pytest_ddl.equivalence.checks.registry import CHECKS, Check

    checks = list(CHECKS)
    config.hook.pytest_ddl_register_checks(checks=checks)
    for check in checks:
        if not isinstance(check, Check):
            raise pytest.UsageError(f"pytest_ddl_register_checks: {check!r} is no pytest_ddl.Check")
    names = [check.name for check in checks]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise pytest.UsageError(f"pytest_ddl_register_checks: the check {twice.pop()!r} is registered twice")
    return checks


def assert_equivalence(
    harness: Harness, item: pytest.Item, spec: StrategySpec, mark: DdlMark, train: Any, **arguments: Any
) -> Report:
    """Compare a training function with one device and turn the verdict into an outcome of the test.

    A known behavior of a framework makes the test an expected failure, unless the test is marked as one itself.

    :raises DivergenceError: if the comparison fails. It is also raised for an inconclusive comparison in strict mode,
        or if the program is the reason. That is so if the program fails on one device too, records nothing, is not
        finite on one device, or draws other data in each run.
    """
    __tracebackhide__ = True
    from pytest_ddl.equivalence.report import DivergenceError
    from pytest_ddl.equivalence.runs.comparer import Comparer

    if _COMPARER not in item.config.stash:
        item.config.stash[_COMPARER] = Comparer(harness, _registered_checks(item.config))
    strict = bool(arguments.pop("strict", False) or harness.settings["strict"])
    report: Report = item.config.stash[_COMPARER].compare(
        train, spec, mark, strict=strict, test=_without_strategy(item, spec, harness), **arguments
    )
    item.user_properties.append(("ddl_verdict", report.verdict))
    for finding in report.approximations:
        item.user_properties.append((TOLERATED, f"{finding.cause} at step {finding.step}: {finding.message}"))
    for behavior in report.known_behaviors:
        item.user_properties.append((KNOWN_BEHAVIOR, behavior.id))
    if report.verdict == "known" and not _is_marked_xfail(item):
        reasons = [f"{behavior.id}: {behavior.explanation}" for behavior in report.known_behaviors]
        item.stash.setdefault(_KNOWN, []).extend(reasons)
        return report
    if report.expected_end is not None:
        item.stash.setdefault(EXPECTED_ENDS, []).append(report.expected_end)
        item.user_properties.append((EXPECTED_END, report.expected_end))
        return report
    blamed = strict or not report.comparable or report.program_reasons
    if report.verdict in ("fail", "known") or (not report.passed and blamed):
        raise DivergenceError(report)
    if not report.passed:
        pytest.skip(f"inconclusive: {'; '.join(report.inconclusive) or 'nothing could be compared'}")
    return report


def report_expected_ends(item: pytest.Item, report: pytest.TestReport, comparisons: int) -> None:
    """Report a test as an expected failure if its comparisons do not let it count as passed.

    This is so if one of them met a known behavior of a framework, or if all of them ended in a crash that ``expect=``
    declares, so that nothing was compared. The body of the test ran to its end.
    """
    known = item.stash.get(_KNOWN, [])
    ends = item.stash.get(EXPECTED_ENDS, [])
    decided = not report.passed or hasattr(report, "wasxfail") or item.config.getoption("runxfail", False)
    if report.when == "call" and (known or (ends and len(ends) == comparisons)) and not decided:
        report.outcome = "skipped"
        report.wasxfail = "; ".join(dict.fromkeys((*known, *ends)))


def _is_marked_xfail(item: pytest.Item) -> bool:
    """Return whether the user decides about failures: by a marker, or by ``--runxfail``."""
    return bool(item.config.getoption("runxfail", False)) or item.get_closest_marker("xfail") is not None


def _without_strategy(item: pytest.Item, spec: StrategySpec, harness: Harness) -> str:
    """Return the id of a test without its strategy, so that all its strategies share the id."""
    return item.nodeid.replace(label(spec, harness.registry), "")


def _in_rank() -> bool:
    worker = sys.modules.get("pytest_ddl.cluster.worker")
    return worker is not None and worker.current_rank() is not None


def show_known(terminalreporter: Any) -> None:
    """List the known behaviors of frameworks that tests met, each with the number of tests."""
    found: dict[str, set[str]] = {}
    for outcome in ("passed", "xfailed", "skipped", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, behavior in getattr(report, "user_properties", ()):
                if name == KNOWN_BEHAVIOR:
                    found.setdefault(behavior, set()).add(report.nodeid)
    if not found:
        return
    from pytest_ddl.equivalence.known.catalogue import KNOWN

    terminalreporter.section("known behaviors of TensorFlow and Keras (--ddl-strict fails on them)")
    for name, tests in found.items():
        behavior = KNOWN[name]
        terminalreporter.write_line(f"{name}: {len(tests)} test{'s' if len(tests) > 1 else ''}: {behavior.explanation}")
        terminalreporter.write_line(f"    {behavior.workaround}")


def show_tolerated(terminalreporter: Any) -> None:
    """List in the summary the approximations and expected crashes of passed tests, for which pytest prints nothing."""
    for title, wanted in (
        ("tolerated approximations (--ddl-strict fails on them)", TOLERATED),
        ("comparisons that ended in an expected crash, in tests that passed with other comparisons", EXPECTED_END),
    ):
        noted = [
            (report.nodeid, text)
            for report in terminalreporter.getreports("passed")
            for name, text in report.user_properties
            if name == wanted
        ]
        if noted:
            terminalreporter.section(title)
            for nodeid, text in noted:
                terminalreporter.write_line(f"{nodeid}: {text}")
