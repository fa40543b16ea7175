"""Clusters over two emulated hosts: places of the ranks, and remains after a part is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.cluster import Answer, Cluster, ClusterError, Fate
from pytest_ddl.cluster.launcher import PLACE
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.protocol import RequestKind
from pytest_ddl.cluster.warm.fitting import Server
from pytest_ddl.hosts import link
from pytest_ddl.hosts.remote import RemoteLauncher
from pytest_ddl.strategies.base import topology_of
from pytest_ddl.strategies.registry import StrategyRegistry
from tests.hosts.conftest import Emulated, emulated_hosts, launcher_over
from tests.polling import wait_until

pytestmark = pytest.mark.slow

Over = Callable[..., RemoteLauncher]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, warm_server: Server) -> Iterator[RemoteLauncher]:
    """Return a launcher for tests that end no part of it."""
    folder = tmp_path_factory.mktemp("hosts")
    with emulated_hosts(folder) as made, contextlib.closing(launcher_over(made, folder, warm=True)) as launcher:
        yield launcher


@contextlib.contextmanager
def started(launcher: RemoteLauncher, variant: str) -> Iterator[Cluster]:
    registry = StrategyRegistry()
    spec = registry.parse_variant(variant)
    with contextlib.closing(Cluster.start(spec, registry[spec.name], launcher)) as cluster:
        yield cluster


@pytest.fixture
def start(shared: RemoteLauncher) -> Iterator[Callable[[str], Cluster]]:
    """Return a function that starts a cluster of a variant. All clusters are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda variant: stack.enter_context(started(shared, variant))


def call(cluster: Cluster, function: Callable[[], Any], seconds: float = 60.0) -> list[Answer]:
    return cluster.ask(RequestKind.CALL, ship.pack(function), deadline=time.monotonic() + seconds)


def values(answers: list[Answer]) -> list[Any]:
    assert all(answer.ok for answer in answers), answers
    return [ship.unpack(answer.body) for answer in answers]


def network(process: int | str = "self") -> str:
    return os.readlink(f"/proc/{process}/ns/net")


def agents(launcher: RemoteLauncher) -> list[psutil.Process]:
    """Return the processes of the agents, in the order of the hosts. They are children of this process."""
    return [psutil.Process(link.pid) for link in launcher.group.links]


def tree_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [*processes, *(child for one in processes for child in one.children(recursive=True))]


def none_runs(processes: list[psutil.Process]) -> bool:
    return not any(_runs(one) for one in processes)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two
        return False


@pytest.mark.parametrize("variant", ["multi_worker_mirrored", "multi_worker_mirrored[workers=4]"])
def test_workers_run_on_different_hosts(start: Callable[[str], Cluster], variant: str) -> None:
    found = values(call(start(variant), network))
    half = len(found) // 2
    assert len(set(found)) == 2
    assert len(set(found[:half])) == 1
    assert network() not in found


def test_a_variant_says_over_how_many_hosts_it_is_spread(start: Callable[[str], Cluster]) -> None:
    assert len(set(values(call(start("multi_worker_mirrored[hosts=1]"), network)))) == 1
    assert len(set(values(call(start("multi_worker_mirrored[hosts=2]"), network)))) == 2
    with pytest.raises(ClusterError) as raised:
        start("multi_worker_mirrored[workers=3,hosts=3]")
    assert str(raised.value).endswith(
        "hosts=3 is more than the 2 hosts of --ddl-launcher (host0, host1); add hosts there, or write hosts=2"
    )


HERE = frozenset(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("variant", "machines", "crowds", "places"),
    [
        # Emulated hosts are one machine, and their ranks share its cores.
        ("workers=4", None, {"host0": (4, len(HERE))}, ["0", "1", "2", "3"]),
        ("workers=4", [("a", range(64)), ("b", range(8))], {"host0": (2, 64), "host1": (2, 8)}, ["0", "1", "0", "1"]),
        # Containers of one machine, each with cores of its own.
        ("workers=4", [("a", [0, 1]), ("a", [2, 3])], {"host0": (2, 2), "host1": (2, 2)}, ["0", "1", "0", "1"]),
        ("workers=2,hosts=1", [("a", range(64)), ("b", range(8))], {"host0": (2, 64)}, ["0", "1"]),
    ],
)
def test_ranks_are_counted_on_their_machine(
    shared: RemoteLauncher, monkeypatch: pytest.MonkeyPatch, variant: str, machines: Any, crowds: Any, places: list[str]
) -> None:
    if machines is not None:
        given = [(machine, frozenset(cores)) for machine, cores in machines]
        monkeypatch.setattr(shared.group, "machines", lambda: given)
    registry = StrategyRegistry()
    spec = registry.parse_variant(f"multi_worker_mirrored[{variant}]")
    assert shared.crowds(topology_of(registry[spec.name], spec)) == crowds
    cluster = Cluster.start(spec, registry[spec.name], shared, environ={PLACE: ""})
    with contextlib.closing(cluster):
        assert values(call(cluster, lambda: os.environ[PLACE])) == places


