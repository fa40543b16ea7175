"""An object that a plugin registers wrongly is reported with its hook, in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.comparisons import registered_checks
from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.harness import Harness
from pytest_ddl.session import harness_of
from pytest_ddl.strategies.mirrored import Mirrored
from pytest_ddl.strategies.registry import StrategyRegistry


def raising(*_arguments: Any) -> Any:
    raise RuntimeError("no machines")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (raising, "the launcher 'local' cannot be made: RuntimeError: no machines"),
        (
            lambda *_arguments: object(),
            "the launcher 'local' is no launcher: <object object at .*> has no address, ended,",
        ),
    ],
)
def test_a_wrong_launcher_is_named(make: Callable[..., Any], message: str) -> None:
    harness = Harness(resolve_without_pytest({}), StrategyRegistry(), {"local": make})
    try:
        with pytest.raises(LaunchError, match=message):
            harness.make_launcher()
    finally:
        harness.close()


def test_a_wrong_check_is_named() -> None:
    class Config:
        class hook:  # noqa: N801
            @staticmethod
            def pytest_ddl_register_checks(checks: list[Any]) -> None:
                checks.append("hello")

    with pytest.raises(pytest.UsageError, match=r"pytest_ddl_register_checks: 'hello' is no pytest_ddl\.Check"):
        registered_checks(Config)  # type: ignore[arg-type]


class Home:
    """A strategy of a plugin that does not inherit the interface."""

    name, summary, defaults = "home", "at home", {"replicas": 2}
    unavailable = topology = num_replicas = build = lambda *_arguments: None


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            Home(),
            r"Home is no strategy: it has no aliases, arguments, check\. Let the class inherit",
        ),
        (Mirrored, r"pytest_ddl\.strategies\.mirrored\.Mirrored is a class; add an object of it: Mirrored\(\)"),
        (Mirrored(), "strategy name 'mirrored' is taken; choose another name for"),
    ],
)
def test_a_wrong_strategy_is_named(strategy: Any, message: str) -> None:
    class Config:
        stash = pytest.Stash()

        class hook:  # noqa: N801
            @staticmethod
            def pytest_ddl_register_strategies(registry: StrategyRegistry) -> None:
                registry.add(strategy)

    with pytest.raises(pytest.UsageError, match=f"^pytest_ddl_register_strategies: .*{message}") as error:
        harness_of(Config)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
