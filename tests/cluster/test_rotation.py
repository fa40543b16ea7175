"""Processes of a cluster move to other places, and each keeps its address and its host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_ddl.cluster.rotation import ROTATION, RotatedLauncher, rotated
from pytest_ddl.strategies.spec import Task, Topology

WORKERS = tuple(Task("worker", index) for index in range(3))


class Whole:
    """Reservation of a launcher for two hosts: the first two processes are on the first one."""

    def __init__(self, topology: Topology) -> None:
        count = len(topology.ranks) + len(topology.servers)
        self.hosts = tuple(int(index >= 2) for index in range(count))
        self.addresses = tuple(f"host{self.hosts[process]}:{process}" for process in topology.listeners)
        self.released = 0

    def release(self) -> None:
        self.released += 1


class Launcher:
    ended = "not yet"

    def __init__(self) -> None:
        self.launched: list[int] = []

    def reserve(self, topology: Topology) -> Whole:
        return Whole(topology)

    def launch(self, reservation: Any, tasks: Sequence[int], environ: Mapping[str, str]) -> list[Any]:
        assert isinstance(reservation, Whole)
        self.launched = list(tasks)
        return [f"process {task} on host {reservation.hosts[task]}" for task in tasks]


@pytest.mark.parametrize(
    ("places", "hosts"), [(0, (0, 0, 1)), (1, (0, 1, 0)), (2, (1, 0, 0)), (3, (0, 0, 1)), (25, (0, 1, 0))]
)
def test_each_rank_has_each_host_in_turn(places: int, hosts: tuple[int, ...]) -> None:
    launcher = RotatedLauncher(Launcher(), places)  # type: ignore[arg-type]
    reservation = launcher.reserve(Topology(WORKERS, ports=3))
    assert reservation.hosts == hosts
    assert [address.partition(":")[0] for address in reservation.addresses] == [f"host{host}" for host in hosts]
    started: Any = launcher.launch(reservation, [0, 1, 2], {})
    assert [text[-1] for text in started] == [str(host) for host in hosts]
    # One that is started again gets its own place.
    again: Any = launcher.launch(reservation, [1], {})
    assert again == [started[1]]
    reservation.release()
    assert reservation.whole.released == 1  # type: ignore[attr-defined]


def test_a_launcher_without_hosts_has_one() -> None:
    class Local(Launcher):
        def reserve(self, topology: Topology) -> Whole:
            reservation = Whole(topology)
            del reservation.hosts
            return reservation

    reservation = RotatedLauncher(Local(), 1).reserve(Topology(WORKERS, ports=3))  # type: ignore[arg-type]
    assert reservation.hosts == (0, 0, 0)


def test_servers_move_among_themselves() -> None:
    topology = Topology((Task("chief", 0),), WORKERS, ports=3)
    launcher = RotatedLauncher(Launcher(), 1)  # type: ignore[arg-type]
    reservation = launcher.reserve(topology)
    assert reservation.places == (0, 2, 3, 1)
    assert reservation.addresses == ("host1:2", "host1:3", "host0:1")


def test_a_process_with_several_addresses_keeps_them() -> None:
    reservation = RotatedLauncher(Launcher(), 1).reserve(Topology((Task("chief", 0),), ports=2))  # type: ignore[arg-type]
    assert reservation.addresses == ("host0:0", "host0:0")


@pytest.mark.parametrize("ports", [1, 3])
def test_ranks_stay_if_only_some_of_them_listen(ports: int) -> None:
    topology = Topology((Task("chief", 0), Task("worker", 0)), ports=ports)
    assert set(topology.listeners) == {0}
    reservation = RotatedLauncher(Launcher(), 1).reserve(topology)  # type: ignore[arg-type]
    assert reservation.places == (0, 1)
    assert reservation.addresses == ("host0:0",) * ports


def test_the_environment_of_a_cluster_says_how_far() -> None:
    launcher: Any = Launcher()
    environ = {ROTATION: "0", "A": "1"}
    assert rotated(launcher, environ) is launcher
    assert environ == {"A": "1"}
    assert rotated(launcher, environ) is launcher
    moved = rotated(launcher, {ROTATION: "2"})
    assert isinstance(moved, RotatedLauncher)
    assert moved.ended == "not yet"
