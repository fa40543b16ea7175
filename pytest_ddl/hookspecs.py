"""Hooks with which other plugins add strategies, checks and launchers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_ddl.checks.registry import Check
    from pytest_ddl.strategies.registry import StrategyRegistry


@pytest.hookspec()
def pytest_ddl_register_strategies(registry: StrategyRegistry) -> None:
    """Add strategies with ``registry.add(definition)``.

    Called once when pytest is configured, also in every rank; must not import TensorFlow.
    """


@pytest.hookspec()
def pytest_ddl_register_checks(checks: list[Check]) -> None:
    """Append to the checks that ``ddl_equivalence`` runs; their names must differ.

    Called before the first comparison, in the process that compares.
    """


@pytest.hookspec()
def pytest_ddl_register_launchers(launchers: dict[str, Any]) -> None:
    """Add launchers: ``launchers["slurm"] = make``, where ``make(environ, folder, address)`` returns a ``Launcher``."""
