"""Start thousands of clusters and send a hundred thousand requests: what the session holds is as before.

``pytest tests -m soak -s`` prints the counts. ``DDL_SOAK_CLUSTERS`` and ``DDL_SOAK_REQUESTS`` set the numbers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.local_launcher import LocalLauncher
from pytest_ddl.cluster.protocol import RequestKind
from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.harness import Harness
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.launchers import built_in_launchers
from pytest_ddl.strategies.registry import StrategyRegistry
from tests.polling import wait_until
from tests.soak.counting import SAMPLES, Counts, Growth, resident, table

pytestmark = pytest.mark.soak

CLUSTERS = int(os.environ.get("DDL_SOAK_CLUSTERS", 10_000))
REQUESTS = int(os.environ.get("DDL_SOAK_REQUESTS", 100_000))
VARIANTS = ("one_device", "multi_worker_mirrored", "parameter_server")
"""Variants without ports, with a port for each rank, and with servers in the process of the rank."""
WARM_UP = 6
"""Clusters before the first count. They fill caches of Python and of the zygote."""
PER_LEASE = 100
"""Requests before the cluster is given back and leased again."""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    settings = resolve_without_pytest()
    one = Harness(settings, StrategyRegistry(), built_in_launchers(settings), folder=tmp_path)
    yield one
    one.close()


def zygote(harness: Harness) -> int:
    launcher = harness.pool.launcher
    assert isinstance(launcher, LocalLauncher)
    assert launcher._process is not None
    return launcher._process.pid


def call(harness: Harness, variant: str, count: int, *, fresh: bool) -> None:
    """Send requests to a cluster."""
    spec = harness.registry.parse_variant(variant)
    with harness.cluster(spec, DdlMark(device="cpu"), fresh=fresh) as cluster:
        for number in range(count):
            answers = cluster.ask(RequestKind.CALL, ship.pack(abs, (-number,)), deadline=time.monotonic() + 60)
            assert [ship.unpack(answer.body) for answer in answers] == [number] * cluster.num_ranks


def soak(harness: Harness, folder: Path, count: int, step: Callable[[int], None]) -> None:
    """Take a step many times. Compare what the session holds before and after, and judge the growth of memory."""
    for number in range(WARM_UP):
        step(number)
    harness.pool.launcher.poll()
    memory: dict[str, list[int]] = {"pytest process": [], "zygote": []}
    pids = {"pytest process": os.getpid(), "zygote": zygote(harness)}
    before, started = Counts.now(folder), time.monotonic()
    for number in range(count):
        step(number)
        if (number + 1) * SAMPLES // count > len(memory["zygote"]):
            for name, pid in pids.items():
                memory[name].append(resident(pid))
    seconds = time.monotonic() - started
    after = _settled(folder, before)
    print(f"\n{count} steps in {seconds:.0f} s: {count / seconds:.1f} each second")
    print(table(before, after, memory))
    assert pids["zygote"] == zygote(harness), "the zygote was replaced"
    assert after == before
    assert [name for name, samples in memory.items() if _leaks(samples)] == []


def _leaks(samples: Sequence[int]) -> bool:
    return Growth.of(samples).leaks


def _settled(folder: Path, before: Counts) -> Counts:
    """Return the counts once they equal those of before, or after some seconds: the kernel frees some things later."""
    try:
        return wait_until(lambda: before if Counts.now(folder) == before else None, seconds=10)
    except AssertionError:
        return Counts.now(folder)


def test_fresh_clusters(harness: Harness, tmp_path: Path) -> None:
    soak(harness, tmp_path, CLUSTERS, lambda number: call(harness, VARIANTS[number % len(VARIANTS)], 1, fresh=True))


def test_warm_requests(harness: Harness, tmp_path: Path) -> None:
    soak(harness, tmp_path, REQUESTS // PER_LEASE, lambda _number: call(harness, "one_device", PER_LEASE, fresh=False))
