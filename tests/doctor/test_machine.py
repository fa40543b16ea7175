"""Files, GPUs, the clock and environment variables: right here, and named if an obstacle is planted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_ddl.bench.launching.machine import machine_facts
from pytest_ddl.doctor import environment, gpu_state, machine
from pytest_ddl.doctor.examination import DoctorFinding, Status, ok, problem
from tests.doctor.child import findings, permits


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for variable in environment.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    return monkeypatch


# ----- files -----


def in_folder(folder: Path, options: str, fill: str = "true") -> DoctorFinding:
    """Return what the doctor finds if a file system with these options is the folder for temporary files."""
    permits("unshare", "-Urm")
    script = f'mount -t tmpfs -o {options} none "$TMPDIR" && cd "$TMPDIR" && {fill}; exec "$@"'
    inside = ("unshare", "-Urm", "sh", "-c", script, "sh")
    (found,) = findings(inside=inside, environ={"TMPDIR": str(folder)})["temporary-folder"]
    return DoctorFinding(Status(found["status"]), found["found"], found["fix"])


@pytest.mark.parametrize(
    ("size", "status"), [("1g", Status.OK), ("100m", Status.WARNING), ("128k", Status.PROBLEM)]
)  # fmt: skip
def test_space_for_temporary_files(size: str, status: Status, tmp_path: Path) -> None:
    found = in_folder(tmp_path, f"size={size}")
    assert found.status is status
    if status is Status.OK:
        assert found.found == f"{tmp_path} can be written, 1.0 GiB are free"
    else:
        assert found.found.startswith(
            f"{tmp_path}, the folder for temporary files, has only {size[:-1]} {size[-1].upper()}iB free"
        )
        assert "TMPDIR" in found.fix


def test_a_full_folder(tmp_path: Path) -> None:
    found = in_folder(tmp_path, "size=64k", "head -c 1000000 /dev/zero > full 2>/dev/null")
    assert found.status is Status.WARNING
    assert found.found.startswith(f"TMPDIR={tmp_path} cannot be written, so temporary files are in ")


def test_a_folder_without_programs(tmp_path: Path) -> None:
    found = in_folder(tmp_path, "size=1g,noexec")
    assert found.status is Status.WARNING
    assert "noexec" in found.found
    assert "noexec" in found.fix


def test_a_folder_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "temporary_folder", lambda: str(tmp_path / "gone"))
    found = machine.temporary()
    assert found.found == f"pytest-ddl cannot write to {tmp_path / 'gone'}: No such file or directory"
    assert "TMPDIR" in found.fix


@pytest.mark.parametrize(("gpus", "status"), [([], Status.OK), (["H100", "H100"], Status.WARNING)])
def test_little_shared_memory_matters_to_gpus(
    gpus: list[str], status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SHARED", tmp_path / "gone")
    monkeypatch.setattr(gpu_state, "gpu_names", lambda: gpus)
    found = machine.shared_memory()
    assert found.status is status
    assert "cannot be used (No such file or directory)" in found.found


# ----- GPUs -----


@pytest.mark.parametrize(
    ("names", "node", "package", "status", "said"),
    [
        ("", False, "tensorflow", Status.OK, "no NVIDIA GPU"),
        ("NVIDIA H100", True, "tensorflow", Status.OK, "1 GPU (NVIDIA H100)"),
        ("", True, "tensorflow", Status.OK, "1 GPU (name unknown)"),
        ("NVIDIA H100", True, "tensorflow-cpu", Status.WARNING, "1 GPU (NVIDIA H100), but this TensorFlow is built"),
        ("NVIDIA H100", False, "tensorflow", Status.WARNING, "the driver lists 1 GPU (NVIDIA H100), but there is no"),
    ],
)
def test_gpus(
    names: str, node: bool, package: str, status: Status, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if node:
        (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpu_state, "NODES", str(tmp_path / "nvidia[0-9]*"))
    monkeypatch.setattr(gpu_state, "machine_facts", lambda: {**machine_facts(), "gpu": names})
    monkeypatch.setattr(gpu_state, "installed", lambda name: "2.21.0" if name == package else None)
    found = gpu_state.gpus()
    assert (found.status, found.found[: len(said)]) == (status, said)


GPU = {
    "index": "0",
    "name": "NVIDIA H200",
    "driver_version": "580.65",
    "memory.free": "143000",
    "memory.total": "143771",
    "utilization.gpu": "0",
    "persistence_mode": "Enabled",
    "compute_mode": "Default",
    "ecc.errors.uncorrected.volatile.total": "0",
}


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({}, Status.OK, "GPU 0 (NVIDIA H200): driver 580.65, 143000 of 143771 MiB free"),
        ({"ecc.errors.uncorrected.volatile.total": "[N/A]"}, Status.OK, "GPU 0"),
        ({"memory.free": "900"}, Status.PROBLEM, "GPU 0 (NVIDIA H200) has only 900 of 143771 MiB free"),
        ({"utilization.gpu": "97"}, Status.WARNING, "GPU 0 (NVIDIA H200) is busy (97 %)"),
        ({"compute_mode": "Exclusive_Process"}, Status.PROBLEM, "GPU 0 (NVIDIA H200) has the compute mode"),
        ({"ecc.errors.uncorrected.volatile.total": "3"}, Status.PROBLEM, "the memory of GPU 0 (NVIDIA H200) had 3"),
        ({"persistence_mode": "Disabled"}, Status.WARNING, "GPU 0 (NVIDIA H200) is not in persistence mode"),
    ],
)
def test_the_state_of_a_gpu(changed: dict[str, str], status: Status, said: str) -> None:
    (found,) = gpu_state.judged({**GPU, **changed})
    assert (found.status, found.found[: len(said)]) == (status, said)


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        (f"echo '{', '.join(GPU.values())}'", Status.OK, "GPU 0 (NVIDIA H200): driver 580.65"),
        (
            "echo 'NVIDIA-SMI has failed'; exit 9",
            Status.PROBLEM,
            "nvidia-smi ended with status 9: NVIDIA-SMI has failed",
        ),
        (None, Status.WARNING, "nvidia-smi is not installed"),
    ],
)
def test_the_driver_is_asked_for_the_state(
    script: str | None, status: Status, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpu_state, "NODES", str(tmp_path / "nvidia[0-9]*"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    (found,) = gpu_state.gpu_state()
    assert (found.status, found.found[: len(said)]) == (status, said)


# ----- the clock -----


@pytest.mark.parametrize(
    ("state", "file", "status", "said"),
    [
        (0, False, Status.OK, "the clock is set and synchronized"),
        (5, True, Status.OK, "the clock is set and synchronized"),
        (-1, False, Status.OK, "the clock is set"),
        (5, False, Status.WARNING, "the clock is not synchronized, so that timestamps of several hosts"),
    ],
)
def test_clock(
    state: int, file: bool, status: Status, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "kernel_state", lambda: state)
    monkeypatch.setattr(machine, "SYNCHRONIZED", tmp_path / "synchronized")
    if file:
        (tmp_path / "synchronized").touch()
    found = machine.clock()
    assert (found.status, found.found[: len(said)]) == (status, said)


def test_the_state_of_the_clock_can_be_read() -> None:
    assert -1 <= machine.kernel_state() <= 5


def test_a_clock_that_was_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.time, "time", lambda: 0.0)
    found = machine.clock()
    assert (found.status, found.found) == (Status.WARNING, "the clock says 1970-01-01")
    assert "timedatectl" in found.fix


# ----- environment variables -----


def test_no_variable(clean: pytest.MonkeyPatch) -> None:
    assert environment.variables() == [ok("no variable changes TensorFlow silently")]


@pytest.mark.parametrize(
    ("name", "value", "status", "said"),
    [
        ("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}', Status.WARNING, "TF_CONFIG is set (2 worker): ranks"),
        ("TF_CONFIG", "{}", Status.WARNING, "TF_CONFIG is set, and describes no cluster"),
        ("TF_CONFIG", "not JSON", Status.WARNING, "TF_CONFIG is set, and describes no cluster"),
        ("CUDA_VISIBLE_DEVICES", "", Status.WARNING, "CUDA_VISIBLE_DEVICES='' hides all GPUs"),
        ("CUDA_VISIBLE_DEVICES", "-1", Status.WARNING, "CUDA_VISIBLE_DEVICES='-1' hides all GPUs"),
        ("CUDA_VISIBLE_DEVICES", "0,1", Status.OK, "set: CUDA_VISIBLE_DEVICES=0,1 (limits the GPUs)"),
        ("KERAS_BACKEND", "jax", Status.PROBLEM, "KERAS_BACKEND=jax, and tf.distribute needs"),
        ("TF_NUM_INTEROP_THREADS", "two", Status.WARNING, "TF_NUM_INTEROP_THREADS='two' is not a number"),
        ("TF_ENABLE_ONEDNN_OPTS", "0", Status.OK, "set: TF_ENABLE_ONEDNN_OPTS=0 (changes kernels"),
        ("XLA_FLAGS", "--a\n --b", Status.OK, "set: XLA_FLAGS=--a --b (changes how XLA compiles)"),
    ],
)
def test_a_variable(name: str, value: str, status: Status, said: str, clean: pytest.MonkeyPatch) -> None:
    clean.setenv(name, value)
    (found,) = environment.variables()
    assert (found.status, found.found[: len(said)]) == (status, said)


@pytest.mark.parametrize(("value", "version", "wrong"), [("1", None, True), ("1", "2.21", False), ("0", None, False)])
def test_keras_2(value: str, version: str | None, wrong: bool, clean: pytest.MonkeyPatch) -> None:
    clean.setenv("TF_USE_LEGACY_KERAS", value)
    clean.setattr(environment, "installed", lambda _name: version)
    (found,) = environment.variables()
    assert (found.status is Status.PROBLEM) == wrong


def test_several_variables_are_one_line_each_if_they_are_wrong(clean: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("KERAS_BACKEND", "jax"),
        ("TF_CONFIG", "{}"),
        ("TF_DETERMINISTIC_OPS", "1"),
        ("XLA_FLAGS", ""),
    ):
        clean.setenv(name, value)
    assert [found.status for found in environment.variables()] == [Status.WARNING, Status.PROBLEM, Status.OK]


def test_a_variable_reaches_the_report() -> None:
    environ = {name: value for name, value in os.environ.items() if name == "PATH"} | {"KERAS_BACKEND": "torch"}
    assert findings(environ=environ)["variables"][0]["status"] == "problem"


def test_a_finding_has_a_fix_or_is_right() -> None:
    with pytest.raises(ValueError, match="a fix belongs to each warning and problem only"):
        problem("wrong", "")
    with pytest.raises(ValueError, match="one line"):
        ok("two\nlines")
