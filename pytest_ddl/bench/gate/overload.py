"""How much others use the machine while the gate measures: wall clock on a busy machine proves nothing."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

FOREIGN_CORES = 0.10
"""Share of the machine's cores that others may use on average while blocks run."""
FOREIGN_AT_LEAST = 0.35
"""Cores that others may use in any case: on a machine of two cores, a tenth of them is what a desktop idles at."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """What happened on the machine between two readings."""

    seconds: float
    foreign_cores: float | None
    """Cores that processes other than the gate's kept busy on average, stolen time included; ``None`` where
    the system does not tell."""
    cores: int
    """That the gate may use; what happens on others is nothing to it."""
    load_average: float
    """Of the last minute, read before anything was started; the gate's own earlier launches count in it."""
    stalled: float | None = None
    """Share of the time in which some process waited for a core (PSI ``cpu some``), the gate's included."""
    foreign_gpu: tuple[str, ...] = ()
    """Compute processes of others on the GPUs of this machine."""

    @property
    def limit(self) -> float:
        """Cores that others may use."""
        return max(FOREIGN_AT_LEAST, FOREIGN_CORES * self.cores)

    @property
    def problem(self) -> str:
        """Why a time measured meanwhile is not to be trusted; empty where it is."""
        if self.foreign_gpu:
            return f"other processes compute on the GPU: {', '.join(self.foreign_gpu)}"
        if self.foreign_cores is not None and self.foreign_cores > self.limit:
            return (
                f"other processes kept {self.foreign_cores:.1f} of {self.cores} cores busy "
                f"(up to {self.limit:.2f} is accepted; load average {self.load_average:.1f})"
            )
        return ""


@dataclass(frozen=True)
class Reading:
    """The counters of the system at one moment."""

    at: float
    busy: float | None
    """Seconds that the cores together were busy, since the machine was started."""
    own: dict[int, float]
    """Process -> seconds of a core that it has used."""
    stalled: float | None
    cores: int

    @classmethod
    def take(cls, own: Collection[int], proc: Path = Path("/proc"), cores: Collection[int] | None = None) -> Reading:
        """Read them now.

        :param own: the processes of the gate, all of which live until the next reading.
        :param cores: by default those that this process, and so the gate's other ones, may use.
        """
        cores = usable_cores() if cores is None else cores
        return cls(
            time.monotonic(),
            _busy(proc, cores),
            {pid: _used(proc, pid) for pid in (*own, os.getpid())},
            _stalled(proc),
            len(cores),
        )

    def until(self, later: Reading, load_average: float) -> Load:
        """What happened between this reading and a later one."""
        seconds = max(1e-9, later.at - self.at)
        foreign = None
        if self.busy is not None and later.busy is not None:
            own = sum(max(0.0, used - self.own.get(pid, 0.0)) for pid, used in later.own.items())
            foreign = max(0.0, later.busy - self.busy - own) / seconds
        stalled = None
        if self.stalled is not None and later.stalled is not None:
            stalled = (later.stalled - self.stalled) / seconds
        return Load(seconds, foreign, self.cores, load_average, stalled)


def usable_cores() -> frozenset[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def foreign_gpu_processes(own: Collection[int]) -> tuple[str, ...]:
    """Compute processes of others on NVIDIA GPUs, through NVML; empty where it is not there."""
    try:
        pynvml = import_module("pynvml")
    except ImportError:
        return ()
    found = []
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    if process.pid not in own:
                        found.append(f"process {process.pid} on GPU {index}")
        finally:
            pynvml.nvmlShutdown()
    return tuple(found)


def _busy(proc: Path, cores: Collection[int]) -> float | None:
    """Seconds that these cores were busy, stolen time included; guests are in ``user`` already (proc(5)).

    Interrupts are left out: those of the gate's own traffic between workers are accounted to no process.
    """
    try:
        lines = (proc / "stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    wanted = {f"cpu{core}" for core in cores}
    ticks = 0
    for name, *fields in map(str.split, filter(None, lines)):
        if name in wanted:
            user, nice, system, _idle, _iowait, _irq, _softirq, steal = (int(field) for field in fields[:8])
            ticks += user + nice + system + steal
    return ticks / _TICKS


def _used(proc: Path, pid: int) -> float:
    """Seconds of a core that a process has used, all its threads together; 0 where it is gone."""
    try:
        # The name of the program is in parentheses and may hold anything.
        fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _stalled(proc: Path) -> float | None:
    """Seconds in which some process waited for a core: PSI, of kernels that were built with it."""
    try:
        line = (proc / "pressure" / "cpu").read_text(encoding="ascii").split("\n", 1)[0]
        return int(line.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None
