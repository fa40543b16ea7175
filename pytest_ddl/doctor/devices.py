"""Find the GPUs of this machine in files of the driver, and say whether the installed TensorFlow can use them."""

from __future__ import annotations

import glob

from pytest_ddl.bench.launching.machine import machine_facts
from pytest_ddl.doctor.findings import DoctorFinding, ok, warning
from pytest_ddl.doctor.versions import installed
from pytest_ddl.installing import install_line

NODES = "/dev/nvidia[0-9]*"


def gpu_names() -> list[str]:
    """Return the names of the NVIDIA GPUs of which the driver has files."""
    return [name for name in machine_facts()["gpu"].split(", ") if name]


def gpus() -> DoctorFinding:
    names, nodes = gpu_names(), glob.glob(NODES)
    if not names and not nodes:
        return ok("no NVIDIA GPU; replicas run on virtual devices of the CPU")
    if not nodes:
        found = f"the driver lists {len(names)} GPU ({names[0]}), but there is no {NODES}"
        return warning(found, "give the container its GPUs, for example docker run --gpus=all")
    what = f"{len(names) or len(nodes)} GPU ({', '.join(names) or 'name unknown'})"
    if installed("tensorflow-cpu") or installed("tf-nightly-cpu"):
        return warning(f"{what}, but this TensorFlow is built for CPUs", install_line("gpu"))
    return ok(what)
