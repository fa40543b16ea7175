"""Measure the time of a check, and the number of random programs that are checked in a minute."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from asv_bench.benchmarks.comparisons import recording_seconds, train
from pytest_ddl import check_training
from pytest_ddl.harness import process_harness
from tests.evaluation.random_programs import random_programs

TARGETS: Mapping[str, float] = {"mirrored": 1.0, "multi_worker_mirrored": 1.5}
"""Most seconds that one check of a small network may take on warm clusters of two replicas."""
REPEATS = 9
PROGRAMS = 60


def measure_checks() -> dict[str, Any]:
    """Seconds of one check of a small network, 3 steps, warm, its reference included: median and worst."""
    found = {}
    for strategy in TARGETS:
        # Each attempt has other data, so that its reference is not known yet. The first two warm the clusters.
        taken = [_seconds(strategy, attempt) for attempt in range(REPEATS + 2)][2:]
        found[strategy] = {"median": round(statistics.median(taken), 3), "worst": round(max(taken), 3)}
    return {"seconds": found, "load before": round(os.getloadavg()[0], 2)}


def _seconds(strategy: str, attempt: int) -> float:
    started = time.monotonic()
    report = check_training(partial(train, attempt=attempt), strategy, global_batch_size=16, steps=3)
    assert report.passed, str(report)
    return time.monotonic() - started


def measure_random_programs(number: int = PROGRAMS) -> dict[str, Any]:
    """Return random programs checked per minute under ``mirrored``, warm, one process per core, and times of parts."""
    load, processes = os.getloadavg()[0], os.cpu_count() or 1
    with get_context("spawn").Pool(processes) as pool:
        parts = pool.starmap(_check_random_programs, [(number, i, processes) for i in range(processes)], chunksize=1)
        pool.close()
        pool.join()
    seconds = max(part["end"] for part in parts) - min(part["start"] for part in parts)
    checked = sum(part["programs"] for part in parts)

    def each(name: str) -> float:
        return round(sum(part[name] for part in parts) / checked, 3)

    return {
        "programs": checked,
        "processes": processes,
        "per minute": round(60 * checked / seconds, 1),
        "seconds each": each("seconds"),
        "seconds each in": {"reference": each("reference"), "distributed": each("distributed")},
        "failed": sum(part["failed"] for part in parts),
        "load before": round(load, 2),
    }


def _check_random_programs(number: int, share: int, shares: int) -> dict[str, float]:
    warm_up, programs = random_programs(number + 5)[:5], random_programs(number + 5)[5 + share :: shares]
    for program in warm_up:
        check_training(program.train, "mirrored", **program.arguments)
    start = time.monotonic()
    reports = [check_training(program.train, "mirrored", **program.arguments) for program in programs]
    end = time.monotonic()
    return {
        "programs": len(programs),
        "start": start,
        "end": end,
        "seconds": end - start,
        "reference": sum(report.reference.seconds for report in reports if report.reference),
        "distributed": sum(report.distributed.seconds for report in reports if report.distributed),
        "failed": sum(report.verdict == "fail" for report in reports),
    }


def measure_recording() -> dict[str, float]:
    """Seconds of a step of a small network with everything recorded, and of the bare loop in turns with it."""
    return {name: round(value, 6) for name, value in recording_seconds(process_harness()).items()}


def machine() -> dict[str, Any]:
    """Return the machine on which the figures were measured."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"cores": os.cpu_count(), "cpu": names[0] if names else platform.machine(), "system": platform.system()}


def versions() -> dict[str, str]:
    """Versions as a rank records them."""
    report = check_training(partial(train, attempt=0), "mirrored", global_batch_size=16, steps=1)
    assert report.distributed is not None
    return dict(report.distributed.ranks[0].versions)
