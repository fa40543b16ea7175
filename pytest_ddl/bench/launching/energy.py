"""Read the energy that a machine uses during steady steps: NVML's counters for GPUs, RAPL's for processors."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from pytest_ddl.bench.launching.machine import gpu_handles, own_devices
from pytest_ddl.bench.launching.records import EnergyReading
from pytest_ddl.installing import install_line

NVML_PERIOD = 0.1
"""Maximum seconds between two updates of a GPU's counter: 20 to 100 ms (PETSc's manual, ``-log_view_gpu_energy``)."""
RAPL_PERIOD = 0.001
"""Seconds between two updates of a package's counter: about 1 ms (Intel SDM volume 3B, RAPL)."""
MOST_WATTS = 1000.0
"""Power that no package exceeds. If a window is longer than a counter's range at this power, the counter may have
wrapped around twice, which cannot be detected."""
POWERCAP = Path("/sys/class/powercap")


class NoEnergyError(RuntimeError):
    """Error if a source of energy cannot be read here; the message says why and what to do."""


class EnergySource(Protocol):
    """Protocol for a source of energy: a set of counters."""

    period: float
    """Seconds between two updates; a window must be at least this long."""
    covers: str
    """Name of the source and what it covers, for example ``nvml: 2 GPUs``; complete after :meth:`open`."""

    def open(self) -> None:
        """Prepare to read.

        :raises NoEnergyError: if nothing can be read.
        """

    def read(self) -> list[float]:
        """Return the joules of each counter since a fixed moment in the past.

        :raises NoEnergyError: if a counter cannot be read.
        """

    def used(self, before: list[float], after: list[float], seconds: float) -> float:
        """Return the joules between two readings.

        :raises NoEnergyError: if the readings do not determine them.
        """

    def close(self) -> None:
        """Release what :meth:`open` acquired."""


class Nvml:
    """Energy of NVIDIA GPUs, from Volta on: ``nvmlDeviceGetTotalEnergyConsumption``, mJ since the driver was loaded.

    A counter of energy misses nothing, unlike samples of power: ``nvidia-smi`` samples a quarter of the time on A100
    and H100 (arXiv 2312.02741). The counter covers the whole board, including its use by other programs.

    :param load: returns the module ``pynvml`` (package nvidia-ml-py).
    :param environ: environment with ``CUDA_VISIBLE_DEVICES``. If GPUs are of different models, its numbers are those of
        NVML only with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
    """

    period = NVML_PERIOD
    covers = "nvml"

    def __init__(
        self, load: Callable[[], Any] = lambda: import_module("pynvml"), environ: Mapping[str, str] = os.environ
    ) -> None:
        self._load, self._environ = load, environ
        self._nvml: Any = None
        self._handles: list[Any] = []

    def open(self) -> None:
        try:
            nvml = self._load()
        except ImportError:
            raise NoEnergyError(f"a GPU's energy is read with nvidia-ml-py: {install_line('bench')}") from None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise NoEnergyError(f"NVML does not start: {error} (is the NVIDIA driver loaded?)") from None
        self._nvml = nvml
        try:
            self._handles = list(gpu_handles(nvml, self._environ).values())
            if not self._handles:
                raise NoEnergyError("no GPU: NVML lists no GPU that CUDA_VISIBLE_DEVICES allows")
            self.read()
        except nvml.NVMLError as error:
            self.close()
            raise NoEnergyError(f"NVML does not know a GPU of CUDA_VISIBLE_DEVICES: {error}") from None
        except NoEnergyError:
            self.close()
            raise
        self.covers = f"nvml: {len(self._handles)} GPU{'s' if len(self._handles) > 1 else ''}"

    def read(self) -> list[float]:
        try:
            return [self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3 for handle in self._handles]
        except self._nvml.NVMLError as error:
            raise NoEnergyError(f"the GPU has no energy counter: {error} (Volta and later GPUs have one)") from None

    def used(self, before: list[float], after: list[float], seconds: float) -> float:
        if any(end < start for start, end in zip(before, after, strict=True)):
            raise NoEnergyError("a GPU's energy counter went backwards: its driver was reloaded")
        return sum(after) - sum(before)

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


