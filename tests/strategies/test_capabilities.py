"""Capabilities: those of the built-in strategies, and their way from a definition to ranks and records."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddl import check_training
from pytest_ddl.harness import process_harness
from pytest_ddl.strategies.base import capabilities_of
from pytest_ddl.strategies.central_storage import CentralStorage
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.strategies.spec import SYNCHRONOUS, Capabilities

DECLARED = {
    "parameter_server": Capabilities(coordinator=True),
    "central_storage": Capabilities(reduces_by_copies=True),
    "model_parallel": Capabilities(global_view=True),
}


@pytest.mark.parametrize("name", [definition.name for definition in StrategyRegistry()])
def test_built_in_strategies_declare_how_they_differ(name: str) -> None:
    assert capabilities_of(StrategyRegistry()[name]) == DECLARED.get(name, SYNCHRONOUS)


class Undeclared:
    """A definition of a plugin that knows no capabilities."""

    name = "undeclared"
    aliases = ("u",)


def test_a_definition_without_capabilities_is_synchronous() -> None:
    assert capabilities_of(Undeclared()) is SYNCHRONOUS  # type: ignore[arg-type]


class Gathered(CentralStorage):
    """A strategy of a plugin."""

    name = "gathered"
    capabilities = Capabilities(reduces_by_copies=True, global_view=True)


def train(run: Any) -> None:
    import tensorflow as tf

    with run.strategy.scope():
        weight = tf.Variable(1.0)
    run.watch(variables=[weight])
    run.record(loss=1.0)


@pytest.mark.slow
def test_ranks_and_records_have_the_capabilities_of_a_registered_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = process_harness().registry
    monkeypatch.setattr(registry, "_definitions", dict(registry._definitions))
    registry.add(Gathered())
    report = check_training(train, "gathered")
    assert report.reference is not None
    assert report.distributed is not None
    assert report.reference.capabilities == SYNCHRONOUS
    assert report.distributed.capabilities == Gathered.capabilities
    # A rank whose program sees the global batch does not observe the batches of replicas.
    assert "the batches of the replicas were not observed" in report.distributed.ranks[0].notes
