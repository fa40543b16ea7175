"""Energy counters, read from a made-up sysfs tree and a made-up NVML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.bench.launching.energy import EnergyMeter, EnergySource, NoEnergyError, Nvml, Rapl
from pytest_ddl.bench.launching.records import EnergyReading
from pytest_ddl.installing import install_line


class FakeNvml:
    """The part of ``pynvml`` that is called; counters, in mJ, are read one after the other."""

    class NVMLError(Exception):
        pass

    def __init__(self, *counters: list[int], broken: str = "", unsupported: bool = False) -> None:
        self.counters: list[Iterator[int]] = [iter(each) for each in counters]
        self.broken, self.unsupported = broken, unsupported
        self.opened: list[Any] = []
        self.ended = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise self.NVMLError(self.broken)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.ended += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.counters)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index >= len(self.counters):
            raise self.NVMLError("Invalid Argument")
        self.opened.append(index)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        self.opened.append(uuid)
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        if self.unsupported:
            raise self.NVMLError("Not Supported")
        return next(self.counters[handle])


def read(source: EnergySource, seconds: float = 10.0) -> EnergyReading:
    """Return the reading of a meter after a window of some seconds."""
    meter = EnergyMeter([source], clock=iter([100.0, 100.0 + seconds]).__next__)
    meter.start()
    return meter.stop()


class Counter:
    """A made-up counter of so many joules at each reading."""

    period, covers = 0.001, "made up"

    def __init__(self, *joules: float) -> None:
        self.joules, self.closed = iter(joules), 0

    def open(self) -> None:
        pass

    def read(self) -> list[float]:
        found = next(self.joules)
        if found < 0:
            raise NoEnergyError("it is gone")
        return [found]

    def used(self, before: list[float], after: list[float], _seconds: float) -> float:
        return after[0] - before[0]

    def close(self) -> None:
        self.closed += 1


def test_energy_of_parts_that_do_not_count_is_left_out() -> None:
    clock = iter([0.0, 9.0, 10.0, 15.0, 16.0, 16.0]).__next__
    meter = EnergyMeter([Counter(5.0, 905.0, 906.0, 950.0, 952.0, 952.0)], clock)
    meter.start()
    for counts in (False, True, False, True):
        meter.end_part(counts)
    assert meter.stop() == meter.stop() == EnergyReading(3.0, 2.0, "made up")


def test_counter_that_is_lost_between_parts_gives_the_reason_and_ends_no_run() -> None:
    source = Counter(5.0, -1.0)
    meter = EnergyMeter([source], iter([0.0, 1.0, 2.0, 3.0]).__next__)
    meter.start()
    meter.end_part()
    meter.end_part()
    assert meter.stop() == EnergyReading(None, 3.0, "made up", "it is gone")
    assert source.closed == 1


# -- NVML: a counter is read when it is opened, at the start, at the end -----------------------------


def test_energy_of_gpus_is_added_up() -> None:
    fake = FakeNvml([0, 1_000, 251_000], [5, 50_000, 150_000])
    assert read(Nvml(lambda: fake, {})) == EnergyReading(350.0, 10.0, "nvml: 2 GPUs")
    assert fake.ended == 1


@pytest.mark.parametrize(
    ("visible", "opened"), [("1", [1]), ("1,0", [1, 0]), ("GPU-8f6c", ["GPU-8f6c"]), ("0,-1", [0])]
)
def test_only_visible_gpus_are_read(visible: str, opened: list[Any]) -> None:
    fake = FakeNvml([0, 0, 1_000], [0, 0, 1_000])
    assert read(Nvml(lambda: fake, {"CUDA_VISIBLE_DEVICES": visible})).joules == len(opened)
    assert fake.opened == opened


def test_window_shorter_than_the_counters_period_is_refused() -> None:
    found = read(Nvml(lambda: FakeNvml([0, 0, 9_000]), {}), seconds=0.09)
    assert found.joules is None
    assert "0.090 s is shorter than the counter's update period (0.1 s)" in found.reason
    assert "seconds=1" in found.reason


def test_counter_that_went_backwards_is_refused() -> None:
    found = read(Nvml(lambda: FakeNvml([0, 9_000, 100]), {}))
    assert found.joules is None
    assert "went backwards" in found.reason


def missing_module() -> Any:
    raise ImportError("No module named 'pynvml'")


@pytest.mark.parametrize(
    ("load", "environ", "words"),
    [
        (missing_module, {}, install_line("bench")),
        (lambda: FakeNvml([0], broken="Driver Not Loaded"), {}, "NVML does not start: Driver Not Loaded"),
        (lambda: FakeNvml([0], unsupported=True), {}, "the GPU has no energy counter: Not Supported"),
        (lambda: FakeNvml(), {}, "no GPU"),
        (lambda: FakeNvml([0]), {"CUDA_VISIBLE_DEVICES": ""}, "no GPU"),
        (
            lambda: FakeNvml([0]),
            {"CUDA_VISIBLE_DEVICES": "3"},
            "NVML does not know a GPU of CUDA_VISIBLE_DEVICES: Invalid Argument",
        ),
    ],
)
def test_gpu_energy_that_is_absent_says_why(load: Any, environ: dict[str, str], words: str) -> None:
    found = read(Nvml(load, environ))
    assert found.joules is None
    assert words in found.reason


# -- RAPL ---------------------------------------------------------------------------------------------


def zone(folder: Path, name: str, domain: str, energy: int, largest: int = 262_143_328_850) -> Path:
    path = folder / name
    path.mkdir()
    (path / "name").write_text(f"{domain}\n")
    (path / "energy_uj").write_text(f"{energy}\n")
    (path / "max_energy_range_uj").write_text(f"{largest}\n")
    return path


def advance(path: Path, energy: int) -> None:
    (path / "energy_uj").write_text(f"{energy}\n")


def window(source: EnergySource, change: Any, seconds: float = 10.0) -> EnergyReading:
    meter = EnergyMeter([source], clock=iter([0.0, seconds]).__next__)
    meter.start()
    change()
    return meter.stop()


def test_packages_and_their_memory_are_counted_once(tmp_path: Path) -> None:
    counted = [
        zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000),
        zone(tmp_path, "intel-rapl:0:1", "dram", 2_000_000),
        zone(tmp_path, "intel-rapl:1", "package-1", 3_000_000),
    ]
    others = [
        zone(tmp_path, "intel-rapl:0:0", "core", 0),
        zone(tmp_path, "intel-rapl:2", "psys", 0),
        zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0),
        zone(tmp_path, "intel-rapl-mmio:0:0", "dram", 0),
    ]

    def change() -> None:
        for path, energy in zip(counted, (51_000_000, 12_000_000, 43_000_000), strict=True):
            advance(path, energy)
        for path in others:
            advance(path, 10**9)

    assert window(Rapl(tmp_path), change) == EnergyReading(100.0, 10.0, "rapl: 2 packages with memory")


def test_counter_that_starts_anew(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 262_143_000_000, 262_143_328_850)
    found = window(Rapl(tmp_path), lambda: advance(path, 1_000_000))
    assert found.joules == pytest.approx(1.32885)


def test_window_in_which_it_may_start_anew_twice_is_refused(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 0, 65_532_610_987)
    found = window(Rapl(tmp_path), lambda: advance(path, 1_000_000), seconds=70.0)
    assert found.joules is None
    assert "may have restarted more than once; measure 66 s at most" in found.reason


def test_window_shorter_than_the_period_is_refused(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    found = window(Rapl(tmp_path), lambda: advance(path, 1_000), seconds=0.0005)
    assert found.joules is None
    assert "update period" in found.reason


def test_counter_that_only_root_may_read(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 0)

    def as_a_user(file: Path) -> str:
        if file.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return file.read_text()

    found = read(Rapl(tmp_path, as_a_user))
    assert found.joules is None
    assert found.reason.startswith(f"no permission to read {path / 'energy_uj'} (only for root")


def test_counter_that_cannot_be_read(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    (path / "energy_uj").write_text("no number")
    assert "cannot be read" in read(Rapl(tmp_path)).reason


def test_no_rapl(tmp_path: Path) -> None:
    found = read(Rapl(tmp_path / "powercap"))
    assert found.joules is None
    assert found.reason.startswith("no RAPL")


# -- the meter ----------------------------------------------------------------------------------------


def test_first_source_that_opens_is_read(tmp_path: Path) -> None:
    fake = FakeNvml([0, 0, 4_000])
    meter = EnergyMeter([Rapl(tmp_path), Nvml(lambda: fake, {})], clock=iter([0.0, 2.0]).__next__)
    meter.start()
    assert meter.stop() == EnergyReading(4.0, 2.0, "nvml: 1 GPU")


def test_all_reasons_are_reported(tmp_path: Path) -> None:
    meter = EnergyMeter([Rapl(tmp_path), Nvml(missing_module, {})])
    meter.start()
    reason = meter.stop().reason
    assert "no RAPL" in reason
    assert "nvidia-ml-py" in reason


def test_second_stop_tells_the_same() -> None:
    meter = EnergyMeter([Nvml(lambda: FakeNvml([0, 0, 4_000]), {})], clock=iter([0.0, 2.0]).__next__)
    meter.start()
    assert meter.stop() is meter.stop()


def test_meter_of_this_machine_gives_a_number_or_a_reason() -> None:
    meter = EnergyMeter()
    meter.start()
    found = meter.stop()
    assert found.joules is not None or found.reason