class Rapl:
    """Energy of processor packages and their memory: ``energy_uj`` of Linux's powercap, in µJ.

    The counter wraps around after ``max_energy_range_uj`` (Documentation/power/powercap/powercap.rst). The zones
    ``package-N`` and their ``dram`` are counted. ``core`` and ``uncore`` are parts of the package, and ``psys``
    contains the packages, so they would be counted twice.

    :param folder: folder of the zones.
    :param read: reads one of its files.
    """

    period = RAPL_PERIOD
    covers = "rapl"

    def __init__(self, folder: Path = POWERCAP, read: Callable[[Path], str] = Path.read_text) -> None:
        self._folder, self._read = folder, read
        self._zones: list[Path] = []
        self._ranges: list[float] = []

    def open(self) -> None:
        # intel-rapl comes first, because intel-rapl-mmio has the same packages again.
        paths = sorted(self._folder.glob("intel-rapl*:*"), key=lambda path: ("mmio" in path.name, path.name))
        named = {path: self._read(path / "name").strip() for path in paths}
        packages: dict[str, Path] = {}
        for path, name in named.items():
            if name.startswith("package"):
                packages.setdefault(name, path)
        if not packages:
            raise NoEnergyError(
                f"no RAPL: {self._folder}/intel-rapl* has no package (a virtual machine, a container without /sys, "
                "or a processor without it)"
            )
        parents = {path.name for path in packages.values()}
        memories = [path for path, name in named.items() if name == "dram" and path.name.rpartition(":")[0] in parents]
        self._zones = [*packages.values(), *memories]
        self._ranges = [self._joules(zone / "max_energy_range_uj") for zone in self._zones]
        self.read()
        count = len(packages)
        self.covers = f"rapl: {count} package{'s' if count > 1 else ''}{' with memory' if memories else ''}"

    def read(self) -> list[float]:
        return [self._joules(zone / "energy_uj") for zone in self._zones]

    def _joules(self, path: Path) -> float:
        try:
            return float(self._read(path)) / 1e6
        except PermissionError:
            raise NoEnergyError(
                f"no permission to read {path} (only for root since CVE-2020-8694): measure as root, or ask an "
                "administrator to allow it on this machine"
            ) from None
        except (OSError, ValueError) as error:
            raise NoEnergyError(f"{path} cannot be read: {error}") from None

    def used(self, before: list[float], after: list[float], seconds: float) -> float:
        total = 0.0
        for start, end, largest in zip(before, after, self._ranges, strict=True):
            if seconds * MOST_WATTS > largest:
                raise NoEnergyError(
                    f"a window of {seconds:.0f} s: a counter of {largest:.0f} J may have restarted more than once; "
                    f"measure {largest / MOST_WATTS:.0f} s at most"
                )
            total += end - start if end >= start else end - start + largest
        return total

    def close(self) -> None:
        """Do nothing: no file is open between two readings."""


class EnergyMeter:
    """Meter that reads energy counters at the start of a window, between its parts and at its end.

    :param sources: tried in order; the first one that opens is read. By default, this is NVML if TensorFlow of this
        process has a GPU, else RAPL. They are never added, because the sum would depend on read permissions.
    :param clock: returns seconds.
    """

    def __init__(
        self, sources: list[EnergySource] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._sources, self._clock = sources, clock
        self._source: EnergySource | None = None
        self._reasons: list[str] = []
        self._before: list[float] = []
        self._since = self._seconds = self._joules = 0.0
        self._problem = ""
        self._reading: EnergyReading | None = None

    def start(self) -> None:
        """Begin the window."""
        for source in self._sources if self._sources is not None else default_sources():
            try:
                source.open()
            except NoEnergyError as error:
                self._reasons.append(str(error))
                continue
            self._source, self._before = source, source.read()
            break
        self._since = self._clock()

    def end_part(self, counts: bool = True) -> None:
        """End a part of the window and begin the next one.

        :param counts: True to include the seconds and the energy of the ended part.
        """
        now = self._clock()
        seconds, self._since = now - self._since, now
        self._seconds += seconds if counts else 0.0
        if self._source is None or self._problem:
            return
        try:
            before, self._before = self._before, self._source.read()
            self._joules += self._source.used(before, self._before, seconds) if counts else 0.0
        except NoEnergyError as error:
            self._problem = str(error)

    def stop(self) -> EnergyReading:
        """End the window with its last part, which counts, and return the reading; a second call returns the same one.

        If the window is shorter than the counter's update period, the reading has a reason and no number.
        """
        if self._reading is None:
            self._reading = self._read()
        return self._reading

    def _read(self) -> EnergyReading:
        self.end_part()
        source, seconds = self._source, self._seconds
        if source is None:
            return EnergyReading(None, seconds, reason="; ".join(self._reasons) or "the meter was not started")
        source.close()
        if not self._problem and seconds < source.period:
            self._problem = (
                f"a window of {seconds:.3f} s is shorter than the counter's update period "
                f"({source.period} s): measure longer, seconds={10 * source.period:g} or more"
            )
        return EnergyReading(None if self._problem else self._joules, seconds, source.covers, self._problem)


def default_sources() -> list[EnergySource]:
    """Return the sources for the energy of this process."""
    # If only the CPU is measured, the energy of an idle GPU does not belong to it.
    return [Nvml()] if "tensorflow" in sys.modules and own_devices("GPU") else [Rapl()]
