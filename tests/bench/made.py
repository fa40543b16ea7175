"""Launches and matrices out of given numbers, for tests of what is computed from them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from pytest_ddl.bench import Counters, Launch, Matrix, RankTiming
from pytest_ddl.bench.launching.records import EnergyReading

BLOCKS = 10
STEPS = 20


def launch(strategy: str, step_seconds: float, replicas: int = 1, batch: int | None = None, **given: Any) -> Launch:
    """A launch whose every step took the same time; further fields by name, of the launch or of its rank."""
    ranks = {
        key: given.pop(key)
        for key in (
            "peak_memory_bytes",
            "device_peak_bytes",
            "energy",
            "build_seconds",
            "first_step_seconds",
            "examples",
            "remarks",
        )
        if key in given
    }
    timing = RankTiming(
        **{
            "rank": 0,
            "task": "worker 0",
            "blocks": (step_seconds * STEPS,) * BLOCKS,
            "build_seconds": 1.0,
            "first_step_seconds": 2.0,
            "warm_up_seconds": 0.5,
            "peak_memory_bytes": 2**29,
            "energy": EnergyReading(None, reason="not asked for"),
            **ranks,
        }
    )
    fields = {
        "strategy": strategy,
        "replicas": replicas,
        "ranks": (timing,),
        "counters": Counters(),
        "global_batch_size": batch,
        "steps_per_block": STEPS,
        "wall_seconds": 2 * step_seconds * STEPS * BLOCKS,
        "pinned": True,
    }
    return Launch(**{**fields, **given})


def matrix(times: dict[str, Sequence[float]], rule: str = "weak", batch: int = 32, **given: Any) -> Matrix:
    """Launches by variant, given as the seconds of a step of each launch; a variant has the replicas it names."""
    found = []
    for variant, seconds in times.items():
        named = re.findall(r"(?:replicas|workers)=(\d+)", variant) if "server" not in variant else []
        replicas = math.prod(map(int, named))
        total = batch * replicas if rule == "weak" else batch
        found += [launch(variant, each, replicas, total if rule != "none" else None, **given) for each in seconds]
    return Matrix(tuple(found), {}, rule)
