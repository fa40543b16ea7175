"""Read the limits of this process that a container or ``taskset`` sets: memory, cores and numbers of processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
GROUPS = Path("/proc/self/cgroup")


def memory_left() -> int | None:
    """Return the bytes that this process and its children may still use, or ``None`` without a limit."""
    return _least(
        [("memory", "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes")]
    )


def processes_left() -> int | None:
    """Return how many more threads and processes may be started, or ``None`` without a limit."""
    return _least([("pids", "pids.max", "pids.current")])


def usable_cores() -> float:
    """Return the number of cores that this process may use: those of its affinity, and at most its quota of time.

    ``os.cpu_count()`` counts all cores of the machine, also in a container that may use two of 64.
    """
    allowed = float(len(os.sched_getaffinity(0)))
    return min(allowed, _quota() or allowed)


def _quota() -> float | None:
    """Return the number of cores whose time this process may use, or ``None`` without a quota."""
    quotas = []
    for folder in _folders("cpu"):
        quota = _read(folder / "cpu.max").split() or [
            _read(folder / "cpu.cfs_quota_us"),
            _read(folder / "cpu.cfs_period_us"),
        ]
        # Without a quota, version 2 says "max" and version 1 says -1.
        if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal():
            quotas.append(int(quota[0]) / int(quota[1]))
    return min(quotas, default=None)


def _least(files: list[tuple[str, str, str]]) -> int | None:
    """Return what is left of a limit in the group that has the least left."""
    limits = []
    for controller, limit_name, used_name in files:
        for folder in _folders(controller):
            limit, used = _read(folder / limit_name), _read(folder / used_name)
            if limit.isdecimal() and used.isdecimal():
                limits.append(max(0, int(limit) - int(used) + _cache(folder)))
    return min(limits, default=None)


def _cache(folder: Path) -> int:
    """Return the bytes of a group's memory that hold files, and that the kernel frees if memory is needed."""
    lines = dict(line.partition(" ")[::2] for line in _read(folder / "memory.stat").splitlines())
    return int(lines.get("total_inactive_file", lines.get("inactive_file", "0")))


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folder of the group of this process and of all groups around it, for both versions of control groups.

    A container may see only its own group, at the root of the mount. Its path is then another one than
    ``/proc/self/cgroup`` says, so folders that do not exist are left out.
    """
    for line in _read(GROUPS).splitlines():
        _number, controllers, path = line.split(":", 2)
        if not controllers:
            roots = [MOUNT, MOUNT / "unified"]
        elif controller in controllers.split(","):
            roots = [MOUNT / controllers, MOUNT / controller]
        else:
            continue
        for root in roots:
            own = root / path.lstrip("/")
            for folder in (own, *own.parents):
                if folder.is_relative_to(root) and folder.is_dir():
                    yield folder


def _read(file: Path) -> str:
    """Return the text of a file, or an empty one if there is none: not every group has every controller."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
