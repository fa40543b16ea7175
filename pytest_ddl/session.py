"""Implement the plugin's hooks. This module is imported only when a run needs it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_ddl.config import SETTINGS
from pytest_ddl.harness import Harness, built_in_launchers
from pytest_ddl.hosts.transports.registry import built_in_transports
from pytest_ddl.items.selection import CONTROLLER_FIXTURES, SPEC_FIXTURE, label, parse_mark, select
from pytest_ddl.messages import no_such_argument
from pytest_ddl.strategies.machine import GPU_GROWTH
from pytest_ddl.strategies.registry import StrategyDefinitionError, StrategyRegistry, UnknownStrategyError
from pytest_ddl.terminal import KEYWORD

if TYPE_CHECKING:
    from pytest_ddl.conformance.bench import Planned
    from pytest_ddl.strategies.spec import StrategySpec

HARNESS = pytest.StashKey[Harness]()
_RUNNER = pytest.StashKey[Any]()
_NAMED_BY_TESTS = ("pytest_ddl.comparisons", __name__)
"""Modules behind the public names that test files and conftest files import. Each rank would spend 0.2 s on them."""


def harness_of(config: pytest.Config) -> Harness:
    """Return the harness of this pytest process. Make it at the first call."""
    harness = config.stash.get(HARNESS, None)
    if harness is None:
        registry = StrategyRegistry()
        try:
            config.hook.pytest_ddl_register_strategies(registry=registry)
        except StrategyDefinitionError as error:
            raise pytest.UsageError(f"pytest_ddl_register_strategies: {error}") from None
        workerinput = getattr(config, "workerinput", {})
        launchers = built_in_launchers(config.stash[SETTINGS], shared=bool(workerinput), also=_NAMED_BY_TESTS)
        config.hook.pytest_ddl_register_launchers(launchers=launchers)
        transports = built_in_transports()
        config.hook.pytest_ddl_register_transports(transports=transports)
        folder = workerinput.get("ddl_folder") or getattr(config.option, "ddl_folder", None)
        harness = Harness(
            config.stash[SETTINGS],
            registry,
            launchers,
            transports=transports,
            address=workerinput.get("ddl_address"),
            folder=Path(folder) if folder else None,
            machine=getattr(config.option, "ddl_machine", None),
            runner=int("".join(filter(str.isdigit, workerinput.get("workerid", ""))) or 0),
            runners=int(workerinput.get("workercount", 1)),
            root=config.rootpath,
        )
        config.stash[HARNESS] = harness
        take_gpu_memory_as_needed(config)
    return harness


def take_gpu_memory_as_needed(config: Any) -> None:
    """Let TensorFlow in this process, where a test's body may compute, leave the memory of the GPUs to the ranks."""
    if config.stash[SETTINGS]["device"] != "cpu" and GPU_GROWTH not in os.environ:
        os.environ[GPU_GROWTH] = "true"
        config.add_cleanup(lambda: os.environ.pop(GPU_GROWTH, None))


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


def watch_report(config: pytest.Config) -> None:
    """Check the folder of ``--ddl-report``, in every process that writes pages.

    :raises pytest.UsageError: if the folder cannot be written. The message is one line.
    """
    from pytest_ddl.pages.watch import watch_pages

    option = config.option
    if not (_in_rank() or option.collectonly or option.ddl_list or option.help):
        watch_pages(config)


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
    over_hosts = harness.over_hosts
    is_worker = hasattr(config, "workerinput")
    if over_hosts and not is_worker and getattr(config.option, "dist", "no") != "no":
        # This process of pytest-xdist runs no tests, and its workers have hosts of their own. An engine that reserves
        # hosts may have none left for them.
        harness.check_launcher()
        harness.check_required()
        harness.leave_hosts()
        return
    _ = harness.machine
    if over_hosts and not is_worker:
        _start(harness)
    harness.check_required()
    harness.warm_up()


def _start(harness: Harness) -> None:
    """Start the launcher for several hosts, on which all tests depend.

    :raises pytest.UsageError: if it cannot be used, instead of once for each test.
    """
    from pytest_ddl.cluster.obstacles import LaunchError

    try:
        _ = harness.pool.launcher
    except LaunchError as error:
        raise pytest.UsageError(str(error)) from None


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


