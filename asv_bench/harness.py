"""Measure all figures of the harness in one run: ``python asv_bench/harness.py [--json FILE]``.

The figures are shown as a table, and can be written as JSON. Figures that are compared are measured in turn within this
run, so that a busy machine slows both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks import clusters, comparisons, sessions
from benchmarks.tensorflow_runner import TensorFlowRunner
from pytest_ddl.harness import Harness

WIDTH = 76
"""Width of the names in the table, in characters."""
ONE_GPU = "one_device,mirrored,multi_worker_mirrored,parameter_server,central_storage"
"""Strategies that one GPU can run."""
TIERS = {"smoke": 60.0, "core": 480.0}
"""Tier of the suite -> most seconds on a GPU."""


@dataclass(frozen=True)
class Figure:
    """One line of the table. ``target`` is a maximum in the unit of ``value``; with ``at_least`` it is a minimum."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure_starts_on_gpus(harness: Harness, rounds: int) -> list[Figure]:
    """Measure starts of fresh clusters, each with a context of CUDA in each process. TensorFlow's runner has none."""
    figures = []
    for variant in ("one_device", "mirrored", "multi_worker_mirrored", "parameter_server"):
        seconds = [clusters.start_seconds(harness, variant)[0] for _ in range(rounds)]
        spread = f"of {rounds}; {min(seconds):.3f} to {max(seconds):.3f}"
        figures.append(Figure(f"fresh cluster, {variant}, median", statistics.median(seconds), "s", 3.0, note=spread))
    return figures


def measure_tier(device: str, tier: str, processes: int) -> list[Figure]:
    """Measure a tier of the suite under the strategies that one GPU can run. A red one takes no time that counts."""
    name = f"{tier} tier of the suite, {processes} processes"
    words = [f"--ddl-tier={tier}", f"--ddl-device={device}", f"--ddl-strategy={ONE_GPU}", "-n", str(processes)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:benchmark", "-p", "no:cacheprovider", "suites", *words]
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begun
    told = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "it said nothing").strip("= ")
    value = seconds if done.returncode == 0 else float("nan")
    return [Figure(name, value, "s", TIERS[tier] if device == "gpu" else None, note=told)]


def measure_starts(harness: Harness, rounds: int) -> list[Figure]:
    """Measure starts of fresh clusters, in turn with TensorFlow's runner."""
    ours: dict[int, list[float]] = {2: [], 4: []}
    theirs: dict[int, list[float]] = {2: [], 4: []}
    with TensorFlowRunner() as runner:
        for number in range(rounds):
            for workers in ours:
                ours[workers].append(clusters.start_seconds(harness, f"mwms[workers={workers}]")[0])
                # TensorFlow's runner takes seconds with four workers; a quarter of the rounds is enough for a ratio.
                measured = runner.start_seconds(workers) if workers == 2 or number % 4 == 0 else None
                if measured is not None:
                    theirs[workers].append(measured[0])
    figures = []
    for workers, target in ((2, 0.25), (4, 0.6)):
        name = f"fresh {workers}-worker cluster with its first all-reduce"
        spread = f"of {rounds}; {min(ours[workers]):.3f} to {max(ours[workers]):.3f}"
        figures.append(Figure(f"{name}, median", statistics.median(ours[workers]), "s", target, note=spread))
        if theirs[workers]:
            yardstick = statistics.median(theirs[workers])
            note = f"of {len(theirs[workers])}"
            figures.append(Figure("  the same with TensorFlow's MultiProcessRunner, median", yardstick, "s", note=note))
            ratio = yardstick / statistics.median(ours[workers])
            figures.append(Figure("  times faster", ratio, "x", 4.0 if workers == 2 else None, at_least=True))
        else:
            figures.append(Figure("  TensorFlow's MultiProcessRunner", float("nan"), "s", note=runner.reason))
    return figures


