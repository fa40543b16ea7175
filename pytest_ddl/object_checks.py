"""Parametrize tests with the checks of objects, and run one of them under a strategy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddl.items.dispatch import in_rank
from pytest_ddl.items.selection import DdlMark, fail_collection, parse_mark

if TYPE_CHECKING:
    from pytest_ddl.conformance.bench import Planned
    from pytest_ddl.harness import Harness
    from pytest_ddl.strategies.spec import StrategySpec


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
        fail_collection(
            metafunc.definition,
            f"asks for {FIXTURE}, which checks objects: decorate it with parametrize_with_ddl_checks([...]), or ask "
            "for ddl_equivalence to compare training",
        )
    if in_rank():
        # A rank collects the file for other tests of it, and runs no check as an item.
        metafunc.parametrize(FIXTURE, [None], indirect=True, ids=["in_rank"])
        return
    from pytest_ddl.cluster.cluster import ClusterError
    from pytest_ddl.cluster.handle import ClusterHandle
    from pytest_ddl.cluster.obstacles import LaunchError
    from pytest_ddl.cluster.overrides import ShippingError
    from pytest_ddl.conformance.collecting import planned

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
