"""Describe the machine and the devices on which a measurement runs, and measure how much other programs use it."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from pytest_ddl.cluster import session_folder
from pytest_ddl.json_records import JsonRecord

FOREIGN_CORES = 0.10
"""Share of the machine's cores that other processes may use on average while blocks run."""
FOREIGN_AT_LEAST = 0.35
"""Cores that other processes may use in any case. On two cores, an idle desktop already uses a tenth of them."""
_TICKS = os.sysconf("SC_CLK_TCK")
CALM = 0.5
"""1-minute load per usable core above which other programs are assumed to use the machine."""


def load_note() -> str:
    """Describe how busy this machine is with other work; return an empty text if it is calm.

    Call this before a measurement, because the measurement itself adds load.
    """
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return f"load {load:.1f} on {cores} cores" if load > CALM * cores else ""


def machine_facts() -> dict[str, str]:
    """Return ``host``, ``os``, ``cpu``, ``cores`` (usable ones), ``gpu`` and ``load`` (1-minute average) as text."""
    return {**_fixed(), "load": f"{os.getloadavg()[0]:.2f}"}


@cache
def host_identity() -> str:
    """Return the name of this host, with a part of its boot id (``random(4)``), which no other machine has.

    Containers of one machine have names of their own. Emulated hosts share both, because they are one machine.
    """
    return f"{platform.node()} {session_folder.kernel()[:8]}"


def machine_name(environ: Mapping[str, str]) -> str:
    """Return a name of what is measured here, under which results may be compared.

    Without a launcher for several hosts and without GPUs, it is the host's name. A runner with GPUs may be another host
    for each job, and so may those of an allocation. Then the name says what makes the results comparable: the GPUs, or
    the launcher with its settings and the slots of the hosts, and the processor.
    """
    launcher, hosts = (environ.get(f"PYTEST_DDL_{name}", "") for name in ("LAUNCHER", "HOSTS"))
    local = launcher in ("", "local")
    gpus = [name for name in _fixed()["gpu"].split(", ") if name]
    if local and not gpus:
        return platform.node()
    slots = [host.partition(":")[2] or "1" for host in hosts.split(",") if host and not local]
    what = [f"{len(gpus)} x {gpus[0]}"] if local else [launcher, f"hosts-{'+'.join(slots)}" if slots else ""]
    parts = [*what, _fixed()["cpu"], f"{_fixed()['cores']} cores"]
    return "-".join(filter(None, (re.sub(r"[^\w.+]+", "-", part).strip("-") for part in parts)))


