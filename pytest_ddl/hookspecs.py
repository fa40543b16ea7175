"""Hooks that other plugins implement to add strategies, checks and launchers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_ddl.equivalence.checks.registry import Check
    from pytest_ddl.strategies.registry import StrategyRegistry


@pytest.hookspec()
def pytest_ddl_register_strategies(registry: StrategyRegistry) -> None:
    """Add strategies with ``registry.add(definition)``.

    The hook is called once in each pytest session, before a strategy is selected. Each rank runs its own session and
    calls the hook too. The hook must not import TensorFlow.
    """


@pytest.hookspec()
def pytest_ddl_register_checks(checks: list[Check]) -> None:
    """Append a :class:`pytest_ddl.Check` to those that ``ddl_equivalence`` runs. Each check needs a unique name.

    Its ``role`` says what it judges: a check of ``Role.STATE`` that finds something after the weights began to differ
    is a consequence, and is not reported as a cause of its own.

    The hook is called before the first comparison, in the process that compares.
    """


@pytest.hookspec()
def pytest_ddl_register_launchers(launchers: dict[str, Any]) -> None:
    """Add launchers by name, for example ``launchers["slurm"] = make``.

    ``make(environ, folder, address)`` must return a :class:`~pytest_ddl.cluster.launcher.Launcher`.
    """