def parametrize_checks(metafunc: pytest.Metafunc, harness: Harness) -> None:
    """Parametrize ``ddl_check`` with the checks that apply to the objects of a test.

    The objects are made and tried on one device in another process: the pytest process does not start TensorFlow.
    """
    from pytest_ddl.conformance.cases import FIXTURE, PLAN

    plan = getattr(metafunc.function, PLAN, None)
    if FIXTURE not in metafunc.fixturenames:
        fail_collection(
            metafunc.definition, f"parametrize_with_ddl_checks: the test must have the argument {FIXTURE}, and call it"
        )
    if plan is None:
        fail_collection(metafunc.definition, f"asks for {FIXTURE}: decorate it with parametrize_with_ddl_checks([...])")
    if _in_rank():
        # A rank collects the file for other tests of it, and runs no check as an item.
        metafunc.parametrize(FIXTURE, [None], indirect=True, ids=["in_rank"])
        return
    from pytest_ddl.cluster.cluster import ClusterError
    from pytest_ddl.cluster.handle import ClusterHandle
    from pytest_ddl.cluster.obstacles import LaunchError
    from pytest_ddl.cluster.overrides import ShippingError
    from pytest_ddl.conformance.collecting import planned
    from pytest_ddl.items.selection import DdlMark

    def call(function: Any, *arguments: Any) -> Any:
        # Objects are tried on a CPU, so that no GPU is taken while tests are collected.
        mark = DdlMark(device="cpu", keras=parse_mark(metafunc.definition).keras)
        with harness.cluster(harness.registry.default("one_device"), mark) as cluster:
            deadline = time.monotonic() + harness.timeout(mark)
            return ClusterHandle(cluster, deadline).run(function, *arguments)[0]

    try:
        found = planned(plan, call, [definition.name for definition in harness.registry])
    except (ValueError, ShippingError, ClusterError, LaunchError) as error:
        fail_collection(metafunc.definition, f"parametrize_with_ddl_checks: {error}")
    metafunc.parametrize(FIXTURE, [pytest.param(one, id=one.id) for one in found], indirect=True)


def _refuse_idle_marker(metafunc: pytest.Metafunc) -> None:
    """Refuse a ``ddl`` marker on a test that asks for no strategy.

    A marker on its class or module is accepted, because it may be meant for other tests.
    """
    if any(mark.name == "ddl" for mark in metafunc.definition.own_markers):
        raise ValueError(
            f"@pytest.mark.ddl has no effect: the test asks for none of ddl_strategy, {', '.join(CONTROLLER_FIXTURES)}"
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
            item.keywords[KEYWORD] = True
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
    if unknown:
        raise ValueError(no_such_argument("@pytest.mark.gpu", unknown[0], ["min"]))
    if len(mark.args) + len(mark.kwargs) > 1:
        raise ValueError(f"@pytest.mark.gpu takes only min=1, not {mark.args}")
    wanted: int = mark.kwargs.get("min", mark.args[0] if mark.args else 1)
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise ValueError(f"@pytest.mark.gpu: min={wanted!r} must be a whole number, at least 1")
    return wanted


def refuse_in_process(item: pytest.Item) -> None:
    """Skip a test in the pytest process if its marker needs a process that is made for it."""
    mark = parse_mark(item)
    if in_process(item.config) and not _in_rank() and (mark.keras is not None or mark.arguments):
        pytest.skip("@pytest.mark.ddl(keras=…, arguments=…) needs other processes; --pdb and --ddl-in-process run none")


def checking(harness: Harness, item: pytest.Item, spec: StrategySpec, planned: Planned) -> Callable[[], None]:
    """Return a function that runs a check of an object under a strategy, for the fixture ``ddl_check``."""
    from pytest_ddl.cluster.cluster import ClusterError
    from pytest_ddl.cluster.handle import ClusterHandle
    from pytest_ddl.cluster.obstacles import LaunchError
    from pytest_ddl.comparisons import assert_equivalence

    mark = parse_mark(item)

    def call(function: Any, *arguments: Any) -> list[Any]:
        with harness.cluster(spec, mark) as cluster:
            # The time limit starts when the cluster is ready: how long that takes depends on earlier tests.
            return ClusterHandle(cluster, time.monotonic() + harness.timeout(mark)).run(function, *arguments)

    def compare(train: Any, **arguments: Any) -> None:
        __tracebackhide__ = True
        assert_equivalence(harness, item, spec, mark, train, **arguments)

    def run() -> None:
        __tracebackhide__ = True
        try:
            planned.run(spec, harness.registry[spec.name].capabilities, call, compare)
        except (ClusterError, LaunchError) as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    return run


def auto_num_workers(harness: Harness) -> int:
    """Return the number of xdist workers that ``-n auto`` starts.

    Each worker may run a cluster of the selected strategy with the most ranks. The number of cores that this process
    may use is therefore divided by the number of these ranks.
    """
    from pytest_ddl.cluster.cgroups import usable_cores

    specs = harness.registry.parse_selection(harness.settings["strategy"])
    runnable = [spec for spec in specs if harness.registry[spec.name].topology(spec).ranks]
    widest = max(len(harness.registry[spec.name].topology(spec).ranks) for spec in runnable)
    return max(1, int(usable_cores()) // widest)


def _in_rank() -> bool:
    worker = sys.modules.get("pytest_ddl.cluster.worker")
    return worker is not None and worker.current_rank() is not None
