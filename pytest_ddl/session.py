"""Begin and end what the tests of a pytest process share. This module is imported only when a run needs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.config import SETTINGS
from pytest_ddl.harness import Harness
from pytest_ddl.hosts.transports.registry import built_in_transports
from pytest_ddl.items.dispatch import in_rank
from pytest_ddl.launchers import built_in_launchers
from pytest_ddl.strategies.machine import GPU_GROWTH
from pytest_ddl.strategies.registry import StrategyDefinitionError, StrategyRegistry, UnknownStrategyError

HARNESS = pytest.StashKey[Harness]()
_NAMED_BY_TESTS = ("pytest_ddl.comparisons", "pytest_ddl.items.parametrizing", __name__)
"""Modules that test files, conftest files and the collection of tests import. Each rank would spend 0.2 s on them."""


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
    """Let TensorFlow in this process, which may run a test's body, leave the memory of the GPUs to the ranks."""
    if config.stash[SETTINGS]["device"] != "cpu" and GPU_GROWTH not in os.environ:
        os.environ[GPU_GROWTH] = "true"
        config.add_cleanup(lambda: os.environ.pop(GPU_GROWTH, None))


def watch_gates(config: pytest.Config) -> None:
    """Make a run with ``--ddl-gate`` fail if it measures nothing.

    Only the process that the user started does this. Ranks and xdist workers do not.
    """
    if not in_rank() and not hasattr(config, "workerinput"):
        from pytest_ddl.items.gated import GateWatch

        config.pluginmanager.register(GateWatch(config), "ddl-gate-watch")


def watch_report(config: pytest.Config) -> None:
    """Check the folder of ``--ddl-report``, in every process that writes pages.

    :raises pytest.UsageError: if the folder cannot be written. The message is one line.
    """
    from pytest_ddl.pages.watch import watch_pages

    option = config.option
    if not (in_rank() or option.collectonly or option.ddl_list or option.help):
        watch_pages(config)


def close(config: pytest.Config) -> None:
    """End all processes that the run has started."""
    harness = config.stash.get(HARNESS, None)
    if harness is not None and not in_rank():
        harness.close()
        del config.stash[HARNESS]
        overrides = sys.modules.get("pytest_ddl.cluster.overrides")
        if overrides is not None:
            overrides.forget()


def tear_down(session: pytest.Session) -> None:
    """Tear down the fixtures that warm clusters still hold, while their errors can still be reported."""
    harness = session.config.stash.get(HARNESS, None)
    if harness is None or in_rank():
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
    if in_rank() or config.option.collectonly or config.option.ddl_list or config.option.help:
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


def check_named(config: pytest.Config) -> None:
    """Check what options name, and start to import TensorFlow if they name strategies or a launcher.

    :raises pytest.UsageError: if it does not exist, or does not fit the launcher. The message is one line.
    """
    settings = config.stash[SETTINGS]
    if not (in_rank() or config.option.ddl_list or config.option.help):
        _check_hosts(harness_of(config))
    if any(settings.origin(name) != "default" for name in ("strategy", "require", "launcher")):
        prepare(config)


def _check_hosts(harness: Harness) -> None:
    _ = harness.over_hosts
    folder = harness.settings["shared-dir"]
    if folder and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        problem = "cannot be written" if os.path.exists(folder) else "there is no such folder"
        raise harness.settings.error("shared-dir", f"{problem}; give one that this machine and all hosts share")


def _start(harness: Harness) -> None:
    """Start the launcher for several hosts, on which all tests depend.

    :raises pytest.UsageError: if it cannot be used, instead of once for each test.
    """
    from pytest_ddl.cluster.obstacles import LaunchError

    try:
        _ = harness.pool.launcher
    except LaunchError as error:
        raise pytest.UsageError(str(error)) from None


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
