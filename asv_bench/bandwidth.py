"""Measure how efficiently training scales to two emulated hosts, against the bandwidth between them, and draw it.

``python asv_bench/bandwidth.py [--json FILE] [--picture FILE]`` measures each model at each bandwidth in a process of
its own. In it, one host and two hosts take turns. The efficiency is the step time on one host divided by that on two,
with the same number of examples for each host (weak scaling).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

BANDWIDTHS = (25, 100, 400, 1600)
"""Megabits per second that each host may send."""
MODELS = ("mlp", "cnn")
"""Much to send in each step (1.6 MB of gradients), and little (0.07 MB)."""
VARIANTS = ("one_device", "multi_worker_mirrored")
LAUNCHES = 3


def cell(model: str) -> dict[str, float]:
    """Measure a model under the launcher of the environment. Return seconds and an efficiency."""
    from benchmarks import models
    from pytest_ddl.bench import measure

    settings = {"batch_per_replica": 64, "seconds": 1.5, "pin": True}
    matrix = measure(getattr(models, model), VARIANTS, launches=LAUNCHES, **settings)
    one, two = (statistics.median(launch.median_step_seconds for launch in matrix.of(name)) for name in matrix.variants)
    return {"one_host": one, "two_hosts": two, "efficiency": one / two}


def measured(model: str, mbit: int | None) -> dict[str, Any]:
    """Measure a cell in a process of its own, and show it."""
    launcher = f"netns[hosts=2,mbit={mbit}]" if mbit else "netns[hosts=2]"
    environ = {**os.environ, "PYTEST_DDL_LAUNCHER": launcher}
    command = [sys.executable, __file__, "--cell", model]
    done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    found = {"model": model, "mbit": mbit, **json.loads(done.stdout.splitlines()[-1])}
    print(f"{model:<5} {mbit or 'unlimited':>9} Mbit/s  {found['efficiency']:.2f}", flush=True)
    return found


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw efficiency against bandwidth, one line for each model."""
    import matplotlib

    matplotlib.use("svg")
    # The same text for the same numbers.
    matplotlib.rcParams["svg.hashsalt"] = "bandwidth"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for model in MODELS:
        points = [(row["mbit"], row["efficiency"]) for row in rows if row["model"] == model and row["mbit"]]
        (line,) = axes.plot(*zip(*points, strict=True), "o-", label=model)
        free = next(row["efficiency"] for row in rows if row["model"] == model and not row["mbit"])
        axes.axhline(free, color=line.get_color(), linestyle=":", label=f"{model}, unlimited")
    axes.set(xlabel="bandwidth of each host in Mbit/s", ylabel="scaling efficiency of two hosts")
    axes.set(xscale="log", ylim=(0, 1.05))
    axes.set_xticks(BANDWIDTHS, [str(mbit) for mbit in BANDWIDTHS])
    axes.legend()
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cell", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the efficiencies to this SVG file")
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(cell(options.cell)))
        return
    rows = [measured(model, mbit) for model in MODELS for mbit in (*BANDWIDTHS, None)]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.picture:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()
