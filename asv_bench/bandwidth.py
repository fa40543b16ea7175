"""Measure training over emulated hosts against the bandwidth between them: ``python asv_bench/bandwidth.py``.

One set of hosts stays up for all cells, and its bandwidth is changed between launches. So all cells take turns within
each round, and a slow phase of the machine slows all of them. A cell is a model on a number of hosts at a bandwidth.
Each replica has the same batch (weak scaling), so the efficiency is the step time of one replica divided by that of
the cell.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import exchange as subject
from pytest_ddl.bench.launching.launch import launch
from pytest_ddl.bench.launching.records import BenchSpec, Launch
from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.harness import Harness
from pytest_ddl.hosts.transport import TransportArguments
from pytest_ddl.hosts.transports.netns import Netns
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.web.drawing import ALL, GREY, MANY, PLOT_STYLE, SINGLE

MODELS = ((512, 1024), (1024, 256))
"""Units of the hidden layers and batch per replica of each model: much computation for the bytes of a step, and little.
The gradients have 1.6 and 5.4 MB."""
HOSTS = (2, 3, 4)
MBIT: tuple[float | None, ...] = (None, 1000, 400, 200, 100, 50)
"""Megabits per second that each host may send; ``None`` is no limit."""
SECONDS = 2.0
"""Seconds of measured steps that a launch should have."""
BLOCK = 0.1
"""Seconds that a block of steps should have."""
FLOPS = 50e9
"""Operations per second of one core, for the choice of the number of steps. They are not in any result."""
COLORS = {2: SINGLE, 3: ALL, 4: MANY}


@dataclass
class Cell:
    """Launches of a model on a number of hosts at a bandwidth, one for each round."""

    model: str
    hosts: int
    mbit: float | None
    """Megabits per second that each host may send; ``None`` is no limit."""
    exchange: bool = True
    """False if the replicas only compute at the same time, and send nothing."""
    replicas: int = 0
    batch_per_replica: int = 0
    cores_per_replica: float = 0.0
    """Cores of the machine for each replica, at most 1. Replicas that share a core compute one after the other."""
    gradient_bytes: int = 0
    """Bytes that one replica puts into all-reduces in one step, as counted in the graph."""
    all_reduces: int = 0
    """All-reduces in one step."""
    steps_per_block: int = 0
    step_seconds: list[list[float]] = field(default_factory=list)
    """Seconds per step of the slowest rank in each block of steps, for each launch."""
    one_replica_step_seconds: list[list[float]] = field(default_factory=list)
    """Seconds per step of one replica with the same batch, in the launch of the same round."""
    loads: list[float] = field(default_factory=list)
    """Load of the machine at the end of each launch (average of 1 minute)."""

    @property
    def seconds(self) -> float:
        """Median over the launches of the median step."""
        return _middle(self.step_seconds)

    @property
    def efficiencies(self) -> list[float]:
        """Ratio of a step on one replica to a step of the cell, for each round."""
        pairs = zip(self.one_replica_step_seconds, self.step_seconds, strict=True)
        return [statistics.median(one) / statistics.median(many) for one, many in pairs]

    @property
    def efficiency(self) -> float:
        return statistics.median(self.efficiencies)

    def as_json(self) -> dict[str, Any]:
        derived = {"step_seconds": self.seconds, "efficiency": self.efficiency, "efficiencies": self.efficiencies}
        return {**asdict(self), "derived": derived}


def _middle(launches: Sequence[Sequence[float]]) -> float:
    return statistics.median(statistics.median(samples) for samples in launches)


def transfer_seconds(cell_bytes: int, hosts: int, mbit: float | None) -> float:
    """Return the time in which a ring all-reduce sends its bytes: ``2 (n - 1) / n`` of them leave each host."""
    return 0.0 if mbit is None else 2 * (hosts - 1) / hosts * cell_bytes * 8 / (mbit * 1e6)


def steps_of(model: tuple[int, int], hosts: int, mbit: float | None, cores: int) -> BenchSpec:
    """Choose steps by the bytes that one must move, so that each launch has about the same number of seconds."""
    units, batch = model
    computing = 6 * subject.weights(units) * batch / FLOPS
    step = computing * math.ceil(hosts / cores) + transfer_seconds(4 * subject.weights(units), hosts, mbit)
    per_block = max(1, round(BLOCK / step))
    blocks = min(20, max(4, round(SECONDS / (per_block * step))))
    return BenchSpec(
        batch_per_replica=batch, warm_up=3, steps_per_block=per_block, blocks=blocks, seconds=1e-3, device="cpu"
    )


class Emulated:
    """Emulated hosts that stay up, and whose bandwidth can be changed."""

    def __init__(self, hosts: int) -> None:
        self.transport: Netns | None = None
        settings = resolve_without_pytest({"PYTEST_DDL_LAUNCHER": f"netns[hosts={hosts}]"})
        self.harness = Harness(settings, StrategyRegistry(), {}, transports={"netns": self._make})

    def _make(self, arguments: TransportArguments) -> Netns:
        self.transport = Netns(arguments)
        return self.transport

    def launch(self, model: tuple[int, int], hosts: int, mbit: float | None, exchange: bool, cores: int) -> Launch:
        """Measure one launch with one core for each replica, which replicas share if there are more of them."""
        assert self.harness.pool.launcher  # makes the transport
        assert self.transport is not None
        self.transport.limit(mbit)
        variant = "one_device" if hosts == 1 else f"multi_worker_mirrored[workers={hosts}]"
        train = partial(subject.mlp, units=model[0], exchange=exchange)
        spec = self.harness.registry.parse_variant(variant)
        return launch(self.harness, train, spec, steps_of(model, hosts, mbit, cores), cores_per_replica=1)


def measure(
    chosen: Sequence[tuple[int, int]], counts: Sequence[int], mbit: Sequence[float | None], rounds: int
) -> dict[str, Any]:
    """Measure all cells in turns. Return them with the facts of the machine, as data for JSON."""
    cores = len(os.sched_getaffinity(0))
    emulated = Emulated(max(counts))
    cells = {
        model: [
            Cell(f"mlp[units={model[0]}]", hosts, limit, exchange, batch_per_replica=model[1])
            for hosts in counts
            for limit, exchange in [(None, False), *((one, True) for one in mbit)]
        ]
        for model in chosen
    }
    last: Launch | None = None
    started = time.monotonic()
    for number in range(rounds):
        for model, of_model in cells.items():
            one = emulated.launch(model, 1, None, True, cores)
            for cell in of_model:
                last = emulated.launch(model, cell.hosts, cell.mbit, cell.exchange, cores)
                cell.replicas = last.replicas
                cell.cores_per_replica = min(1.0, cores / last.replicas)
                cell.steps_per_block = last.steps_per_block
                cell.gradient_bytes = last.counters.reduced_bytes
                cell.all_reduces = last.counters.collectives.get("all_reduce", 0)
                cell.step_seconds.append(last.step_seconds)
                cell.one_replica_step_seconds.append(one.step_seconds)
                cell.loads.append(os.getloadavg()[0])
                print(
                    f"round {number + 1}/{rounds}  {cell.model}  {cell.hosts} hosts  {_name(cell.mbit):>9} Mbit/s"
                    f"{'' if cell.exchange else ' (computing only)'}  {1e3 * last.median_step_seconds:8.1f} ms"
                    f"  {last.wall_seconds:5.1f} s  one replica {1e3 * one.median_step_seconds:.1f} ms",
                    flush=True,
                )
    assert last is not None
    return {
        "rounds": rounds,
        "seconds": round(time.monotonic() - started, 1),
        "cores": cores,
        "tcp": _tcp(),
        "machine": {name: last.machine[name] for name in ("os", "cpu", "cores", "gpu")},
        "versions": dict(last.versions),
        "cells": [asdict(cell) for of_model in cells.values() for cell in of_model],
    }


def _tcp() -> str:
    """Return the algorithm with which TCP of this machine adapts to the bandwidth."""
    done = subprocess.run(["sysctl", "-n", "net.ipv4.tcp_congestion_control"], capture_output=True, text=True)
    return done.stdout.strip()


def _name(mbit: float | None) -> str:
    return "unlimited" if mbit is None else f"{mbit:g}"


def cells_of(results: dict[str, Any]) -> list[Cell]:
    """Return the cells of results that were read from JSON."""
    return [Cell(**{key: value for key, value in cell.items() if key != "derived"}) for cell in results["cells"]]


def table(cells: Sequence[Cell]) -> str:
    """Return the efficiencies as a Markdown table: one row for each model and bandwidth, with the ideal in brackets."""
    counts = sorted({cell.hosts for cell in cells})
    lines = [
        "| gradients | bandwidth of each host | " + " | ".join(f"{hosts} hosts" for hosts in counts) + " |",
        "| --- | --- |" + " --- |" * len(counts),
    ]
    for model, mbit in dict.fromkeys((cell.model, cell.mbit) for cell in cells if cell.exchange):
        row = {cell.hosts: cell for cell in cells if (cell.model, cell.mbit, cell.exchange) == (model, mbit, True)}
        shown = [f"{row[hosts].efficiency:.2f} ({ideal(row[hosts], cells, mbit):.2f})" for hosts in counts]
        size = f"{row[counts[0]].gradient_bytes / 1e6:.1f} MB"
        limit = _name(mbit) if mbit is None else f"{_name(mbit)} Mbit/s"
        lines.append(f"| {size} | {limit} | {' | '.join(shown)} |")
    return "\n".join(lines)


def ideal(cell: Cell, cells: Sequence[Cell], mbit: float | None) -> float:
    """Return the efficiency if a step took as long as its replicas compute, and then as its bytes need on the wire."""
    computing = next(
        one for one in cells if (one.model, one.hosts, one.exchange) == (cell.model, cell.hosts, False)
    ).seconds
    single = _middle(cell.one_replica_step_seconds)
    return single / (computing + transfer_seconds(cell.gradient_bytes, cell.hosts, mbit))


def draw(results: dict[str, Any], file: Path) -> None:
    """Draw the efficiency against the bandwidth, with the ideal curve beside it. Each model has a part of its own.

    Bars show the smallest and the largest efficiency of all rounds.
    """
    import matplotlib
    import numpy as np
    from matplotlib.figure import Figure

    cells = cells_of(results)
    names = list(dict.fromkeys(cell.model for cell in cells))
    limits = sorted({cell.mbit for cell in cells if cell.mbit is not None})
    curve = np.geomspace(limits[0], limits[-1], 60)
    with matplotlib.rc_context(PLOT_STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        for axes, name in zip(np.atleast_1d(figure.subplots(1, len(names), sharey=True)), names, strict=True):
            drawn: dict[int, list[Cell]] = {}
            for cell in cells:
                if cell.model == name and cell.exchange:
                    drawn.setdefault(cell.hosts, []).append(cell)
            for hosts, found in drawn.items():
                color = COLORS.get(hosts, GREY)
                some = sorted((cell for cell in found if cell.mbit), key=lambda cell: cell.mbit or 0)
                middle = np.array([cell.efficiency for cell in some])
                reach = np.abs([[min(cell.efficiencies), max(cell.efficiencies)] for cell in some] - middle[:, None]).T
                label = f"{hosts} hosts, measured"
                axes.errorbar(
                    [cell.mbit for cell in some], middle, reach, fmt="o-", color=color, label=label, capsize=3
                )
                best = [ideal(found[0], cells, float(mbit)) for mbit in curve]
                axes.plot(curve, best, "--", color=color, linewidth=1.2, label=f"{hosts} hosts, ideal")
                free = next((cell.efficiency for cell in found if cell.mbit is None), None)
                if free is not None:
                    axes.axhline(free, color=color, linewidth=1, linestyle=":", label=f"{hosts} hosts, no limit")
            first = next(iter(drawn.values()))[0]
            axes.set(title=f"{first.gradient_bytes / 1e6:.1f} MB of gradients", xlabel="bandwidth of each host, Mbit/s")
            axes.set(xscale="log", yscale="log", ylim=(0.01, 1.5))
            axes.set_xticks(limits, [f"{mbit:g}" for mbit in limits])
            shares = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
            axes.set_yticks(shares, [f"{share:g}" for share in shares])
            axes.minorticks_off()
        figure.axes[0].set_ylabel("scaling efficiency $T_1\\,/\\,T_N$")
        figure.axes[-1].legend(loc="upper right", fontsize=8, ncols=len(drawn))
        figure.savefig(file, metadata={"Date": None})


def _model(text: str) -> tuple[int, int]:
    units, _, batch = text.partition(":")
    return int(units), int(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", metavar="UNITS:BATCH", help="units and batch per replica of each model")
    parser.add_argument("--hosts", type=int, nargs="+", default=HOSTS, help="numbers of hosts")
    parser.add_argument("--mbit", type=float, nargs="+", help="bandwidths, with 0 for no limit")
    parser.add_argument("--rounds", type=int, default=5, help="launches of each cell (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the efficiencies to this SVG file")
    parser.add_argument("--note", metavar="TEXT", help="keep a text with the numbers, for example who else was at work")
    parser.add_argument("--read", type=Path, metavar="FILE", help="read the numbers of an earlier run, measure nothing")
    options = parser.parse_args()
    if options.read:
        results = json.loads(options.read.read_text(encoding="utf-8"))
    else:
        limits = MBIT if options.mbit is None else tuple(mbit or None for mbit in options.mbit)
        chosen = [_model(text) for text in options.models] if options.models else MODELS
        results = measure(chosen, options.hosts, limits, options.rounds)
    results["cells"] = [cell.as_json() for cell in cells_of(results)]
    if options.note:
        results["note"] = options.note
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if options.picture:
        draw(results, options.picture)
    print(table(cells_of(results)))


if __name__ == "__main__":
    main()
