"""Measure the gate's error rates on this machine: ``python asv_bench/gate_power.py --launches 60 --cell one_device``.

The script collects real launches of a small training function. It compares the function with itself (``--effect 0``)
and with one that takes 5 % longer (``--effect 5``: every step is kept busy for 5 % longer). Then it replays the gate's
decisions over disjoint groups of launches. Every launch is kept in ``--results``, so that an interrupted run continues
at the same place.

``--device gpu`` measures on a GPU. The counters of both versions are compared too: they have no noise, so a change of
any of them would be a false alarm.

``--gates 10 --load 4`` runs the gate itself ten times instead, beside four busy processes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest_ddl
from pytest_ddl.bench.counters import compare, uncounted
from pytest_ddl.bench.gate.cell import Cell, measure_cell
from pytest_ddl.bench.gate.lockstep import GROUPS, LAUNCHES, VersionPair
from pytest_ddl.bench.gate.plan import GatePlan
from pytest_ddl.bench.gate.result import CellResult
from pytest_ddl.bench.gate.sides import Side
from pytest_ddl.bench.gate.target import VersionTarget
from pytest_ddl.bench.gate.verdict import Rule, Verdict, decide_launches
from pytest_ddl.bench.gate.worktrees import write_instrument
from pytest_ddl.bench.launching.records import BenchSpec

DRAWS = 2000
"""Number of gate runs over launches drawn with replacement (the bootstrap; Efron 1979).

