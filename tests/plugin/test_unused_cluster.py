"""A test that asks for ``ddl_cluster`` and runs nothing on it fails, unless a fixture uses the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

UNUSED = """
    import pytest
    from pytest_ddl import current_rank

    pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=60)

    def rank():
        return current_rank().rank

    def test_runs_nothing(ddl_cluster):
        assert ddl_cluster.num_replicas == 2

    @pytest.fixture
    def workers(ddl_cluster):
        return ddl_cluster

    def test_runs_nothing_on_a_fixture(workers):
        pass

    @pytest.mark.xfail(strict=True, reason="runs nothing")
    def test_runs_nothing_and_may_fail(ddl_cluster):
        pass

    def test_skips(ddl_cluster):
        pytest.skip("not here")

    def test_only_stacks(ddl_cluster):
        assert len(ddl_cluster.stacks()) == 1

    @pytest.fixture
    def ran(ddl_cluster):
        assert ddl_cluster.run(rank) == [0]

    def test_a_fixture_runs(ran):
        pass

    @pytest.fixture
    def runs(request, ddl_cluster):
        yield
        if request.param:
            assert ddl_cluster.run(rank) == [0]

    @pytest.mark.parametrize("runs", [True, False], indirect=True)
    def test_a_tear_down_may_run(runs):
        pass

    class TestAutouse:
        @pytest.fixture(autouse=True)
        def of_others(self, ddl_cluster):
            self.cluster = ddl_cluster

        def test_runs(self):
            assert self.cluster.run(rank) == [0]

        def test_needs_no_cluster(self):
            pass
"""


@pytest.fixture(scope="module")
def unused(new_project: Callable[..., Any]) -> Any:
    return new_project({"test_unused.py": UNUSED}).pytest()


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("test_runs_nothing[mirrored]", "failed"),
        ("test_runs_nothing_on_a_fixture[mirrored]", "failed"),
        ("test_runs_nothing_and_may_fail[mirrored]", "xfailed"),
        ("test_a_tear_down_may_run[mirrored-False]", "error"),
        ("test_skips[mirrored]", "skipped"),
        ("test_only_stacks[mirrored]", "passed"),
        ("test_a_fixture_runs[mirrored]", "passed"),
        ("test_a_tear_down_may_run[mirrored-True]", "passed"),
        ("test_runs[mirrored]", "passed"),
        ("test_needs_no_cluster[mirrored]", "passed"),
    ],
)
def test_a_cluster_on_which_nothing_ran_is_no_pass(unused: Any, name: str, outcome: str) -> None:
    case = unused[name]
    assert case.outcome == outcome, case.text
    assert ("asked for ddl_cluster and ran nothing on it" in case.text) == (outcome in ("failed", "error"))
