"""The pool: what is handed out, kept and ended, with clusters that are only names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.cluster import pool as module
from pytest_ddl.cluster.pool import Pool
from pytest_ddl.cluster.resources import Ledger, ResourcesBusyError
from pytest_ddl.config import SETTINGS
from pytest_ddl.session import take_gpu_memory_as_needed
from pytest_ddl.strategies.machine import GPU_GROWTH, GPU_LOADING, GPU_MEMORY, GpuShare
from pytest_ddl.strategies.registry import StrategyRegistry


class FakeCluster:
    """Stands for a cluster: notes what it was started with and whether it was closed."""

    def __init__(self, spec: Any, environ: dict[str, str]) -> None:
        self.spec, self.environ = spec, environ
        self.dirty = self.retired = ""
        self.alive = True
        self.closed = False
        self.processes = [None]
        self.left = ""
        self.next_item: str | None = None
        self.limits: list[float | None] = []

    def settle(self, idle_limit: float | None = None) -> None:
        self.retired = self.retired or self.left
        self.limits.append(idle_limit)

    def stay(self) -> None:
        self.limits.append(None)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[FakeCluster]:
    found: list[FakeCluster] = []

    def start(spec: Any, _definition: Any, _launcher: Any, *, environ: dict[str, str], **_rest: Any) -> FakeCluster:
        found.append(FakeCluster(spec, environ))
        return found[-1]

    monkeypatch.setattr(module.Cluster, "start", start)
    return found


Lease = Callable[..., Any]


@pytest.fixture
def make_pool(tmp_path: Path) -> Callable[..., tuple[Pool, Lease]]:
    def make(
        gpus: int = 0,
        environ: dict[str, str] | None = None,
        gpu_processes: int = 8,
        make: Callable[..., Any] = SimpleNamespace,
    ) -> tuple[Pool, Lease]:
        registry = StrategyRegistry()
        ledger = Ledger(tmp_path, {"cpu": 4, "gpu": gpus})

        def launcher() -> Any:
            return make(ledger=ledger, ended="", poll=lambda: None, close=lambda: None)

        pool = Pool(launcher, lambda: environ or {}, lambda: GpuShare(gpu_processes, 4096))

        def lease(text: str = "mirrored", device: str = "cpu", **rest: Any) -> Any:
            spec = registry.parse_variant(text)
            return pool.lease(spec, registry[spec.name], device=device, timeout=1.0, **rest)

        return pool, lease

    return make


def test_servers_that_nobody_uses_end(
    started: list[FakeCluster], make_pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    _pool, lease = make_pool()
    with lease("multi_worker_mirrored") as servers, lease("mirrored") as plain:
        pass
    assert (servers.limits, plain.limits) == ([module.IDLE_LIMIT], [None])
    now += module.IDLE_LIMIT
    with lease("mirrored") as again:
        assert again is plain
        assert servers.closed
    with lease("multi_worker_mirrored") as another:
        another.next_item = "test_x.py::test_that_has_its_fixtures_there"
    now += module.IDLE_LIMIT
    with lease("multi_worker_mirrored") as kept:
        assert kept is another


@pytest.mark.parametrize("idle", [0.0, 20.0])
def test_servers_that_are_in_use_do_not_end(
    started: list[FakeCluster], make_pool: Any, monkeypatch: pytest.MonkeyPatch, idle: float
) -> None:
    """A test may import TensorFlow before it asks the ranks for anything."""
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    _pool, lease = make_pool()
    with lease("multi_worker_mirrored") as first:
        pass
    now += idle
    with lease("multi_worker_mirrored") as again:
        assert again is first
        assert first.limits == [module.IDLE_LIMIT, None]
    now += 20.0
    first.left = "a thread still runs"
    with lease("multi_worker_mirrored") as another:
        assert another is not first
        assert first.closed


def test_what_is_left_of_a_cluster_that_ended_is_closed(started: list[FakeCluster], make_pool: Any) -> None:
    _pool, lease = make_pool()
    with lease("multi_worker_mirrored") as ended:
        pass
    ended.alive = False
    with lease("mirrored"):
        assert ended.closed


def test_a_clean_cluster_is_used_again(started: list[FakeCluster], make_pool: Any) -> None:
    _pool, lease = make_pool()
    with lease() as first:
        pass
    with lease() as second:
        assert second is first
    with lease("one_device") as other:
        assert other is not first


def test_sessions_and_calls_have_clusters_of_their_own(started: list[FakeCluster], make_pool: Any) -> None:
    _pool, lease = make_pool()
    with lease() as first:
        pass
    with lease(sessions=True) as second:
        assert second is not first
    with lease() as third:
        assert third is first


@pytest.mark.parametrize(
    "spoil",
    [{"dirty": "a rank died"}, {"retired": "a test failed"}, {"alive": False}, {"left": "numpy.mean was replaced"}],
)
def test_a_spoiled_cluster_is_ended(started: list[FakeCluster], make_pool: Any, spoil: dict[str, Any]) -> None:
    _pool, lease = make_pool()
    with lease() as first:
        vars(first).update(spoil)
    with lease() as second:
        assert first.closed
        assert second is not first


def test_a_launcher_that_has_ended_is_replaced_a_few_times(
    started: list[FakeCluster], make_pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REPLACEMENTS", 2)
    launchers: list[Any] = []

    def make(**parts: Any) -> Any:
        closed: list[str] = []
        launchers.append(SimpleNamespace(**{**parts, "closed": closed, "close": lambda: closed.append("closed")}))
        return launchers[-1]

    _pool, lease = make_pool(make=make)
    for number in range(4):
        with lease(fresh=True):
            pass
        assert len(launchers) == min(number + 1, 3)
        launchers[-1].ended = "killed"
    assert all(cluster.closed for cluster in started)
    assert [launcher.closed for launcher in launchers] == [["closed"], ["closed"], []]


def test_a_fresh_cluster_is_for_one_use(started: list[FakeCluster], make_pool: Any) -> None:
    _pool, lease = make_pool()
    with lease() as warm, lease(fresh=True) as fresh:
        assert fresh is not warm
    assert (warm.closed, fresh.closed) == (False, True)


def test_an_exception_in_the_controller_ends_the_cluster(started: list[FakeCluster], make_pool: Any) -> None:
    _pool, lease = make_pool()
    with contextlib.suppress(KeyboardInterrupt), lease() as cluster:
        raise KeyboardInterrupt
    assert cluster.closed


def test_closing_ends_all(started: list[FakeCluster], make_pool: Any) -> None:
    pool, lease = make_pool()
    for text in ("mirrored", "one_device"):
        with lease(text):
            pass
    pool.close()
    assert [cluster.closed for cluster in started] == [True, True]


def test_many_variants_do_not_stay_warm_for_ever(
    started: list[FakeCluster], make_pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WARM_PROCESSES", 2)
    _pool, lease = make_pool()
    for replicas in range(1, 6):
        with lease(f"mirrored[replicas={replicas}]"):
            pass
    assert sum(not cluster.closed for cluster in started) == 2


def test_a_worn_out_cluster_is_replaced(
    started: list[FakeCluster], make_pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_USES", 2)
    _pool, lease = make_pool()
    for _ in range(3):
        with lease():
            pass
    assert [cluster.closed for cluster in started] == [True, False]


def test_clusters_share_a_gpu_and_stay_warm(started: list[FakeCluster], make_pool: Any) -> None:
    _pool, lease = make_pool(gpus=1)
    for _ in range(3):
        for strategy in ("one_device", "mirrored", "central_storage"):
            with lease(strategy, "gpu") as cluster:
                assert cluster.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert [cluster.closed for cluster in started] == [False, False, False]


def test_the_oldest_idle_cluster_makes_way_if_the_memory_of_gpus_is_small(
    started: list[FakeCluster], make_pool: Any
) -> None:
    _pool, lease = make_pool(gpus=1, gpu_processes=2)
    for strategy in ("one_device", "mirrored", "central_storage"):
        with lease(strategy, "gpu"):
            pass
    assert [cluster.closed for cluster in started] == [True, False, False]


def test_gpus_are_counted_before_a_cluster_starts_there(started: list[FakeCluster], make_pool: Any) -> None:
    """The fixture's ledger knows no GPU before the pool asks how many processes may use them."""
    pool, lease = make_pool(gpus=0)

    def found() -> GpuShare:
        pool.launcher.ledger.capacity["gpu"] = 1
        return GpuShare(8, 4096)

    pool._gpu_share = found
    with lease("one_device", "gpu") as cluster:
        assert cluster.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_measurement_has_its_gpus_for_itself(started: list[FakeCluster], make_pool: Any, tmp_path: Path) -> None:
    _pool, lease = make_pool(gpus=2)
    with lease("one_device", "gpu") as idle:
        assert idle.environ[GPU_MEMORY] == "4096"
    other = Ledger(tmp_path, {"gpu": 2})
    with lease("mirrored", "gpu", fresh=True, exclusive=True) as alone:
        assert idle.closed
        assert GPU_MEMORY not in alone.environ
        with pytest.raises(ResourcesBusyError):
            other.acquire("gpu", 1, 0.0, shared=True)


