"""The driver, the runtime and the libraries of CUDA: what fits TensorFlow's build, on recorded versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.doctor import imported
from pytest_ddl.doctor.examination import Status
from pytest_ddl.strategies import gpu_check

# As on one H200, whose math libraries were those of CUDA 13 under the names of CUDA 12.
H200 = {
    "built": "12.5.1",
    "driver": "13.0",
    "cudart": "12",
    "cublas": "13.1.0.3",
    "cudnn": "9.13.0",
    "cufft": "12.0.0.61",
    "cusolver": "12.0.4.66",
    "cusparse": "12.6.3.3",
}
CPU, GPU = ["CPU:0"], ["CPU:0", "GPU:0"]
MAPS = """
7f0000000000-7f0000100000 r-xp 00000000 08:01 1  /opt/nvidia/lib/libcudart.so.12.9.79
7f0000100000-7f0000200000 r--p 00000000 08:01 2  /opt/nvidia/lib/libcublasLt.so.12.9.1.4
7f0000200000-7f0000300000 r--p 00000000 08:01 3  /opt/nvidia/lib/libcudnn.so.9.10.2
7f0000300000-7f0000400000 rw-p 00000000 00:00 0
"""


def examined(monkeypatch: pytest.MonkeyPatch, folder: Path, devices: list[str], wrong: list[str], loaded: Any) -> Any:
    (folder / "nvidia0").touch()
    monkeypatch.setattr(imported, "NODES", str(folder / "nvidia[0-9]*"))
    told = json.dumps(["2.21.0", devices, wrong, "this TensorFlow is built for CUDA 12.5.1", loaded])
    monkeypatch.setattr(imported, "_LIST", f"print({imported._MARK + told!r})\n")
    return imported.tensorflow()


def test_what_fits_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = examined(monkeypatch, tmp_path, GPU, [], H200)
    assert found.status is Status.OK
    assert "sees CPU:0, GPU:0 (CUDA: built 12.5.1, cublas 13.1.0.3, cudart 12, cudnn 9.13.0," in found.found
    assert "driver 13.0" in found.found


@pytest.mark.parametrize(
    ("devices", "wrong", "changed", "status", "said"),
    [
        (GPU, [], {"cudart": "13.0.48"}, Status.PROBLEM, "built for CUDA 12.5.1, and has loaded the runtime 13.0.48"),
        (GPU, ["GPU:0 computes wrong numbers"], {"cudart": "13.0.48"}, Status.PROBLEM, "numbers; this TensorFlow is"),
        (GPU, ["GPU:0 computes wrong numbers"], {}, Status.PROBLEM, "GPU:0 computes wrong numbers"),
        (CPU, [], {"driver": "11.8"}, Status.WARNING, "the driver supports CUDA 11.8: update the driver"),
        (CPU, [], {"cudnn": None, "cufft": None}, Status.WARNING, "it could not load libcudnn, libcufft"),
        (CPU, [], {}, Status.WARNING, "sees no GPU although the driver has one"),
        # The driver of a container may be hidden, and a build of one's own may not tell its version.
        (GPU, [], {"driver": "", "built": ""}, Status.OK, "sees CPU:0, GPU:0"),
    ],
)
def test_what_does_not_fit_is_named(
    devices: list[str],
    wrong: list[str],
    changed: dict[str, str | None],
    status: Status,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    loaded = {name: version for name, version in {**H200, **changed}.items() if version is not None}
    found = examined(monkeypatch, tmp_path, devices, wrong, loaded)
    assert (found.status, said in found.found) == (status, True), found.found


def test_the_version_of_a_library_is_that_of_its_file() -> None:
    found = [pair for line in MAPS.splitlines() for pair in gpu_check._LIBRARY.findall(line)]
    assert found == [("cudart", "12.9.79"), ("cudnn", "9.10.2")]


@pytest.mark.slow
def test_this_process_tells_its_versions() -> None:
    found = gpu_check.libraries()
    assert {"built", "driver"} <= set(found)
    assert all(name in ("built", "driver", *imported._NEEDED) for name in found)