@cache
def _fixed() -> dict[str, str]:
    return {
        "host": platform.node(),
        "os": f"{platform.system()} {platform.release()}",
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "gpu": ", ".join(_gpus()),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _gpus() -> list[str]:
    """Return the names of NVIDIA GPUs from the driver's files; empty if there is no driver."""
    gpus = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text(encoding="utf-8").splitlines()
        gpus += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")]
    return gpus


@dataclass(frozen=True)
class Load(JsonRecord):
    """Load of the machine between two readings."""

    DERIVED: ClassVar = ("problem",)

    seconds: float
    foreign_cores: float | None
    """Cores that processes other than the gate's kept busy on average, stolen time included; ``None`` if the
    system does not report it."""
    cores: int
    """Cores that the gate may use. Load on other cores does not matter."""
    load_average: float
    """Load average of the last minute, read before the launch started. Earlier launches of the gate count in it."""
    stalled: float | None = None
    """Share of the time in which some process waited for a core (PSI ``cpu some``), the gate's included."""
    foreign_gpu: tuple[str, ...] = ()
    """Compute processes that do not belong to the gate, on the GPUs of this machine."""

    @property
    def limit(self) -> float:
        """Cores that other processes may use."""
        return max(FOREIGN_AT_LEAST, FOREIGN_CORES * self.cores)

    @property
    def problem(self) -> str:
        """Reason why times that were measured during this load are not reliable; or an empty text."""
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
    """Counters of the system at one moment."""

    at: float
    busy: float | None
    """Seconds since the start of the machine in which the cores were busy, summed over the cores."""
    own: dict[int, float]
    """Process of the gate -> core seconds that it has used."""
    stalled: float | None
    cores: int

    @classmethod
    def take(cls, own: Collection[int], proc: Path = Path("/proc"), cores: Collection[int] | None = None) -> Reading:
        """Read the counters now.

        :param own: processes of the gate. All of them must live until the next reading.
        :param cores: cores to read. By default those that this process may use, and so the gate's other processes.
        """
        cores = os.sched_getaffinity(0) if cores is None else cores
        return cls(
            time.monotonic(),
            _busy(proc, cores),
            {pid: _used(proc, pid) for pid in (*own, os.getpid())},
            _stalled(proc),
            len(cores),
        )

    def until(self, later: Reading, load_average: float) -> Load:
        """Compute the load between this reading and a later one."""
        seconds = max(1e-9, later.at - self.at)
        foreign = None
        if self.busy is not None and later.busy is not None:
            own = sum(max(0.0, used - self.own.get(pid, 0.0)) for pid, used in later.own.items())
            foreign = max(0.0, later.busy - self.busy - own) / seconds
        stalled = None
        if self.stalled is not None and later.stalled is not None:
            stalled = (later.stalled - self.stalled) / seconds
        return Load(seconds, foreign, self.cores, load_average, stalled)


def foreign_gpu_processes(own: Collection[int]) -> tuple[str, ...]:
    """List compute processes of other programs on the GPUs of this process, through NVML.

    The list is empty if NVML is not installed. GPUs that ``CUDA_VISIBLE_DEVICES`` hides do not matter.
    """
    try:
        pynvml = import_module("pynvml")
    except ImportError:
        return ()
    processes = []
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            for name, handle in gpu_handles(pynvml, os.environ).items():
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    if process.pid not in own:
                        processes.append(f"process {process.pid} on GPU {name}")
        finally:
            pynvml.nvmlShutdown()
    return tuple(processes)


def _busy(proc: Path, cores: Collection[int]) -> float | None:
    """Return the seconds that these cores were busy, stolen time included, or ``None`` without ``/proc/stat``.

    The field ``user`` already includes guests (proc(5)). Interrupts are left out, because those of the gate's own
    traffic between workers are assigned to no process.
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
    """Return the core seconds that all threads of a process have used, or 0 if the process is gone."""
    try:
        # The name of the program is in parentheses and may contain any character.
        fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _stalled(proc: Path) -> float | None:
    """Return the seconds in which some process waited for a core, or ``None`` if the kernel was built without PSI."""
    try:
        line = (proc / "pressure" / "cpu").read_text(encoding="ascii").split("\n", 1)[0]
        return int(line.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None


def own_devices(kind: str) -> list[str]:
    """Return the short names of this process's logical devices of a kind, for example ``["GPU:0", "GPU:1"]``.

    In a cluster, ``tf.config.list_logical_devices`` also has the devices of all other tasks (TF 2.21). Their memory
    cannot be read here, and waiting for them raises an ``InternalError``.

    :param kind: ``CPU`` or ``GPU``.
    """
    import tensorflow as tf

    own = tf.DeviceSpec.from_string(tf.constant(0).device)
    specs = [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices(kind)]
    return [
        f"{device.device_type}:{device.device_index}"
        for device in specs
        # Without a cluster, the names have no job.
        if device.job is None or (device.job, device.task) == (own.job, own.task)
    ]


def gpu_handles(nvml: Any, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return NVML's handles of the GPUs that ``CUDA_VISIBLE_DEVICES`` allows, by their numbers or UUIDs.

    :raises pynvml.NVMLError: if NVML does not know one of them.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        names = [str(index) for index in range(nvml.nvmlDeviceGetCount())]
    else:
        names = [name.strip() for name in text.split(",") if name.strip() and name.strip() != "-1"]
    by_number, by_uuid = nvml.nvmlDeviceGetHandleByIndex, nvml.nvmlDeviceGetHandleByUUID
    return {name: by_number(int(name)) if name.isdigit() else by_uuid(name) for name in names}