def test_idle_clusters_make_way_for_a_measurement_of_another_process(
    started: list[FakeCluster], make_pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pool, lease = make_pool(gpus=1)
    with lease("one_device", "gpu") as idle:
        pass
    with lease("mirrored", "gpu") as used:
        monkeypatch.setattr(Ledger, "is_awaited", lambda _ledger, kind: kind == "gpu")
    assert used.closed
    with lease("mirrored", "gpu"):
        assert idle.closed


@pytest.mark.parametrize(("name", "default"), [(GPU_GROWTH, "true"), (GPU_LOADING, "LAZY")])
@pytest.mark.parametrize(("device", "given", "found"), [("gpu", "", "default"), ("gpu", "no", "no"), ("cpu", "", None)])
def test_a_rank_takes_memory_of_a_gpu_and_loads_kernels_as_it_needs_them(
    started: list[FakeCluster], make_pool: Any, name: str, default: str, device: str, given: str, found: str | None
) -> None:
    _pool, lease = make_pool(gpus=1, environ={name: given} if given else {})
    with lease("one_device", device) as cluster:
        assert cluster.environ.get(name) == (default if found == "default" else found)


def test_gpus_are_those_that_the_user_allows(started: list[FakeCluster], make_pool: Any) -> None:
    _pool, lease = make_pool(gpus=2, environ={"CUDA_VISIBLE_DEVICES": "5, 7"})
    with lease("mirrored", "gpu") as cluster:
        assert cluster.environ["CUDA_VISIBLE_DEVICES"] == "5,7"


@pytest.mark.parametrize(
    ("device", "given", "inside"), [("auto", None, "true"), ("gpu", "false", "false"), ("cpu", None, None)]
)
def test_the_pytest_process_leaves_memory_of_gpus_to_the_ranks(
    device: str, given: str | None, inside: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body of a test with ``ddl_cluster`` runs there, and TensorFlow would take all memory at its first tensor."""
    monkeypatch.setenv(GPU_GROWTH, given or "")
    if given is None:
        monkeypatch.delenv(GPU_GROWTH)
    ends: list[Callable[[], object]] = []
    take_gpu_memory_as_needed(SimpleNamespace(stash={SETTINGS: {"device": device}}, add_cleanup=ends.append))
    assert os.environ.get(GPU_GROWTH) == inside
    for end in ends:
        end()
    assert os.environ.get(GPU_GROWTH) == given
