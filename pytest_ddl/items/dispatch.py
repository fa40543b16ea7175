"""Send a test item to ranks, or run it in the pytest process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddl.config import SETTINGS
from pytest_ddl.items.selection import parse_mark

if TYPE_CHECKING:
    from pytest_ddl.harness import Harness
    from pytest_ddl.strategies.spec import StrategySpec

_RUNNER = pytest.StashKey[Any]()


def in_rank() -> bool:
    """Return whether this process is a rank, and imports nothing to find out."""
    worker = sys.modules.get("pytest_ddl.cluster.worker")
    return worker is not None and worker.current_rank() is not None


def runs_in_ranks(item: pytest.Item) -> bool:
    """Return whether this process sends the item to ranks. A rank and a process under a debugger do not."""
    from pytest_ddl.items.spmd import is_spmd

    return is_spmd(item) and not in_rank() and not in_process(item.config)


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


def refuse_in_process(item: pytest.Item) -> None:
    """Skip a test in the pytest process if its marker needs a process that is made for it."""
    mark = parse_mark(item)
    if in_process(item.config) and not in_rank() and (mark.keras is not None or mark.arguments):
        pytest.skip("@pytest.mark.ddl(keras=…, arguments=…) needs other processes; --pdb and --ddl-in-process run none")