def test_hosts_that_share_some_cores_cannot_be_pinned(shared: RemoteLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.group, "machines", lambda: [("a", frozenset({2, 3})), ("a", frozenset(range(8)))])
    registry = StrategyRegistry()
    spec = registry.parse_variant("multi_worker_mirrored[workers=2]")
    with pytest.raises(ValueError, match="host0 and host1 share some of their cores, and not all"):
        shared.crowds(registry[spec.name].topology(spec))


def test_a_rank_gets_no_variable_that_nobody_asked_for(start: Callable[[str], Cluster]) -> None:
    assert values(call(start("multi_worker_mirrored"), lambda: PLACE in os.environ)) == [False, False]


def test_servers_run_on_different_hosts(
    start: Callable[[str], Cluster], shared: RemoteLauncher, warm_server: Server
) -> None:
    cluster = start("parameter_server[processes=separate]")

    def step() -> None:
        import tensorflow as tf

        from pytest_ddl import current_strategy

        strategy = current_strategy()
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            counts = tf.Variable([0, 0])

        @tf.function
        def closure() -> Any:
            counts.assign_add([1, 2])
            return tf.distribute.coordinator.experimental_get_current_worker_index()

        # TensorFlow promises no fairness: a worker that is slow to begin may get none of a few closures.
        workers: list[int] = []
        deadline = time.monotonic() + 60
        while set(workers) != {0, 1} and time.monotonic() < deadline:
            workers += coordinator.fetch([coordinator.schedule(closure) for _ in range(20)])
        assert set(workers) == {0, 1}
        assert counts.numpy().tolist() == [len(workers), 2 * len(workers)]

    assert values(call(cluster, step)) == [None]
    # The zygotes of the hosts have forked the coordinator, a worker and the parameter server, and the other worker.
    zygotes = {network(zygote.pid): zygote for zygote in psutil.Process(warm_server.pid).children()}
    assert [len(zygotes[network(agent.pid)].children()) for agent in agents(shared)] == [3, 1]


def test_output_and_failures_arrive(start: Callable[[str], Cluster]) -> None:
    cluster = start("multi_worker_mirrored")

    def speak() -> None:
        from pytest_ddl.cluster.worker import current_rank

        rank = current_rank()
        assert rank is not None
        print(f"printed by rank {rank.rank}")
        os.write(2, b"written to stderr\n" * 100_000)

    def fail() -> None:
        from pytest_ddl.cluster.worker import current_rank

        rank = current_rank()
        assert rank is not None
        if rank.rank == 1:
            raise ValueError("a failure of rank 1")

    for number, answer in enumerate(call(cluster, speak)):
        assert answer.stdout == f"printed by rank {number}\n"
        assert answer.stderr.count("written to stderr\n") == 100_000
    _, second = call(cluster, fail)
    assert second.failure is not None
    assert "a failure of rank 1" in second.failure.message


def test_large_values_travel_both_ways(start: Callable[[str], Cluster]) -> None:
    blob = os.urandom(5_000_000)
    assert values(call(start("multi_worker_mirrored"), lambda: blob)) == [blob, blob]


def test_a_stuck_rank_shows_its_stacks(start: Callable[[str], Cluster]) -> None:
    def stuck_in_pause() -> None:
        signal.pause()

    answers = call(start("multi_worker_mirrored"), stuck_in_pause, seconds=5.0)
    assert [answer.fate for answer in answers] == [Fate.DEADLINE] * 2
    assert all("in stuck_in_pause" in answer.stacks for answer in answers)


def test_a_rank_can_be_suspended_killed_and_restarted(start: Callable[[str], Cluster]) -> None:
    cluster = start("mirrored")
    (before,) = values(call(cluster, os.getpid))
    cluster.signal(0, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(before).status() == psutil.STATUS_STOPPED, "the rank is not suspended")
    cluster.signal(0, signal.SIGCONT)
    assert values(call(cluster, os.getpid)) == [before]
    cluster.restart(0, time.monotonic() + 60)
    assert values(call(cluster, os.getpid)) != [before]


