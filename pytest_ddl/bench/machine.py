"""Describe the machine on which a measurement runs."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

CALM = 0.5
"""1-minute load per usable core above which other programs are assumed to use the machine."""


def business() -> str:
    """Describe how busy this machine is with other work; return an empty text if it is calm.

    Call this before a measurement, because the measurement itself adds load.
    """
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return f"load {load:.1f} on {cores} cores" if load > CALM * cores else ""


def machine_facts() -> dict[str, str]:
    """Return ``host``, ``os``, ``cpu``, ``cores`` (usable ones), ``gpu`` and ``load`` (1-minute average) as text."""
    return {**_fixed(), "load": f"{os.getloadavg()[0]:.2f}"}


@cache
def _fixed() -> dict[str, str]:
    return {
        "host": platform.node(),
        "os": f"{platform.system()} {platform.release()}",
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "gpu": ", ".join(_gpus()),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _gpus() -> list[str]:
    """Return the names of NVIDIA GPUs from the driver's files; empty if there is no driver."""
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")]
    return found