def measure_hosts(harness: Harness, rounds: int) -> list[Figure]:
    """Measure starts of fresh clusters over two emulated hosts, in turn with those on this machine."""
    started = time.monotonic()
    hosts = clusters.harness_over("netns[hosts=2]")
    try:
        with clusters.lease(hosts, "multi_worker_mirrored"):
            first = time.monotonic() - started
        ratios = []
        for _ in range(rounds):
            here, there = (clusters.start_seconds(one, "multi_worker_mirrored")[0] for one in (harness, hosts))
            ratios.append(there / here)
    finally:
        hosts.close()
    return [
        Figure("first cluster over two emulated hosts, with its agents and imports", first, "s"),
        Figure("fresh cluster over two hosts / on one machine, median", statistics.median(ratios), "", 1.5),
    ]


def measure_tests(rounds: int, count: int, device: str) -> list[Figure]:
    """Measure the cost of one more test in a warm cluster, without pytest's own cost of a test."""
    on_gpu = device == "gpu"
    costs: dict[str, list[float]] = {kind: [] for kind in sessions.FIXTURES}
    for _ in range(rounds):
        for kind, medians in costs.items():
            medians.append(sessions.steady(sessions.per_test_seconds(kind, count)))
    plain = statistics.median(costs["plain"]) * 1e3
    figures = [
        Figure("pytest's own cost of an empty test, median", plain, "ms", note=f"{rounds} runs of {count} tests")
    ]
    kinds = (("mirrored", 5.0 if on_gpu else 10.0, "1 process"), ("multi_worker_mirrored", 20.0, "2 workers"))
    for kind, target, processes in kinds:
        cost = statistics.median(costs[kind]) * 1e3 - plain
        figures.append(Figure(f"next test in a warm cluster on top of that, {processes}, median", cost, "ms", target))
    return figures


def measure_memory(harness: Harness) -> list[Figure]:
    figures = []
    for variant in ("mirrored", "multi_worker_mirrored", "multi_worker_mirrored[workers=4]"):
        ranks = clusters.memory(harness, variant)
        largest = max(rank.proportional for rank in ranks)
        note = f"shared by {len(ranks)} rank(s) and the zygote"
        figures.append(Figure(f"proportional memory of a rank, {variant}", largest, "MB", 60.0, note=note))
        private = max(rank.private for rank in ranks)
        figures.append(Figure("  of it private: what one more rank costs", private, "MB"))
    return figures


def measure_unused(pairs: int) -> list[Figure]:
    """Measure what the installed plugin costs a run that does not use it."""
    sessions.unused_seconds(True)
    walls, cpus = [], []
    for number in range(pairs):
        # The side that comes first alternates, so that a drift of the machine's speed cancels out.
        first = number % 2 == 0
        one, other = sessions.unused_seconds(first), sessions.unused_seconds(not first)
        used, blocked = (one, other) if first else (other, one)
        walls.append((used[0] - blocked[0]) * 1e3)
        cpus.append((used[1] - blocked[1]) * 1e3)
    note = f"paired with -p no:ddl, of {pairs}"
    return [
        Figure(
            "start-up cost of the plugin installed and unused, median", statistics.median(walls), "ms", 10.0, note=note
        ),
        Figure("  the same in CPU time", statistics.median(cpus), "ms"),
    ]


def measure_verdicts(harness: Harness, rounds: int) -> list[Figure]:
    verdicts = [clusters.verdict_seconds(harness)[0] for _ in range(rounds)]
    note = f"of {rounds}"
    return [
        Figure("failing rank beside a peer in a collective: to the verdict, worst", max(verdicts), "s", 1.0, note=note)
    ]


def measure_equivalence(harness: Harness, rounds: int) -> list[Figure]:
    figures = []
    for variant in ("mirrored", "multi_worker_mirrored"):
        seconds = [comparisons.equivalence_seconds(harness, variant) for _ in range(rounds)]
        name = f"equivalence check of a small model, 4 steps, {variant}, median"
        figures.append(Figure(name, statistics.median(seconds), "s", note=f"of {rounds}, reference included"))
    return figures


def measure_recording(harness: Harness) -> list[Figure]:
    """Measure what recording costs a step, compared with the program's own loop, in turn."""
    seconds = comparisons.recording_seconds(harness)
    step = "step of a small model, mirrored, median"
    return [
        Figure(f"{step}: bare loop", seconds["bare"] * 1e3, "ms"),
        Figure("  with everything recorded", seconds["recorded"] * 1e3, "ms"),
        Figure("  recorded / bare", seconds["recorded"] / seconds["bare"], "x"),
        Figure("  recorded / snapshots alone (observing nothing)", seconds["recorded"] / seconds["unobserved"], "x"),
    ]


