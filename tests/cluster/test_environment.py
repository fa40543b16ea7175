"""The environment that each task of a cluster starts with."""

from __future__ import annotations

import os

import pytest

from pytest_ddl.cluster.handle import ClusterHandle
from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.harness import Harness
from pytest_ddl.launchers import built_in_launchers
from pytest_ddl.strategies.registry import StrategyRegistry


@pytest.mark.parametrize("given", [None, "fail_fast"])
def test_calls_to_a_dead_task_fail_fast_unless_the_user_decides(monkeypatch, given):
    monkeypatch.delenv("GRPC_FAIL_FAST", raising=False)
    if given is not None:
        monkeypatch.setenv("GRPC_FAIL_FAST", given)
    settings = resolve_without_pytest()
    harness = Harness(settings, StrategyRegistry(), built_in_launchers(settings))
    try:
        assert harness.worker_environ()["GRPC_FAIL_FAST"] == (given or "use_caller")
    finally:
        harness.close()


@pytest.mark.ddl(strategies="multi_worker_mirrored")
def test_each_rank_has_it(ddl_cluster: ClusterHandle):
    assert ddl_cluster.run(os.getenv, "GRPC_FAIL_FAST") == ["use_caller"] * 2
