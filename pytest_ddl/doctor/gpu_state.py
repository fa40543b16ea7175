"""Find the GPUs of this machine, whether TensorFlow can use them, and the state that the driver reports of each."""

from __future__ import annotations

import csv
import glob
import subprocess
from collections.abc import Iterator, Mapping

from pytest_ddl.bench.launching.machine import machine_facts
from pytest_ddl.doctor.examination import DoctorFinding, ok, problem, warning
from pytest_ddl.installing import install_line, installed
from pytest_ddl.strategies.machine import GPU_PROCESS_MB

NODES = "/dev/nvidia[0-9]*"
SECONDS = 10.0
"""Deadline: without persistence mode, the driver is loaded for the answer, which takes seconds."""
FIELDS = (
    "index",
    "name",
    "driver_version",
    "memory.free",
    "memory.total",
    "utilization.gpu",
    "persistence_mode",
    "compute_mode",
    "ecc.errors.uncorrected.volatile.total",
)
"""Properties that ``nvidia-smi --help-query-gpu`` describes. Memory is in MiB."""
_BUSY = 10
"""Use in percent from which another program is likely to disturb measurements."""


def gpu_names() -> list[str]:
    """Return the names of the NVIDIA GPUs of which the driver has files."""
    return [name for name in machine_facts()["gpu"].split(", ") if name]


def gpus() -> DoctorFinding:
    names, nodes = gpu_names(), glob.glob(NODES)
    if not names and not nodes:
        return ok("no NVIDIA GPU; replicas run on virtual devices of the CPU")
    if not nodes:
        text = f"the driver lists {len(names)} GPU ({names[0]}), but there is no {NODES}"
        return warning(text, "give the container its GPUs, for example docker run --gpus=all")
    what = f"{len(names) or len(nodes)} GPU ({', '.join(names) or 'name unknown'})"
    if installed("tensorflow-cpu") or installed("tf-nightly-cpu"):
        return warning(f"{what}, but this TensorFlow is built for CPUs", install_line("gpu"))
    return ok(what)


def gpu_state() -> list[DoctorFinding]:
    if not glob.glob(NODES):
        return [ok("no NVIDIA GPU to ask")]
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS - 1, check=True)
    except FileNotFoundError:
        return [warning("nvidia-smi is not installed, so the state of the GPUs is unknown", _TOOL)]
    except subprocess.TimeoutExpired:
        return [problem(f"nvidia-smi did not answer within {SECONDS - 1:.0f} s", "look at dmesg; restart the machine")]
    except subprocess.CalledProcessError as error:
        said = (error.stdout or error.stderr or "nothing").strip().splitlines()[0]
        return [problem(f"nvidia-smi ended with status {error.returncode}: {said}", "reinstall the NVIDIA driver")]
    lines = csv.reader(result.stdout.splitlines(), skipinitialspace=True)
    rows = (dict(zip(FIELDS, line, strict=False)) for line in lines)
    return [finding for row in rows for finding in judged(row)]


_TOOL = "install the NVIDIA driver's tools, or give the container the capability 'utility'"


def judged(gpu: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Judge one GPU by what the driver says. A property that the GPU lacks is ``[N/A]``, and is no problem."""
    name = f"GPU {gpu['index']} ({gpu['name']})"
    wrong = False
    free, total, used = (_number(gpu[key]) for key in ("memory.free", "memory.total", "utilization.gpu"))
    if free is not None and free < GPU_PROCESS_MB:
        wrong = True
        found = f"{name} has only {free} of {total} MiB free, and one rank needs {GPU_PROCESS_MB}"
        yield problem(found, "end the programs that nvidia-smi lists, or choose others with CUDA_VISIBLE_DEVICES")
    if used is not None and used >= _BUSY:
        wrong = True
        yield warning(f"{name} is busy ({used} %), so times are not reliable", "end the programs that nvidia-smi lists")
    if gpu["compute_mode"] in ("Exclusive_Process", "Prohibited"):
        wrong = True
        found = f"{name} has the compute mode {gpu['compute_mode']}, and several ranks use one GPU"
        yield problem(found, f"nvidia-smi -i {gpu['index']} -c DEFAULT")
    if _number(gpu["ecc.errors.uncorrected.volatile.total"]):
        wrong = True
        errors = gpu["ecc.errors.uncorrected.volatile.total"]
        yield problem(f"the memory of {name} had {errors} errors that ECC did not correct", "reset or replace the GPU")
    if gpu["persistence_mode"] == "Disabled":
        wrong = True
        found = f"{name} is not in persistence mode, so the driver is loaded anew when no program uses the GPU"
        yield warning(found, f"nvidia-smi -i {gpu['index']} -pm 1, as root")
    if not wrong:
        yield ok(f"{name}: driver {gpu['driver_version']}, {free} of {total} MiB free")


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
