"""Measurements on a GPU, on records: the harness's figures with their targets, and the power of the gate."""

from __future__ import annotations

import math
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.bench.launching.records import BenchSpec, Counters

FOLDER = Path(__file__).parents[2] / "asv_bench"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = util.spec_from_file_location(f"script_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_fresh_clusters_on_a_gpu_have_targets_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = script("harness", monkeypatch)
    seconds = {"one_device": 0.6, "mirrored": 0.7, "multi_worker_mirrored": 0.9, "parameter_server": 3.5}
    monkeypatch.setattr(harness.clusters, "start_seconds", lambda _harness, variant: (seconds[variant], 0.0))
    figures = harness.measure_starts_on_gpus(None, 3)
    assert [(figure.value, figure.met) for figure in figures] == [(0.6, True), (0.7, True), (0.9, True), (3.5, False)]


@pytest.mark.parametrize(
    ("status", "device", "target", "met"), [(0, "gpu", 60.0, True), (1, "gpu", 60.0, False), (0, "cpu", None, None)]
)
def test_a_tier_that_fails_has_no_time(
    status: int, device: str, target: float | None, met: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = script("harness", monkeypatch)
    commands: list[list[str]] = []

    def run(command: list[str], **_given: Any) -> Any:
        commands.append(command)
        return subprocess.CompletedProcess(command, status, "...\n== 44 passed in 49 s ==\n", "")

    monkeypatch.setattr(harness.subprocess, "run", run)
    (figure,) = harness.measure_tier(device, "smoke", 4)
    assert (figure.target, figure.met, math.isnan(figure.value)) == (target, met, status != 0)
    assert figure.note == "44 passed in 49 s"
    assert {f"--ddl-device={device}", "--ddl-tier=smoke"} <= set(commands[0])


def test_launches_of_the_gate_are_made_on_the_device_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = script("gate_power", monkeypatch)
    asked: list[BenchSpec] = []
    same = Counters(nodes=9, steady_steps=5, copies={"host_to_device": 2})

    class Pair:
        def __init__(self, *given: Any, **_more: Any) -> None:
            asked.append(given[-1])

        def __enter__(self) -> Pair:
            return self

        def __exit__(self, *_exception: object) -> None:
            pass

        def launch(self, number: int) -> Any:
            more = Counters(nodes=9, steady_steps=5, copies={"host_to_device": 2 + number % 2})
            sides = {name: SimpleNamespace(counters=of, device="gpu") for name, of in (("base", same), ("head", more))}
            told = {"provenance": {}, "log_ratio": 0.01, "total_ratio": 0.01, "seconds": 1.0}
            load = {"foreign_cores": 0.0, "problem": ""}
            return SimpleNamespace(**sides, as_json=lambda: {**told, "load": load})

    monkeypatch.setattr(gate, "VersionPair", Pair)
    words = ("--device", "gpu", "--launches", "2", "--cell", "one_device", "--effect", "0")
    assert gate.main([*words, "--results", str(tmp_path)]) == 0
    assert [bench.device for bench in asked] == ["gpu"]
    launches = gate.read(tmp_path, "one_device", 0)
    assert [one["device"] for one in launches] == ["gpu", "gpu"]
    said = gate.of_counters(launches)
    assert said.startswith("changed in 1 of 2 launches, not counted in 0; first: 1 more tensors copied host to device")
