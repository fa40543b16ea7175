"""Check which physical devices a process takes, on machines that do not exist."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.strategies.machine import make_logical_devices


class FakeConfig:
    """Stands for ``tf.config`` of a machine with so many GPUs."""

    def __init__(self, gpus: int) -> None:
        self.gpus = [f"physical {number}" for number in range(gpus)]
        self.visible: list[str] = []
        self.slices = 0
        self.LogicalDeviceConfiguration = SimpleNamespace

    def list_physical_devices(self, kind: str) -> list[str]:
        assert kind == "GPU"
        return self.gpus

    def set_visible_devices(self, devices: list[str], kind: str) -> None:
        self.visible = devices

    def set_logical_device_configuration(self, device: str, slices: list[Any]) -> None:
        assert [device] == self.visible
        self.slices = len(slices)


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
