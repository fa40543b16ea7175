"""Invented launches of the gate, for tests of the decisions that follow from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_ddl.bench.gate.cell import Cell
from pytest_ddl.bench.gate.lockstep import Paired
from pytest_ddl.bench.gate.sides import Side
from pytest_ddl.bench.gate.target import VersionTarget
from pytest_ddl.bench.gate.verdict import Decision, Rule, Verdict, decide
from pytest_ddl.bench.launching.machine import Load
from pytest_ddl.bench.launching.records import BenchSpec, Counters, Launch, RankTiming

CALM = Load(seconds=2.0, foreign_cores=0.05, cores=2, load_average=0.4)
BUSY = replace(CALM, foreign_cores=1.2, load_average=4.0)
COUNTERS = Counters(
    collectives={"all_reduce": 1},
    reduced_bytes=400,
    packs=1,
    nodes=50,
    traces=1,
    steady_steps=100,
    parameter_bytes=400,
    of_steps={"eager": (0,) * 100},
)


def launch(counters: Counters = COUNTERS) -> Launch:
    rank = RankTiming(0, "worker:0", (0.02, 0.02), 0.1, 0.2, 0.05, 1 << 20, program="/v/train.py")
    return Launch("one_device", 1, (rank,), counters, 32, 20, 3.0)


def paired(percent: float, load: Load = CALM, head: Counters = COUNTERS, **changed: Any) -> Paired:
    """A launch in which HEAD takes so many percent more time."""
    ratio = math.log1p(percent / 100)
    provenance = {
        name: {
            "program": f"/v/{name}/train.py",
            "commit": name,
            "pytest_ddl": "0.1.0",
            "pytest_ddl_file": "/i/pytest_ddl/__init__.py",
            "interpreter": "/usr/bin/python",
            "python": "3.11",
            "tensorflow": "2.21.0",
        }
        for name in ("BASE", "HEAD")
    }
    return Paired(
        ratio, (ratio,), launch(), launch(head), provenance, load, 20, 0.0, step_seconds=(0.001, 0.001), **changed
    )


def cell(**changed: Any) -> Cell:
    side = Side("BASE", "b" * 40, Path("/v/base"), (Path("/v/base"),), Path("/u"), Path("/i"), Path("/i/p"))
    made = Cell(
        side,
        replace(side, name="HEAD", commit="c" * 40),
        VersionTarget("training", "train"),
        "one_device",
        1,
        BenchSpec(),
        Rule(),
        180.0,
    )
    return replace(made, **changed)


def replay(log_ratios: Sequence[float], rule: Rule) -> Decision:
    """Return the gate's decision, look by look, as if these launches had come in this order."""
    decision = decide(log_ratios[: rule.looks[0]], rule)
    for look in rule.looks:
        if look > len(log_ratios):
            break
        decision = decide(log_ratios[:look], rule)
        if decision.verdict is not Verdict.INCONCLUSIVE:
            break
    return decision