They give more precise rates than the few disjoint runs, but they cannot show effects that are not in the launches.
Launches of one pair of interpreters are drawn together."""
TARGET = VersionTarget.parse("program:train")
RANKS = {"one_device": 1, "multi_worker_mirrored": 2, "mirrored": 1}
PROGRAM = '''
"""A training step of a small MLP that takes {factor} times as long as it does by itself."""
import time

import keras
import numpy as np
import tensorflow as tf


def train(run):
    with run.strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=optimizer)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(512, 64)).astype("float32"), generator.integers(0, 10, 512)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(run.global_batch_size).cache().repeat()

    @tf.function
    def one_step(iterator):
        def replica_step(batch):
            inputs, labels = batch
            with tf.GradientTape() as tape:
                logits = model(inputs, training=True)
                losses = keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=run.global_batch_size)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(next(iterator),)), axis=None)

    def train_step(iterator):
        begun = time.perf_counter()
        loss = one_step(iterator)
        loss.numpy()  # on a GPU, the call returns before the step has ended
        until = begun + (time.perf_counter() - begun) * {factor}
        while time.perf_counter() < until:
            pass
        return loss

    for _ in run.steps(train_step, dataset):
        pass
'''


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python asv_bench/gate_power.py", description=__doc__)
    parser.add_argument("--launches", type=int, default=0, metavar="N", help="of each cell and effect, in all runs")
    parser.add_argument("--cell", nargs="+", choices=sorted(RANKS), default=["one_device", "multi_worker_mirrored"])
    parser.add_argument("--effect", nargs="+", type=int, choices=(0, 5), default=[0, 5], metavar="PERCENT")
    parser.add_argument("--gates", type=int, default=0, metavar="N", help="of each cell and effect; none are kept")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="busy processes beside the measurement")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no launch after so long")
    parser.add_argument("--batch-per-replica", type=int, default=64)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="of the replicas (default: cpu)")
    parser.add_argument("--groups", type=int, default=GROUPS, help="ABBA groups in a launch")
    parser.add_argument("--results", type=Path, default=Path("build/gate"), help="where launches are kept")
    parser.add_argument("--calm", action="store_true", help="replay the launches of a calm machine alone")
    options = parser.parse_args(arguments)
    options.results.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.minutes * 60
    bench = BenchSpec(batch_per_replica=options.batch_per_replica, device=options.device)
    with busy(options.load):
        # Cells and effects take turns, so that a change of the machine affects all of them.
        for number in range(LAUNCHES, options.launches + LAUNCHES, LAUNCHES):
            for cell in options.cell:
                for effect in options.effect:
                    kept = len(read(options.results, cell, effect))
                    numbers = range(kept, min(number, options.launches))
                    if numbers and time.monotonic() < end:
                        for one in collect(cell, effect, numbers, bench, options.groups, end):
                            with file_of(options.results, cell, effect).open("a", encoding="utf-8") as file:
                                file.write(json.dumps(one) + "\n")
                            print(told(one), flush=True)
        for number in range(options.gates):
            for cell in options.cell:
                for effect in options.effect:
                    if time.monotonic() < end:
                        result = run_gate(cell, effect, bench)
                        told_of = f"{cell} +{effect} % gate {number + 1}: {result.verdict.value}"
                        print(f"{told_of}, {result.seconds:.0f} s: {result.reason}", flush=True)
    show(options.results, options.cell, options.effect, options.calm)
    return 0


def file_of(folder: Path, cell: str, effect: int) -> Path:
    return folder / f"{cell}-{effect}.jsonl"


def read(folder: Path, cell: str, effect: int) -> list[dict[str, Any]]:
    path = file_of(folder, cell, effect)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run this many processes beside the measurement, each of which keeps a core busy."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def both_sides(effect: int) -> Iterator[list[Side]]:
    """Yield the program, and one that takes ``effect`` percent longer, as sides that can be launched."""
    with tempfile.TemporaryDirectory(prefix="gate-power-") as name:
        folder = Path(name).resolve()
        instrument = write_instrument(folder, own=False)
        sides = []
        for side, factor in (("BASE", 1.0), ("HEAD", 1.0 + effect / 100)):
            root = folder / side.lower()
            root.mkdir()
            (root / "program.py").write_text(PROGRAM.format(factor=factor), encoding="utf-8")
            package = Path(pytest_ddl.__file__).resolve()
            sides.append(Side(side, f"x {factor}", root, (root,), folder / "nowhere", instrument, package))
        yield sides


def collect(
    cell: str, effect: int, numbers: Sequence[int], bench: BenchSpec, groups: int, end: float = math.inf
) -> Iterator[dict[str, Any]]:
    """Launch both versions in turn, as the gate does, and yield the data that it would keep of each launch.

    :param numbers: numbers of the launches, at most as many as one pair of interpreters makes. The field ``pair``
        distinguishes them from launches of other pairs.
    :param end: ``time.monotonic`` after which no launch begins.
    """
    with both_sides(effect) as sides, VersionPair(*sides, TARGET, cell, RANKS[cell], bench, groups=groups) as pair:
        for number in numbers:
            if time.monotonic() < end:
                launch = pair.launch(number)
                told = launch.as_json()
                del told["provenance"]
                told["counters"] = [change.message for change in compare(launch.base.counters, launch.head.counters)]
                told["uncounted"] = uncounted(launch.base.counters, launch.head.counters)
                told["device"] = launch.base.device
                fixed = {"cell": cell, "effect": effect, "number": number, "pair": numbers[0], "cores": os.cpu_count()}
                yield {**fixed, **told}


def run_gate(cell: str, effect: int, bench: BenchSpec) -> CellResult:
    """Run the gate itself with its default settings."""
    with both_sides(effect) as (base, head):
        return measure_cell(Cell(base, head, TARGET, cell, RANKS[cell], bench, Rule(), GatePlan.budget))


def told(one: dict[str, Any]) -> str:
    foreign = one["load"]["foreign_cores"]
    return (
        f"{one['cell']} +{one['effect']} % launch {one['number'] + 1}: {math.expm1(one['log_ratio']) * 100:+.2f} %, "
        f"{one['seconds']:.1f} s, foreign {foreign if foreign is None else round(foreign, 2)} cores"
        + (" (overloaded)" if one["load"]["problem"] else "")
    )


def gate_runs(launches: Sequence[dict[str, Any]], rule: Rule) -> list[tuple[Verdict, int]]:
    """Cut launches into disjoint runs of the gate, each as long as a real one, with interpreters of its own.

    Launches on an overloaded machine are set aside, as the gate does. A last run with too few launches is left out.
    """
    left = [one for one in launches if not one["load"]["problem"]]
    runs = []
    while left:
        for look in rule.looks:
            if look > len(left):
                return runs
            medians, totals = ([one[name] for one in left[:look]] for name in ("log_ratio", "total_ratio"))
            decision = decide_launches(medians, totals, rule)
            if decision.verdict is not Verdict.INCONCLUSIVE or look == rule.looks[-1]:
                runs.append((decision.verdict, look))
                last = left[look - 1]["pair"]
                left = [one for one in left[look:] if one["pair"] != last]
                break
    return runs


def pairs_of(launches: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group the launches by pair of interpreters."""
    found: dict[int, list[dict[str, Any]]] = {}
    for one in launches:
        found.setdefault(one["pair"], []).append(one)
    return list(found.values())


