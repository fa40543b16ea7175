"""Count what a session holds: processes, threads, ports, descriptors, shared memory, files and resident memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psutil

SAMPLES = 40
"""Number of samples of memory in a soak. A leak adds up over them, and a buffer that grows once does not."""


@dataclass(frozen=True)
class Counts:
    """Resources of this process and its descendants. All must be as before after the clusters have ended."""

    processes: int
    threads: int
    ports: int
    """TCP listeners and bound UDP sockets, which are leases."""
    descriptors: int
    shared_memory: int
    """Entries of ``/dev/shm``."""
    files: int
    """Entries below the folder of the session."""

    @classmethod
    def now(cls, folder: Path) -> Counts:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        return cls(
            processes=len(processes),
            threads=sum(process.num_threads() for process in processes),
            ports=sum(_ports(process) for process in processes),
            descriptors=sum(process.num_fds() for process in processes),
            shared_memory=len(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else 0,
            files=sum(1 for _ in folder.rglob("*")),
        )


def _ports(process: psutil.Process) -> int:
    connections = process.net_connections("inet")
    return sum(1 for one in connections if one.status == psutil.CONN_LISTEN or (one.status == "NONE" and one.laddr))


def resident(pid: int) -> int:
    """Return the bytes of memory that a process has written, whether or not it shares them with forked processes.

    The private part would grow by itself: a page becomes private when a forked process writes its copy.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("smaps_rollup has no line for anonymous memory")


@dataclass(frozen=True)
class Growth:
    """Growth of the memory of one process over a soak, judged by its own noise."""

    first: float
    """Bytes from the median of the first quarter of the samples to that of the second."""
    second: float
    """Bytes from the median of the third quarter to that of the fourth. Buffers and caches are full by then."""
    noise: float
    """Largest change between two neighboring samples of the second half. A single larger buffer changes no more than
    this. Of a leak, each quarter adds as many steps as it has samples."""

    @classmethod
    def of(cls, samples: Sequence[int]) -> Growth:
        size = len(samples) // 4
        assert size >= 2, "too few samples for four quarters"
        quarters = [median(samples[number * size : (number + 1) * size]) for number in range(4)]
        half = samples[2 * size :]
        steps = [abs(after - before) for before, after in itertools.pairwise(half)]
        return cls(quarters[1] - quarters[0], quarters[3] - quarters[2], max(steps))

    @property
    def leaks(self) -> bool:
        return self.second > self.noise


def table(before: Counts, after: Counts, memory: dict[str, Sequence[int]]) -> str:
    """Return the counts before and after, and the growth of memory, as text."""
    lines = [f"{'':<22}{'before':>12}{'after':>12}"]
    lines += [
        f"{name.replace('_', ' '):<22}{value:>12}{asdict(after)[name]:>12}" for name, value in asdict(before).items()
    ]
    for name, samples in memory.items():
        growth = Growth.of(samples)
        lines.append(f"{f'MB of the {name}':<22}{samples[0] / 1e6:>12.2f}{samples[-1] / 1e6:>12.2f}")
        halves = f"{growth.first / 1e3:.0f} kB in the first half, {growth.second / 1e3:.0f} kB in the second"
        lines.append(f"  growth: {halves}, noise {growth.noise / 1e3:.0f} kB")
    return "\n".join(lines)
