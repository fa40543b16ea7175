"""Measurements on clusters: starting one, what a rank weighs, the verdict on a failing rank, what is left behind."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddl.cluster.explain import RankError
from pytest_ddl.cluster.handle import ClusterHandle
from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.harness import Harness, process_harness
from pytest_ddl.hosts.transports.registry import built_in_transports
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.strategies.registry import StrategyRegistry

TIMEOUT = 60.0
"""Seconds after which a cluster counts as hung."""
_LISTEN = "0A"


def warm_harness() -> Harness:
    """The harness of this process with TensorFlow imported in its zygote: what every test after the first finds."""
    harness = process_harness()
    with lease(harness, "one_device"):
        return harness


def harness_over(launcher: str) -> Harness:
    """A harness whose ranks run on the hosts of a launcher."""
    settings = resolve_without_pytest({"PYTEST_DDL_LAUNCHER": launcher})
    return Harness(settings, StrategyRegistry(), {}, transports=built_in_transports())


@contextmanager
def lease(harness: Harness, variant: str) -> Iterator[ClusterHandle]:
    """A fresh cluster of a variant. If it has several ranks, a first all-reduce has connected them."""
    spec = harness.registry.parse_variant(variant)
    with harness.cluster(spec, DdlMark(timeout=TIMEOUT), fresh=True) as cluster:
        yield ClusterHandle(cluster, time.monotonic() + TIMEOUT)


def start_seconds(harness: Harness, variant: str) -> tuple[float, float]:
    """Seconds until all ranks have done their first all-reduce, and until the cluster has ended as well."""
    started = time.monotonic()
    with lease(harness, variant) as cluster:
        ready = time.monotonic()
        assert cluster.num_replicas >= 1
    return ready - started, time.monotonic() - started


# ----- memory -----


@dataclass(frozen=True)
class Memory:
    """Megabytes of one rank; the zygote's pages are shared by it and all that were forked from it."""

    proportional: float
    """Memory of its own pages, and its share of the shared pages."""
    private: float
    """Only its own pages: the cost of one more rank."""


def memory(harness: Harness, variant: str) -> list[Memory]:
    """The memory of each rank of a fresh cluster, before a test has made any tensor in it."""
    with lease(harness, variant) as cluster:
        return [_memory(pid) for pid in cluster.run(os.getpid)]


def _memory(pid: int) -> Memory:
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size = line.split()[:2]
        sizes[name.rstrip(":")] = int(size) * 1024 / 1e6
    return Memory(sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"])


# ----- a failing rank -----


def _fail_beside_a_collective(fails: int) -> None:
    """One rank raises while the others sit in an all-reduce that can never end."""
    import tensorflow as tf

    from pytest_ddl.cluster.worker import current_rank

    rank = current_rank()
    assert rank is not None
    if rank.rank == fails:
        # Long enough for the others to be inside; the moment of failing travels in the message.
        time.sleep(0.5)
        raise RuntimeError(f"failed at {time.monotonic()!r}")

    def reduce() -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))

    rank.strategy.run(reduce)


def verdict_seconds(harness: Harness, variant: str = "multi_worker_mirrored") -> tuple[float, float]:
    """Seconds from the exception on one rank to the verdict, and until the cluster has ended as well."""
    with lease(harness, variant) as cluster:
        try:
            cluster.run(_fail_beside_a_collective, 1)
        except RankError as error:
            known = time.monotonic()
            failed = float(error.answers[1].failure.message.rpartition(" ")[2])
        else:
            raise AssertionError("the failing rank went unnoticed")
    return known - failed, time.monotonic() - failed


# ----- what is left behind -----


@dataclass(frozen=True)
class Traces:
    """Resources that a session holds. Each number must return to its old value after the clusters have ended."""

    processes: int
    """The zygote and all processes forked from it, also those that have another parent by now."""
    threads: int
    """Threads of this process and of those."""
    files: int
    """Open file descriptors of this process and of those."""
    ports: int
    """TCP listeners and bound UDP sockets of this process and of those."""
    temporary: int
    """Entries in the folder for temporary files."""


def traces(harness: Harness) -> Traces:
    forked = _forked(harness)
    pids = [os.getpid(), *forked]
    return Traces(
        processes=len(forked),
        threads=sum(len(_entries(f"/proc/{pid}/task")) for pid in pids),
        files=sum(len(_entries(f"/proc/{pid}/fd")) for pid in pids),
        ports=len(_open_ports() & {target for pid in pids for target in _sockets(pid)}),
        temporary=sum(1 for _ in Path(tempfile.gettempdir()).rglob("*")),
    )


def settled(harness: Harness, before: Traces, patience: float = 5.0) -> Traces:
    """The traces once they equal those of before, or after some seconds: the kernel frees some things later."""
    deadline = time.monotonic() + patience
    while (now := traces(harness)) != before and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


def _forked(harness: Harness) -> list[int]:
    """Workers keep the command line of their zygote, which has this session's own address in it."""
    address = harness.pool.launcher.address.encode()
    found = []
    for pid in _entries("/proc"):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes() if pid.isdigit() else b""
        except OSError:
            continue
        if address in arguments.split(b"\0"):
            found.append(int(pid))
    return found


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _sockets(pid: int) -> Iterator[str]:
    """The inodes of the sockets that a process holds."""
    for fd in _entries(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target.removeprefix("socket:[").removesuffix("]")


def _open_ports() -> set[str]:
    """The inodes of all sockets of the machine that occupy a port."""
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = Path(f"/proc/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if table.startswith("udp") or fields[3] == _LISTEN:
                found.add(fields[9])
    return found


def machine() -> dict[str, Any]:
    """Return the machine and the versions of packages with which the figures were measured."""
    import importlib.metadata
    import platform

    versions = {}
    for name in ("pytest", "pytest-ddl", "tensorflow", "tensorflow-cpu", "keras"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "host_kind": f"{platform.system()} {platform.machine()}",
        **versions,
    }