def drawn(launches: Sequence[dict[str, Any]], rule: Rule) -> list[tuple[Verdict, int]]:
    """Simulate runs of the gate on launches drawn with replacement, those of a pair of interpreters together."""
    chance, pairs, runs = random.Random(0), pairs_of(launches), []
    for _ in range(DRAWS):
        chosen: list[dict[str, Any]] = []
        while len(chosen) < rule.looks[-1]:
            chosen += chance.choice(pairs)
        runs.append(gate_runs(chosen, rule)[0])
    return runs


def between_pairs(launches: Sequence[dict[str, Any]]) -> str:
    """Describe the variation within and between pairs of interpreters (one-way analysis of variance; Fisher 1925)."""
    from scipy.stats import f_oneway

    groups = [[one["log_ratio"] for one in pair] for pair in pairs_of(launches) if len(pair) > 1]
    if len(groups) < 2:
        return "too few"
    within = math.sqrt(statistics.fmean(statistics.variance(group) for group in groups))
    return f"sd {within * 100:.2f} % within {len(groups)} pairs, p = {f_oneway(*groups).pvalue:.2f} for equal means"


def of_counters(launches: Iterable[dict[str, Any]]) -> str:
    """Say in how many launches a counter differed between the two versions, which do the same work."""
    # Launches of earlier versions of this script have none.
    known = [one for one in launches if "counters" in one]
    counted = [one for one in known if not one["uncounted"]]
    changed = [one for one in counted if one["counters"]]
    what = f"; first: {changed[0]['counters'][0]}" if changed else ""
    return f"changed in {len(changed)} of {len(counted)} launches, not counted in {len(known) - len(counted)}{what}"


def slower(one: dict[str, Any], by: float = 1.05) -> dict[str, Any]:
    """Return the launch as if every step of HEAD had taken ``by`` times as long."""
    return {**one, **{name: one[name] + math.log(by) for name in ("log_ratio", "total_ratio")}}


def rates(runs: Iterable[tuple[Verdict, int]]) -> str:
    found = list(runs)
    if not found:
        return "no complete run"
    counts = Counter(verdict.value for verdict, _ in found)
    shares = ", ".join(f"{name} {count}/{len(found)} ({count / len(found):.1%})" for name, count in counts.items())
    return f"{shares}; launches of a run: mean {statistics.fmean(n for _, n in found):.1f}"


def show(folder: Path, cells: Sequence[str], effects: Sequence[int], calm: bool) -> None:
    """Print the spread of the launches and the gate's verdicts. A REGRESSION with effect 0 is a false alarm."""
    rule = Rule()
    for cell in cells:
        for effect in effects:
            launches = read(folder, cell, effect)
            if calm:
                launches = [one for one in launches if not one["load"]["problem"]]
            if len(launches) < 2:
                continue
            values = [one["log_ratio"] for one in launches]
            seconds = [one["seconds"] for one in launches]
            overloaded = sum(bool(one["load"]["problem"]) for one in launches)
            print(
                f"\n{cell}, effect +{effect} %: {len(launches)} launches ({overloaded} of an overloaded machine), "
                f"mean {math.expm1(statistics.fmean(values)) * 100:+.2f} %, sd {statistics.stdev(values) * 100:.2f} %, "
                f"min {math.expm1(min(values)) * 100:+.2f} %, max {math.expm1(max(values)) * 100:+.2f} %, "
                f"{statistics.median(seconds):.1f} s a launch"
            )
            print(f"  counters: {of_counters(launches)}")
            print(f"  of one pair of interpreters: {between_pairs(launches)}")
            print(f"  in the order measured, disjoint: {rates(gate_runs(launches, rule))}")
            calm_ones = [one for one in launches if not one["load"]["problem"]]
            if len(calm_ones) >= rule.looks[-1]:
                print(f"  {DRAWS} runs of launches drawn from them: {rates(drawn(calm_ones, rule))}")
                if effect == 0:
                    # Computed, because an injected wait costs more than it lasts: threads that spin go to sleep.
                    print(f"  and had HEAD been 5 % slower: {rates(drawn([slower(one) for one in calm_ones], rule))}")
            trusting = [{**one, "load": {"problem": ""}} for one in launches]
            if overloaded:
                print(f"  had no launch been set aside: {rates(gate_runs(trusting, rule))}")


if __name__ == "__main__":
    sys.exit(main())