def test_a_rank_that_dies_has_its_status(start: Callable[[str], Cluster]) -> None:
    cluster = start("multi_worker_mirrored")

    def die() -> None:
        from pytest_ddl.cluster.worker import current_rank

        rank = current_rank()
        assert rank is not None
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    first, second = call(cluster, die)
    assert (first.fate, second.fate, second.exit_status) == (Fate.STOPPED, Fate.DIED, -9)


def test_servers_listen_at_the_addresses_of_their_hosts(start: Callable[[str], Cluster]) -> None:
    def listening() -> list[str]:
        return [
            str(connection.laddr.ip) for connection in psutil.net_connections("tcp") if connection.status == "LISTEN"
        ]

    def config() -> list[str]:
        import json

        return list(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])

    cluster = start("multi_worker_mirrored")
    for addresses in values(call(cluster, config)):
        assert [address.split(":")[0] for address in addresses] == ["198.18.77.1", "198.18.77.2"]
    assert all(values(call(cluster, listening)))


# Each is a run over real services. Each commit has one run over ssh, and those over Slurm.
@pytest.mark.nightly(each_commit=("agent",))
@pytest.mark.parametrize("struck", ["agent", "zygote", "agent suspended"])
def test_the_end_of_a_part_is_a_clear_verdict(
    emulated: Emulated, over: Over, struck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = over(emulated)
    with started(launcher, "multi_worker_mirrored") as cluster:
        monkeypatch.setattr(link, "SILENCE", 3.0)
        agent = agents(launcher)[1]
        everything = tree_of([agent])
        victim = (agent.children()[0] if struck == "zygote" else agent).pid
        number = signal.SIGSTOP if struck == "agent suspended" else signal.SIGKILL

        def strike() -> None:
            from pytest_ddl.cluster.worker import current_rank

            rank = current_rank()
            assert rank is not None
            if rank.rank == 1:
                os.kill(victim, number)
            signal.pause()

        with pytest.raises(LaunchError, match=r"host1") as raised:
            call(cluster, strike)
        assert launcher.ended == str(raised.value)
    launcher.close()
    wait_until(lambda: none_runs(everything), "workers of the lost host still run", 10)


def test_nothing_is_left_after_the_end(emulated: Emulated, over: Over) -> None:
    before = set(threading.enumerate())
    launcher = over(emulated)
    with started(launcher, "multi_worker_mirrored") as cluster:
        folders = [Path(folder) for folder in values(call(cluster, lambda: os.environ["TMPDIR"]))]
        everything = tree_of(agents(launcher))
        assert len(everything) >= 6
        assert all(folder.exists() for folder in folders)
        assert set(threading.enumerate()) > before
    launcher.close()
    wait_until(lambda: none_runs(everything), "processes of the hosts still run", 10)
    assert not any(folder.parent.exists() for folder in folders)
    wait_until(lambda: set(threading.enumerate()) <= before, "threads still run", 10)


def test_a_module_that_only_ranks_import_is_compared(
    tmp_path: Path, over: Over, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")  # Each host has a /tmp of its own, and the folder of this test is there.
    for name in ("same_here", "other_here"):
        (tmp_path / f"{name}.py").write_text("answer = 1\n")
    folder = str(tmp_path)
    with emulated_hosts(tmp_path, tmp="own") as made:
        for host, other in zip(made.hosts(), ("1", "2"), strict=True):
            texts = f"echo answer = 1 > {folder}/same_here.py; echo answer = {other} > {folder}/other_here.py"
            lines = f"mkdir -p {folder}; {texts}"
            subprocess.run(made.command(host, ["sh", "-c", lines]), check=True)
        launcher = over(made)
        with started(launcher, "multi_worker_mirrored") as cluster:

            def imports(name: str) -> int:
                import importlib
                import sys

                sys.path.insert(0, folder)
                return int(importlib.import_module(name).answer)

            # Only the host of rank 1 has another text than this process.
            for path in ("same_here.py", "other_here.py"):
                (tmp_path / path).write_bytes(b"answer = 1\n")
            assert values(call(cluster, partial(imports, "same_here"))) == [1, 1]
            with pytest.raises(LaunchError, match=rf"the host host1 has another {folder}/other_here\.py than this one"):
                call(cluster, partial(imports, "other_here"))


@pytest.mark.usefixtures("warm_server")
def test_a_cluster_is_not_started_over_a_broken_network(emulated: Emulated, over: Over) -> None:
    launcher = over(emulated, warm=True)
    with started(launcher, "multi_worker_mirrored"):
        pass
    down = ["ip", "link", "set", "eth0", "down"]
    subprocess.run(emulated.command(emulated.hosts()[1], down), check=True)
    with (
        pytest.raises(ClusterError, match=r"host\d: it (cannot|does not) reach"),
        started(launcher, "multi_worker_mirrored"),
    ):
        pass
