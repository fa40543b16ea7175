"""Check which physical devices a process takes, on machines that do not exist."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.strategies.base import Machine
from pytest_ddl.strategies.machine import GPU_MEMORY, GpuShare, gpu_share, make_logical_devices


class FakeConfig:
    """Stands for ``tf.config`` of a machine with so many GPUs."""

    def __init__(self, gpus: int) -> None:
        self.gpus = [f"physical {number}" for number in range(gpus)]
        self.visible: list[str] = []
        self.slices = 0
        self.limits: list[int] = []
        self.LogicalDeviceConfiguration = SimpleNamespace

    def list_physical_devices(self, kind: str) -> list[str]:
        assert kind == "GPU"
        return self.gpus

    def set_visible_devices(self, devices: list[str], kind: str) -> None:
        self.visible = devices

    def set_logical_device_configuration(self, device: str, slices: list[Any]) -> None:
        assert device in self.visible
        self.slices = len(slices)
        self.limits += [one.memory_limit for one in slices]


@pytest.mark.parametrize(
    ("gpus", "count", "processes", "taken"),
    [
        (4, 1, 2, [[0], [1]]),
        (4, 2, 2, [[0, 1], [2, 3]]),
        (4, 2, 1, [[0, 1]]),
        # Not enough for all: all are equal. On a host of its own, a process sees only its own GPUs.
        (3, 2, 2, [[0, 1], [0, 1]]),
        (1, 1, 2, [[0], [0]]),
    ],
)
def test_each_process_takes_physical_gpus_of_its_own(
    gpus: int, count: int, processes: int, taken: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for process, numbers in enumerate(taken):
        config = FakeConfig(gpus)
        monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
        names = make_logical_devices("gpu", count, process=process, processes=processes)
        assert names == [f"GPU:{number}" for number in range(count)]
        assert config.visible == [f"physical {number}" for number in numbers]
        assert not config.slices


def test_too_few_gpus_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    config = FakeConfig(1)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    assert make_logical_devices("gpu", 3) == ["GPU:0", "GPU:1", "GPU:2"]
    assert (config.visible, config.slices) == (["physical 0"], 3)


@pytest.mark.parametrize(
    ("gpus", "count", "limits"), [(2, 1, [6000]), (2, 2, [6000, 6000]), (1, 2, [3000, 3000]), (1, 8, [1024] * 8)]
)
def test_a_process_that_shares_gpus_has_a_limit(
    gpus: int, count: int, limits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FakeConfig(gpus)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    monkeypatch.setenv(GPU_MEMORY, "6000")
    make_logical_devices("gpu", count)
    assert config.limits == limits


@pytest.mark.parametrize(
    ("gpus", "memory", "runners", "share"),
    [
        (1, 143_000, 8, GpuShare(6, 4468)),
        (1, 143_000, 1, GpuShare(55, 35_750)),
        # Each process of pytest has a GPU.
        (8, 80_000, 8, GpuShare(31, 20_000)),
        (2, 80_000, 4, GpuShare(15, 10_000)),
        # A small GPU, and one whose memory nobody knows.
        (1, 8_000, 8, GpuShare(1, 1024)),
        (1, 0, 1, GpuShare(5, 3750)),
    ],
)
def test_gpus_are_divided_between_processes_of_pytest(gpus: int, memory: int, runners: int, share: GpuShare) -> None:
    assert gpu_share(Machine(gpus=gpus, gpu_memory_mb=memory), runners) == share
    assert gpu_share(Machine(gpus=gpus, gpu_memory_mb=memory), runners, 9000.0) == share._replace(memory_mb=9000)
