"""Parametrize tests with the variants of strategies that they ask for."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_ddl.items.dispatch import in_process, in_rank
from pytest_ddl.items.selection import CONTROLLER_FIXTURES, SPEC_FIXTURE, fail_collection, label, parse_mark, select
from pytest_ddl.strategies.registry import UnknownStrategyError

if TYPE_CHECKING:
    from pytest_ddl.harness import Harness
    from pytest_ddl.strategies.spec import StrategySpec


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
        specs = _of_rank(metafunc.config, specs)
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


def _of_rank(config: pytest.Config, specs: list[StrategySpec]) -> list[StrategySpec]:
    """Return the variants that a rank runs, which is its own. Of a test that never runs there, return one.

    A run under all strategies has several times as many items, and each rank would make all of them.
    """
    own = getattr(config.option, "ddl_variant", None)
    return specs if own is None else [spec for spec in specs if spec == own] or specs[:1]


def _refuse_idle_marker(metafunc: pytest.Metafunc) -> None:
    """Refuse a ``ddl`` marker on a test that asks for no strategy.

    A marker on its class or module is accepted, because it may be meant for other tests.
    """
    if any(mark.name == "ddl" for mark in metafunc.definition.own_markers):
        raise ValueError(
            f"@pytest.mark.ddl has no effect: the test asks for none of ddl_strategy, {', '.join(CONTROLLER_FIXTURES)}"
        )


def _refuse_test_case(item: pytest.Item) -> None:
    """Refuse a ``ddl`` marker on a ``unittest.TestCase``, which gets neither parameters nor fixtures."""
    kind = getattr(item, "cls", None)
    if not (isinstance(kind, type) and issubclass(kind, unittest.TestCase)):
        return
    if any(isinstance(node, (pytest.Class, pytest.Function)) for node, _mark in item.iter_markers_with_node("ddl")):
        raise pytest.UsageError(
            f"{item.nodeid}: @pytest.mark.ddl has no effect on a test of unittest.TestCase, which cannot ask for "
            "ddl_strategy: write a function, or a method of a plain class"
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


def _asks(item: pytest.Item) -> bool:
    return SPEC_FIXTURE in getattr(item, "fixturenames", ())


def _warn_of_idle_markers(items: list[pytest.Item]) -> None:
    """Warn of a ``ddl`` marker on a class or module of which no test asks for a strategy: all run without one."""
    used: dict[pytest.Collector, bool] = {}
    for item in items:
        for node, _mark in item.iter_markers_with_node("ddl"):
            if isinstance(node, pytest.Collector):
                used[node] = used.get(node, False) or _asks(item)
    for node in (node for node, is_used in used.items() if not is_used):
        text = (
            f"@pytest.mark.ddl on {node.name} has no effect, because none of its tests asks for ddl_strategy or "
            f"{', '.join(CONTROLLER_FIXTURES)}: they run without a strategy"
        )
        try:
            node.warn(pytest.PytestWarning(text))
        except pytest.PytestWarning as as_error:
            # Outside of a collector, pytest takes an error of a filter of warnings for one of its own.
            raise pytest.UsageError(f"{node.nodeid}: {as_error}") from None


@contextmanager
def collected(harness: Harness, config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Judge markers before other plugins take items away. Then prepare the items that are left.

    :raises pytest.UsageError: for a test that can never run under the strategies that it names.
    """
    for item in items:
        _refuse_test_case(item)
    # An argument or the last failures may have left out the tests that use a marker.
    if not (in_rank() or any("::" in arg for arg in config.args) or config.getoption("lf", False)):
        _warn_of_idle_markers(items)
    yield
    _prepare(harness, config, items)


def _prepare(harness: Harness, config: pytest.Config, items: list[pytest.Item]) -> None:
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
            item.keywords[SPEC_FIXTURE] = True
    asked = any(_asks(item) for item in items)
    if asked and not in_rank() and not config.option.collectonly and not in_process(config):
        from pytest_ddl.cluster import overrides

        overrides.remember()
        harness.warm_up()
