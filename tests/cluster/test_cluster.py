"""Clusters of real processes are started, and end without a trace."""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.cluster import Cluster, ClusterError
from pytest_ddl.cluster.local_launcher import LocalLauncher
from pytest_ddl.cluster.protocol import Request, RequestKind
from pytest_ddl.cluster.worker import Worker, current_rank, current_strategy
from pytest_ddl.harness import Harness, process_harness
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.strategies.spec import StrategySpec
from tests.cluster.test_gathering import later

FAR = 60.0


@pytest.fixture(scope="module")
def harness() -> Harness:
    return process_harness()


def pids(cluster: Cluster) -> list[int]:
    answers = cluster.ask(RequestKind.CALL, ship.pack(os.getpid), deadline=time.monotonic() + FAR)
    return [ship.unpack(answer.body) for answer in answers]


def ports(cluster: Cluster) -> set[int]:
    return {int(address.rpartition(":")[2]) for address in cluster.reservation.addresses}


def test_two_clusters_at_once_share_no_port_and_end_without_a_trace(harness: Harness) -> None:
    spec = harness.registry.parse_variant("multi_worker_mirrored")
    fresh = DdlMark(isolation="fresh")
    with harness.cluster(spec, fresh) as one, harness.cluster(spec, fresh) as two:
        assert not ports(one) & ports(two)
        found = [*pids(one), *pids(two)]
        assert len(set(found)) == 4
        held = {connection.laddr.port for connection in psutil.Process().net_connections("udp4")}
        assert ports(one) | ports(two) <= held
        leased = ports(one) | ports(two)
    assert not [pid for pid in found if psutil.pid_exists(pid)]
    assert not leased & {connection.laddr.port for connection in psutil.Process().net_connections("udp4")}


def threads_after_collectives() -> int:
    """Return the number of native threads that 50 all-reduces leave behind in this rank."""
    import tensorflow as tf

    strategy = current_strategy()

    def reduce() -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))

    strategy.run(reduce)
    before = psutil.Process().num_threads()
    for _ in range(50):
        strategy.run(reduce)
    return psutil.Process().num_threads() - before


def test_one_machine_has_no_second_host(harness: Harness) -> None:
    spec = harness.registry.parse_variant("multi_worker_mirrored[hosts=2]")
    with (
        pytest.raises(ClusterError, match=r"hosts=2 needs as many hosts, and this launcher has one machine; choose"),
        harness.cluster(spec, DdlMark()),
    ):
        pass
    with harness.cluster(harness.registry.parse_variant("multi_worker_mirrored[hosts=1]"), DdlMark()):
        pass


def test_tensorflow_waits_for_collectives_as_long_as_the_test_may_run(harness: Harness) -> None:
    # TensorFlow starts a thread for each collective that has a time limit, and the thread lives as long as the limit.
    with harness.cluster(
        harness.registry.parse_variant("multi_worker_mirrored"), DdlMark(isolation="fresh")
    ) as cluster:
        job = ship.pack(threads_after_collectives)
        answers = cluster.ask(RequestKind.CALL, job, deadline=time.monotonic() + FAR)
    assert all(ship.unpack(answer.body) < 20 for answer in answers)


def fail_with_a_slow_message(folder: Path) -> None:
    """Raise on all ranks. The message of rank 1 is ready only when its file exists, and rank 0 does not wait for it."""
    begun, ready = folder / "begun", folder / "ready"

    def wait_for(file: Path) -> None:
        deadline = time.monotonic() + FAR
        while not file.exists() and time.monotonic() < deadline:
            threading.Event().wait(0.01)

    class SlowError(Exception):
        def __str__(self) -> str:
            begun.touch()
            wait_for(ready)
            return "slow"

    rank = current_rank()
    if rank is not None and rank.rank == 1:
        raise SlowError
    wait_for(begun)
    raise ValueError("quick")


def test_a_rank_says_that_its_report_follows(harness: Harness, tmp_path: Path) -> None:
    spec = harness.registry.parse_variant("multi_worker_mirrored")
    with harness.cluster(spec, DdlMark(isolation="fresh")) as cluster:
        job = ship.pack(fail_with_a_slow_message, (tmp_path,))
        answers = cluster.ask(
            RequestKind.CALL, job, deadline=time.monotonic() + FAR, stuck=later((tmp_path / "ready").touch)
        )
    assert [answer.failure and answer.failure.message for answer in answers] == ["quick", "slow"]