def measure_leaks(harness: Harness, count: int) -> list[Figure]:
    """Start many fresh clusters one after the other. Everything that is left of them afterwards is a leak."""
    clusters.start_seconds(harness, "mwms")
    before = clusters.traces(harness)
    seconds = []
    for number in range(count):
        seconds.append(clusters.start_seconds(harness, "mwms")[0])
        if sys.stderr.isatty() or (number + 1) % 100 == 0:
            print(f"{number + 1} of {count} clusters", file=sys.stderr)
    after = clusters.settled(harness, before)
    figures = [
        Figure(f"{count} consecutive fresh clusters: median", statistics.median(seconds), "s"),
        Figure("  p99", percentile(seconds, 0.99), "s", note=f"slowest {max(seconds):.3f} s"),
        Figure("  hung", 0.0, "", 0.0, note=f"none took {clusters.TIMEOUT:.0f} s"),
    ]
    for name, was in asdict(before).items():
        figures.append(Figure(f"  {name} left", asdict(after)[name] - was, "", 0.0, note=f"{was} before"))
    return figures


def show(figures: Sequence[Figure]) -> None:
    for figure in figures:
        target = ""
        if figure.target is not None:
            target = f"{'>=' if figure.at_least else '<='} {figure.target:g}"
        verdict = {True: "ok", False: "MISSED", None: ""}[figure.met]
        value = f"{figure.value:10.3f} {figure.unit:<3}"
        print(f"{figure.name:<{WIDTH}} {value} {target:>8} {verdict:<7}{figure.note}".rstrip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="fresh clusters of each size (default: 20)")
    parser.add_argument("--tests", type=int, default=200, help="empty tests in a run (default: 200)")
    parser.add_argument(
        "--pairs", type=int, default=30, help="pairs of pytest runs for the start-up cost (default: 30)"
    )
    parser.add_argument(
        "--clusters", type=int, default=1000, help="consecutive fresh clusters (default: 1000; 0: none)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        help="starts, hosts, tests, memory, unused, verdicts, equivalence, recording or leaks, and, only if they are "
        "named, smoke and core: tiers of the suite",
    )
    parser.add_argument("--processes", type=int, default=4, help="of pytest, for the tiers (default: 4)")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="device of the replicas (default: cpu)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    os.environ["PYTEST_DDL_DEVICE"] = options.device
    with tempfile.TemporaryDirectory(prefix="ddl-benchmark-") as folder:
        # A folder only for this run, so that its leftovers can be distinguished from those of other programs.
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        report(options, parser)


def report(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measure the requested parts, and show the figures."""
    started = time.monotonic()
    on_gpu = options.device == "gpu"
    harness = clusters.warm_harness()
    parts: dict[str, Callable[[], list[Figure]]] = {
        "starts": lambda: (measure_starts_on_gpus if on_gpu else measure_starts)(harness, options.rounds),
        "hosts": lambda: measure_hosts(harness, options.rounds),
        "tests": lambda: measure_tests(3, options.tests, options.device),
        "memory": lambda: measure_memory(harness),
        "unused": lambda: measure_unused(options.pairs),
        "verdicts": lambda: measure_verdicts(harness, 10),
        "equivalence": lambda: measure_equivalence(harness, 5),
        "recording": lambda: measure_recording(harness),
        "leaks": lambda: measure_leaks(harness, options.clusters) if options.clusters else [],
        **{tier: partial(measure_tier, options.device, tier, options.processes) for tier in TIERS},
    }
    unknown = set(options.only or ()) - parts.keys()
    if unknown:
        parser.error(f"--only has no part {', '.join(sorted(unknown))}; valid: {', '.join(parts)}")
    figures: list[Figure] = []
    for name, measure in parts.items():
        if name in options.only if options.only else name not in TIERS:
            measured = measure()
            show(measured)
            figures += measured
    harness.close()
    print(f"{clusters.machine()}, {time.monotonic() - started:.0f} s")
    if options.json is not None:
        rows = [{**asdict(figure), "met": figure.met} for figure in figures]
        options.json.write_text(json.dumps({"machine": clusters.machine(), "figures": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
