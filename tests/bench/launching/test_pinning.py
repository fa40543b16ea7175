"""Cores of their own for replicas; the scheduler is asked through given functions."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from pytest_ddl.bench.launching.pinning import cores_per_replica, first_replica, pinned, pinned_environ
from pytest_ddl.cluster.launcher import PLACE
from pytest_ddl.strategies.registry import StrategyRegistry


@pytest.fixture
def cores(monkeypatch):
    """A machine that may use cores 2, 3, 5, 8; what threads were given, in order."""
    given = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {8, 2, 5, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, chosen: given.append((thread, sorted(chosen))))
    return given


def share(variant, crowds=None, replicas=0):
    """Cores of a replica of a variant. Over hosts, ``crowds`` gives the ranks and cores of each machine."""
    registry = StrategyRegistry()
    pool = SimpleNamespace(launcher=SimpleNamespace(crowds=crowds))
    harness = SimpleNamespace(registry=registry, over_hosts=crowds is not None, pool=pool)
    return cores_per_replica(harness, registry.parse_variant(variant), replicas)


@pytest.mark.parametrize(
    ("variant", "each"),
    [
        ("one_device", 4),
        ("mirrored[replicas=2]", 2),
        ("mirrored[replicas=3]", 1),
        ("multi_worker_mirrored[workers=2,replicas=2]", 1),
    ],
)
def test_every_replica_gets_as_many_cores_as_the_others_leave(cores, variant, each):
    assert share(variant) == each


def test_more_replicas_than_cores_are_refused_with_both_numbers(cores):
    with pytest.raises(ValueError, match=r"this process may use 4 core\(s\) for 5 replicas of mirrored"):
        share("mirrored[replicas=5]")


def test_cores_of_the_hosts_are_shared_and_not_those_of_this_machine(cores):
    variant = "multi_worker_mirrored[workers=6]"
    # Six replicas are more than the four cores here.
    assert share(variant, lambda _topology: {"a": (3, 64), "b": (3, 16)}) == 5
    with pytest.raises(ValueError, match=r"b may use 2 core\(s\) for 3 replicas of multi_worker_mirrored"):
        share(variant, lambda _topology: {"a": (3, 64), "b": (3, 2)})


def test_the_hosts_that_a_variant_asks_for_are_asked_about(cores):
    asked = []

    def crowds(topology):
        asked.append(topology.hosts)
        return {"a": (4, 8)}

    assert share("multi_worker_mirrored[workers=4,hosts=1]", crowds) == 2
    assert asked == [1]


def test_workers_of_a_parameter_server_are_in_one_process(cores):
    servers = "parameter_server[workers=4,ps=1,processes=shared]"
    assert share(servers) == 4
    assert share(servers, replicas=4) == 1
    with pytest.raises(ValueError, match=r"may use 4 core\(s\) for 5 replicas"):
        share(servers, replicas=5)


def test_ranks_are_counted_on_their_machine(monkeypatch):
    assert first_replica(3, 2) == 6
    # On one machine it stays empty.
    for place, first in (("", 6), ("1", 2)):
        monkeypatch.setenv(PLACE, place)
        assert first_replica(3, 2) == first


@pytest.mark.parametrize(
    ("first", "replicas", "each", "expected"),
    # The last one shares its core with the second: emulated hosts have the same cores.
    [(0, 1, 2, [2, 3]), (1, 1, 2, [5, 8]), (0, 2, 2, [2, 3, 5, 8]), (3, 1, 1, [8]), (5, 1, 1, [3])],
)
def test_a_rank_gets_the_cores_of_its_replicas_and_gives_them_back(cores, first, replicas, each, expected):
    with pinned(first, replicas, each):
        inside = list(cores)
    assert {tuple(chosen) for _thread, chosen in inside} == {tuple(expected)}
    assert {tuple(chosen) for _thread, chosen in cores[len(inside) :]} == {(2, 3, 5, 8)}


def test_every_thread_is_kept(cores):
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with pinned(0, 1, 1):
            threads = {thread for thread, _chosen in cores}
    finally:
        done.set()
        other.join()
    assert {threading.get_native_id(), other.native_id} <= threads


def test_no_cores_leave_everything_as_it_is(cores):
    with pinned(0, 1, 0):
        pass
    assert cores == []


def test_cores_are_given_back_after_an_error(cores):
    with pytest.raises(ArithmeticError), pinned(0, 1, 1):
        raise ArithmeticError
    assert cores[-1][1] == [2, 3, 5, 8]


@pytest.mark.parametrize(
    ("variant", "cores", "threads"),
    [("one_device", 1, "1"), ("mirrored[replicas=2]", 2, "4"), ("multi_worker_mirrored[workers=2]", 3, "3")],
)
def test_a_process_has_as_many_computing_threads_as_its_replicas_have_cores(variant, cores, threads):
    registry = StrategyRegistry()
    spec = registry.parse_variant(variant)
    assert pinned_environ(registry[spec.name], spec, cores) == {"TF_NUM_INTRAOP_THREADS": threads, PLACE: ""}
    assert pinned_environ(registry[spec.name], spec, 0) == {}
