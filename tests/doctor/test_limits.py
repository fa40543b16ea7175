"""Descriptors, threads, memory and cores: right here, and named if a limit is set."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ddl.cluster import cgroups
from pytest_ddl.doctor import machine
from pytest_ddl.doctor.examination import Status, ok
from pytest_ddl.session import auto_num_workers
from pytest_ddl.strategies.registry import StrategyRegistry
from tests.doctor.child import findings

GIB = 2**30
_LIMIT = "import resource; resource.setrlimit(resource.{name}, ({number}, {number}))"
_NOBODY = "import os, pytest_ddl.commands.doctor; os.getuid() or (os.setgid(65534), os.setuid(65534))\n"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for control groups, in place of those of this process."""
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    monkeypatch.setattr(cgroups, "GROUPS", tmp_path / "groups")
    return tmp_path


def plant(root: Path, groups: str, **files: str) -> None:
    """Write files of control groups; ``__`` stands for the point in a name."""
    (root / "groups").write_text(groups)
    for name, text in files.items():
        path = root / name.replace("__", ".").replace("_of_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(("number", "status"), [(2048, "ok"), (400, "warning"), (30, "problem")])
def test_descriptors(number: int, status: str) -> None:
    (found,) = findings(_LIMIT.format(name="RLIMIT_NOFILE", number=number))["descriptors"]
    assert found["status"] == status
    assert f"{number} files" in found["found"]
    assert found["fix"] == ("" if status == "ok" else "raise nofile in limits.conf to 4096")


def test_few_descriptors_leave_no_probe_out() -> None:
    found = findings(_LIMIT.format(name="RLIMIT_NOFILE", number=12))
    assert found["descriptors"][0]["status"] == "problem"
    assert "no more files can be opened" in found["ports"][0]["found"]
    assert found.keys() >= {"loopback", "temporary-folder", "clock", "variables"}


@pytest.mark.parametrize(("number", "status"), [(50_000, "ok"), (600, "warning"), (60, "problem")])
def test_threads_of_a_user(number: int, status: str) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become a user who has no other threads")
    (found,) = findings(_NOBODY + _LIMIT.format(name="RLIMIT_NPROC", number=number))["processes"]
    assert found["status"] == status
    assert found["found"].startswith("this user may start ")
    assert found["fix"].startswith("" if status == "ok" else "ulimit -u unlimited")


def test_without_any_more_threads_the_limit_is_named() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become a user who has no other threads")
    found = findings(_NOBODY + _LIMIT.format(name="RLIMIT_NPROC", number=1))
    assert found["processes"][0]["found"].startswith("this user may start only 0 more threads")
    assert found["loopback"][0]["found"].startswith("the probe loopback could not be completed: can't start new thread")
    assert found["loopback"][0]["fix"] == "raise the number of threads: ulimit -u unlimited"
    assert found["variables"][0]["status"] == "ok"


def test_threads_of_a_container(groups: Path) -> None:
    plant(groups, "0::/a/b", a_of_pids__max="128", a_of_pids__current="28", a_of_b_of_pids__max="max")
    found = machine.processes()
    assert found.status is Status.PROBLEM
    assert found.found == "this container may start only 100 more threads, and two ranks need about 215"
    assert "--pids-limit" in found.fix


@pytest.mark.parametrize(("gib", "status"), [(64, "warning"), (3, "problem")])
def test_address_space(gib: int, status: str) -> None:
    (found,) = findings(_LIMIT.format(name="RLIMIT_AS", number=gib * GIB))["memory"]
    assert found["status"] == status
    assert found["found"].startswith(f"the address space of this process is limited to {gib}.0 GiB (ulimit -v)")
    assert found["fix"] == "try `ulimit -v unlimited -d unlimited`"


@pytest.mark.parametrize(
    ("mib", "status"), [(8000, Status.OK), (1000, Status.WARNING), (400, Status.PROBLEM)]
)  # fmt: skip
def test_memory_of_the_machine(
    mib: int, status: Status, groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {mib * 1024} kB\n")
    monkeypatch.setattr(machine, "PROC", tmp_path)
    found = machine.memory()
    assert found.status is status
    if status is not Status.OK:
        assert found.found.startswith(f"this machine has only {mib} MiB of free memory, and two ranks need about 730")


def test_memory_that_nothing_tells_is_a_warning(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PROC", groups)
    assert machine.memory().fix == "mount /proc"


def test_memory_of_a_container(groups: Path) -> None:
    plant(
        groups, "0::/a",
        a_of_memory__max=str(GIB), a_of_memory__current=str(GIB), a_of_memory__stat=f"anon 1\ninactive_file {GIB // 4}",
    )  # fmt: skip
    found = machine.memory()
    assert found.status is Status.PROBLEM
    assert found.found.startswith("the memory limit of this container leaves only 256 MiB of free memory")


def test_the_first_version_of_groups(groups: Path) -> None:
    plant(
        groups, "4:memory:/a\n3:cpu,cpuacct:/a",
        memory_of_a_of_memory__limit_in_bytes=str(GIB), memory_of_a_of_memory__usage_in_bytes=str(GIB // 2),
        memory_of_memory__limit_in_bytes=str(4 * GIB), memory_of_memory__usage_in_bytes=str(GIB),
        cpu_of_a_of_cpu__cfs_quota_us="150000", cpu_of_a_of_cpu__cfs_period_us="100000",
        cpu_of_cpu__cfs_quota_us="-1", cpu_of_cpu__cfs_period_us="100000",
    )  # fmt: skip
    assert cgroups.memory_left() == GIB // 2
    assert cgroups._quota() == 1.5


def test_a_container_that_sees_only_its_own_group(groups: Path) -> None:
    plant(groups, "0::/docker/1234", cpu__max="50000 100000", pids__max="max", pids__current="3")
    assert cgroups._quota() == 0.5
    assert cgroups.processes_left() is None
    found = machine.cores()
    assert found.status is Status.WARNING
    assert found.found.startswith("this process may use 0.5 of ")


def test_no_groups_are_no_limit(groups: Path) -> None:
    assert (cgroups._quota(), cgroups.memory_left(), cgroups.processes_left()) == (None, None, None)


def test_one_core_for_two_ranks_is_a_warning() -> None:
    (found,) = findings("import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})")["cores"]
    assert found["status"] == "warning"
    assert found["found"].startswith("this process may use 1 of ")
    assert "taskset" in found["fix"]


def test_clusters_and_xdist_count_the_cores_that_may_be_used(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    settings = {"strategy": "multi_worker_mirrored"}
    harness = SimpleNamespace(registry=StrategyRegistry(), settings=settings)
    assert auto_num_workers(harness) == 4  # type: ignore[arg-type]
    assert machine.cores() == ok("8 of 64 cores for 2 ranks")
    monkeypatch.setattr(cgroups, "_quota", lambda: 2.5)
    assert auto_num_workers(harness) == 1  # type: ignore[arg-type]
    assert machine.cores() == ok("2.5 of 64 cores for 2 ranks")