def test_what_a_rank_started_ends_with_it(harness: Harness) -> None:
    def start_child() -> int:
        import subprocess

        return subprocess.Popen(["sleep", "1000"]).pid

    with harness.cluster(harness.registry.parse_variant("one_device"), DdlMark(isolation="fresh")) as cluster:
        (answer,) = cluster.ask(RequestKind.CALL, ship.pack(start_child), deadline=time.monotonic() + FAR)
        child = psutil.Process(ship.unpack(answer.body))
    _gone, alive = psutil.wait_procs([child], timeout=10)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_what_a_rank_started_in_a_new_session_ends_with_it(harness: Harness) -> None:
    def start_daemon() -> int:
        import subprocess

        # The shell ends at once, so that nothing but the process table connects its child with the rank.
        command = ["setsid", "sh", "-c", "sleep 1000 >/dev/null & echo $!"]
        return int(subprocess.run(command, stdout=subprocess.PIPE, check=True, env={}).stdout)

    with harness.cluster(harness.registry.parse_variant("one_device"), DdlMark(isolation="fresh")) as cluster:
        (answer,) = cluster.ask(RequestKind.CALL, ship.pack(start_daemon), deadline=time.monotonic() + FAR)
        daemon = psutil.Process(ship.unpack(answer.body))
        assert daemon.is_running()
    _gone, alive = psutil.wait_procs([daemon], timeout=10)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


class Large:
    """Object that can have a weak reference, which shows that it is garbage."""


def leave_behind() -> None:
    """Leave an object in a global of this module, and another one in a package."""
    global large
    large = Large()
    sys.ddl_of_a_module, sys.ddl_of_a_package = weakref.ref(large), [large.__class__.__name__]  # type: ignore[attr-defined]


def what_is_left() -> tuple[bool, bool]:
    """Return whether the object of the module is still alive, and whether collections visit the one of the package."""
    of_a_package = sys.ddl_of_a_package  # type: ignore[attr-defined]
    visited = any(one is of_a_package for one in gc.get_objects())
    return sys.ddl_of_a_module() is not None, visited  # type: ignore[attr-defined]


def test_collections_of_garbage_skip_what_earlier_calls_left_in_packages_and_nothing_else(harness: Harness) -> None:
    """TensorFlow keeps every function that it has traced, so a rank of many calls would spend its time on them."""
    with harness.cluster(harness.registry.parse_variant("mirrored"), DdlMark(isolation="fresh")) as cluster:
        for function, expected in ((leave_behind, None), (what_is_left, (False, False))):
            answers = cluster.ask(RequestKind.CALL, ship.pack(function), deadline=time.monotonic() + FAR)
            assert [ship.unpack(answer.body) for answer in answers] == [expected]


def test_ranks_that_nobody_asks_for_anything_end_by_themselves(harness: Harness) -> None:
    spec = harness.registry.parse_variant("multi_worker_mirrored")
    with harness.cluster(spec, DdlMark(isolation="fresh")) as cluster:
        ranks = [psutil.Process(pid) for pid in pids(cluster)]
        cluster.next_item = "test_x.py::test_that_has_its_fixtures_there"
        cluster.settle(idle_limit=0.01)
        assert pids(cluster) == [rank.pid for rank in ranks]
        cluster.next_item = None
        cluster.settle(idle_limit=FAR)
        cluster.stay()
        answers = cluster.ask(RequestKind.CALL, ship.pack(os.getpid), deadline=time.monotonic() + FAR)
        assert [ship.unpack(answer.body) for answer in answers] == [rank.pid for rank in ranks]
        cluster.settle(idle_limit=0.01)
        _gone, alive = psutil.wait_procs(ranks, timeout=10)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
        assert [cluster.wait_for_exit(index) for index in range(2)] == [0, 0]
        assert not cluster.alive


def test_a_rank_that_is_told_to_stay_waits_without_a_limit() -> None:
    class Waiting(queue.SimpleQueue[Request]):
        def get(self, block: bool = True, timeout: float | None = None) -> Request:
            limits.append(timeout)
            return super().get(block, timeout)

    limits: list[float | None] = []
    worker, asked = object.__new__(Worker), Request(1, RequestKind.CALL)
    worker._requests, worker._idle_limit = Waiting(), FAR
    for request in (Request(0, RequestKind.STAY), asked):
        worker._requests.put(request)
    assert worker._wait() is asked
    assert limits == [FAR, None]


def test_a_strategy_that_cannot_be_built_says_why(harness: Harness) -> None:
    # On a CPU, TensorFlow gives a multi-worker task one replica.
    spec = StrategySpec("multi_worker_mirrored", {"workers": 1, "replicas": 2})
    expected = pytest.raises(ClusterError, match=r"could not be started; worker:0: .*expected 2")
    with expected, harness.cluster(spec, DdlMark(device="cpu")):
        pass


def test_a_launcher_may_be_closed_before_tensorflow_is_imported(tmp_path: Path) -> None:
    launcher = LocalLauncher(os.environ, tmp_path)
    assert launcher._process is not None
    zygote = launcher._process.pid
    launcher.close()
    launcher.close()
    assert not psutil.pid_exists(zygote)
