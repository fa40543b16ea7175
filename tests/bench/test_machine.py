"""Check the description of the machine beside a measurement, and the peak memory of a rank."""

from __future__ import annotations

import os
import platform
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.bench.launching import machine, remote


def test_the_facts_are_texts_that_are_all_there():
    facts = machine.machine_facts()
    assert set(facts) == {"host", "os", "cpu", "cores", "gpu", "load"}
    assert all(isinstance(value, str) for value in facts.values())
    assert int(facts["cores"]) == len(os.sched_getaffinity(0))
    assert float(facts["load"]) >= 0


def test_the_load_is_read_anew(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (7.25, 1.0, 1.0))
    assert machine.machine_facts()["load"] == "7.25"


def test_gpus_are_named_from_the_drivers_files(monkeypatch, tmp_path):
    for number in range(2):
        folder = tmp_path / "proc" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA X{number}\nIRQ: 1\n")
    monkeypatch.setattr(machine, "Path", lambda _path: tmp_path / "proc")
    assert machine._gpus() == ["NVIDIA X0", "NVIDIA X1"]


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "Path", lambda _path: tmp_path)
    assert machine._gpus() == []


def test_peak_memory_is_the_high_water_mark():
    before = remote.peak_bytes()
    held = bytearray(64 * 2**20)
    assert before > 2**20
    assert remote.peak_bytes() >= before
    assert len(held) == 64 * 2**20


@pytest.mark.parametrize(("text", "expected"), [("Name:\tx\nVmHWM:\t    2048 kB\n", 2048 * 1024), ("Name:\tx\n", 0)])
def test_peak_memory_is_read_in_bytes(monkeypatch, tmp_path, text, expected):
    status = tmp_path / "status"
    status.write_text(text)
    monkeypatch.setattr(remote, "Path", lambda _path: status)
    assert remote.peak_bytes() == expected
    status.unlink()
    assert remote.peak_bytes() == 0


def test_one_machine_has_its_own_name(monkeypatch):
    monkeypatch.setattr(machine, "_fixed", lambda: {"cpu": "Intel(R) Xeon(R)", "cores": "16", "gpu": ""})
    assert machine.machine_name({}) == machine.machine_name({"PYTEST_DDL_LAUNCHER": "local"}) == platform.node()


def test_a_runner_with_gpus_is_named_after_its_hardware(monkeypatch):
    """Each job may have another host, and results of another GPU are those of another machine."""
    fixed = {"cpu": "Intel(R) Xeon(R)", "cores": "16", "gpu": "NVIDIA H200, NVIDIA H200", "host": "job-17"}
    monkeypatch.setattr(machine, "_fixed", lambda: fixed)
    assert machine.machine_name({}) == "2-x-NVIDIA-H200-Intel-R-Xeon-R-16-cores"
    monkeypatch.setattr(machine, "_fixed", lambda: {**fixed, "gpu": "NVIDIA H100"})
    assert machine.machine_name({}) == "1-x-NVIDIA-H100-Intel-R-Xeon-R-16-cores"


@pytest.mark.parametrize(
    ("launcher", "hosts", "expected"),
    [
        ("netns[hosts=2,mbit=200]", "", "netns-hosts-2-mbit-200-A-CPU-1.0-GHz-2-cores"),
        ("ssh", "secret:4,other", "ssh-hosts-4+1-A-CPU-1.0-GHz-2-cores"),
        ("slurm", "", "slurm-A-CPU-1.0-GHz-2-cores"),
    ],
)
def test_results_of_several_hosts_have_a_name_without_the_hosts(monkeypatch, launcher, hosts, expected):
    monkeypatch.setattr(machine, "_fixed", lambda: {"cpu": "A (CPU) @ 1.0 GHz", "cores": "2", "gpu": "NVIDIA H200"})
    assert machine.machine_name({"PYTEST_DDL_LAUNCHER": launcher, "PYTEST_DDL_HOSTS": hosts}) == expected


def test_processes_on_hidden_gpus_are_not_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        NVMLError = RuntimeError

        def __getattr__(self, name: str) -> Any:
            calls = {
                "nvmlDeviceGetCount": lambda: 2,
                "nvmlDeviceGetHandleByIndex": lambda index: index,
                "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=100 + handle)],
            }
            return calls.get(name, lambda: None)

    monkeypatch.setitem(sys.modules, "pynvml", Fake())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machine.foreign_gpu_processes({7}) == ("process 100 on GPU 0", "process 101 on GPU 1")
    assert machine.foreign_gpu_processes({100, 101}) == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine.foreign_gpu_processes({7}) == ("process 101 on GPU 1",)
