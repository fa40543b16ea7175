"""Cores of their own for replicas; the scheduler is asked through given functions."""

from __future__ import annotations

import os
import threading

import pytest

from pytest_ddl.bench.launching.pinning import cores_per_replica, pinned, thread_environ
from pytest_ddl.strategies.registry import StrategyRegistry


@pytest.fixture
def cores(monkeypatch):
    """A machine that may use cores 2, 3, 5, 8; what threads were given, in order."""
    given = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {8, 2, 5, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, chosen: given.append((thread, sorted(chosen))))
    return given


@pytest.mark.parametrize(("replicas", "each"), [(1, 4), (2, 2), (3, 1), (4, 1)])
def test_every_replica_gets_as_many_cores_as_the_largest_variant_leaves(cores, replicas, each):
    assert cores_per_replica(replicas) == each


def test_more_replicas_than_cores_are_refused_with_both_numbers(cores):
    with pytest.raises(ValueError, match=r"may use 4 core\(s\) and the largest variant has 5 replicas"):
        cores_per_replica(5)


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
    assert thread_environ(registry[spec.name], spec, cores) == {"TF_NUM_INTRAOP_THREADS": threads}
    assert thread_environ(registry[spec.name], spec, 0) == {}
