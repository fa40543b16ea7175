"""Simulate how often the history finds a change, and how often it alerts wrongly, with the gate's rule of decision.

``python -m tests.bench.history.power`` prints the table in docs/history.md. Series have 50 commits and normal noise of
a given coefficient of variation. A candidate is re-run as the gate does it. The log ratios of its launches have a
standard deviation of .7 % (measured, two workers, calm machine), and
:class:`pytest_ddl.bench.gate.verdict.Rule` decides when to look at them.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pytest_ddl.bench.gate.verdict import Rule
from pytest_ddl.bench.history.confirm import Confirm, Confirmations, confirm_all
from pytest_ddl.bench.history.detect import ChangeVerdict, changes
from pytest_ddl.bench.history.model import Benchmark, Commit, HistoryPoint, Series
from pytest_ddl.bench.history.rerun import judged
from tests.bench.gate.made import replay

COMMITS = 50
LAUNCH_SD = 0.007
STEP = Benchmark("training.Gate.track_step_time", "seconds", "1", ("strategy", "replicas"))
THROUGHPUT = Benchmark(
    "training.Dash.track_throughput", "examples/s", "1", ("strategy", "replicas"), {"higher_is_better": True}
)


def simulated(
    level: Callable[[int], float], cv: float, seed: int, count: int = COMMITS, kind: Benchmark = STEP
) -> Series:
    """A series whose step takes ``level(commit)`` seconds; of throughput, its reciprocal."""
    rng = random.Random(seed)
    values = [level(number) * math.exp(rng.gauss(0, cv)) for number in range(count)]
    if kind is THROUGHPUT:
        values = [1 / value for value in values]
    points = tuple(HistoryPoint(Commit(number, f"{number:040x}", number), value) for number, value in enumerate(values))
    return Series("runner", "env", kind, (("strategy", "mirrored"), ("replicas", "2")), points)


def gate_of(level: Callable[[int], float], sd: float, seed: int) -> Confirm:
    """The gate on commits whose step takes ``level(commit)``."""
    rng = random.Random(f"gate/{seed}")

    def confirm(before: str, after: str, _series: Series) -> ChangeVerdict:
        truth = math.log(level(int(after, 16)) / level(int(before, 16)))
        rule = Rule()
        decision = replay([rng.gauss(truth, sd) for _ in range(rule.looks[-1])], rule)
        return judged(decision.verdict.value, decision.reason, decision)

    return confirm


@dataclass(frozen=True)
class Rates:
    """Shares of the series."""

    candidates: float
    """Share of series with at least one candidate."""
    alerts: float
    """Share of series with at least one confirmed regression."""
    placed: float
    """Share of series with a confirmed regression whose range has the commit that caused it."""
    reruns: float
    """Mean number of re-runs."""


def rates(
    level: Callable[[int], float], cv: float, series: int, culprit: int | None = None, sd: float = LAUNCH_SD,
    count: int = COMMITS, kind: Benchmark = STEP,
) -> Rates:  # fmt: skip
    """Detect and confirm in so many simulated series."""
    seen: Counter[str] = Counter()
    for seed in range(series):
        one = simulated(level, cv, seed, count, kind)
        places = {point.commit.hash: point.commit.position for point in one.points}
        calls: list[str] = []
        found = changes(one)
        gate = gate_of(level, sd, seed)

        def counted(
            before: str, after: str, series: Series, gate: Confirm = gate, calls: list[str] = calls
        ) -> ChangeVerdict:
            calls.append(before)
            return gate(before, after, series)

        done = confirm_all(found, counted, Confirmations(None, []), places)
        alerts = [change for change in done if change.alerts]
        seen["candidates"] += any(change.is_candidate for change in found)
        seen["alerts"] += bool(alerts)
        seen["placed"] += culprit is not None and any(
            change.before.position < culprit <= change.after.position for change in alerts
        )
        seen["reruns"] += len(calls)
    return Rates(*(seen[name] / series for name in ("candidates", "alerts", "placed", "reruns")))


def flat(_number: int) -> float:
    return 0.02


def step_at(commit: int, size: float) -> Callable[[int], float]:
    return lambda number: 0.02 * (1 + size if number >= commit else 1)


def creeping(size: float, count: int = COMMITS) -> Callable[[int], float]:
    """A little slower with every commit, up to ``size`` in all."""
    return lambda number: 0.02 * (1 + size * number / (count - 1))


def found_by_asv(level: Callable[[int], float], cv: float, series: int) -> float:
    """The share in which ``asv publish`` lists a regression, with its default threshold of 5 %."""
    from asv.step_detect import detect_regressions, detect_steps

    listed = 0
    for seed in range(series):
        steps = detect_steps([point.value for point in simulated(level, cv, seed).points])
        listed += detect_regressions(steps, threshold=0.05)[0] is not None
    return listed / series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=400)
    series = parser.parse_args().series
    print(f"{series} series each          candidates  alerts  placed  re-runs")
    for cv in (0.01, 0.02, 0.03, 0.05):
        show(f"flat, cv {cv:.0%}", rates(flat, cv, series))
    for cv in (0.01, 0.02, 0.03, 0.05):
        show(f"+5 %, cv {cv:.0%}, 10 after", rates(step_at(40, 0.05), cv, series, 40))
    show("flat, cv 5%, busy gate", rates(flat, 0.05, series, sd=0.024))
    show("+5 %, cv 2%, busy gate", rates(step_at(40, 0.05), 0.02, series, 40, sd=0.024))
    for after in (2, 3, 5):
        show(f"+5 %, cv 2%, {after} after", rates(step_at(COMMITS - after, 0.05), 0.02, series, COMMITS - after))
        show(f"+10 %, cv 2%, {after} after", rates(step_at(COMMITS - after, 0.1), 0.02, series, COMMITS - after))
    show("throughput +5 %, cv 2%", rates(step_at(40, -0.05), 0.02, series, 40, kind=THROUGHPUT))
    for size in (0.05, 0.08):
        show(f"creep to +{size:.0%}, cv 2%", rates(creeping(size), 0.02, series))
        show(f"creep to +{size:.0%}, cv 1%", rates(creeping(size), 0.01, series))
    print(f"asv publish finds of +5 %, cv 2%, 10 after: {found_by_asv(step_at(40, 0.05), 0.02, series):.1%}")
    show("flat, 200 commits, cv 2%", rates(flat, 0.02, series // 2, count=200))


def show(name: str, found: Rates) -> None:
    print(f"{name:26}{found.candidates:9.1%}{found.alerts:9.1%}{found.placed:8.1%}{found.reruns:9.2f}", flush=True)


if __name__ == "__main__":
    main()
