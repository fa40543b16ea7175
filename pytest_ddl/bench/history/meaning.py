"""Determine the meaning of a series: its metric, whether more is better, its strategy, replicas and workload."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_ddl.bench.history.model import Benchmark, Series
from pytest_ddl.bench.metrics import METRICS, Metric
from pytest_ddl.bench.metrics.counts import COUNTS
from pytest_ddl.web.units import TIMES


@dataclass(frozen=True)
class Family:
    """Kind of number, and how the page shows it."""

    name: str
    title: str
    pattern: str
    """Pattern for names of benchmarks that are not our metrics. They belong to the first family that matches."""
    higher_is_better: bool | None
    """Default for benchmarks that do not say it; ``None`` if neither direction is better."""
    explanation: str
    exact: bool = False
    """True if the number is counted, so that any change is real, however small."""
    ideal: float | None = None
    derived: bool = False
    """True if it compares a variant's step with the step of one replica. It gets worse if the latter gets faster."""


FAMILIES: tuple[Family, ...] = (
    Family(
        "overhead",
        "Scaling overhead",
        r"overhead",
        False,
        "Cost of scaling: N·T(N)/T(1), the reciprocal of the efficiency. 1 is ideal.",
        ideal=1.0,
        derived=True,
    ),
    Family(
        "efficiency",
        "Scaling efficiency",
        r"efficiency",
        True,
        "Throughput with N replicas, divided by N times the throughput of one replica. 100 % is ideal.",
        ideal=1.0,
        derived=True,
    ),
    Family(
        "energy",
        "Energy",
        r"joule|energy|watt",
        False,
        "Energy of the parts of the machine that its hardware counters cover.",
    ),
    Family("throughput", "Throughput", r"throughput|per_second", True, "Examples per second in steady steps."),
    Family(
        "first_step",
        "Time to the first step",
        r"first_step|time_to_first|build_time|warm_?up",
        False,
        "Time of building, tracing and compiling, which is spent only once.",
    ),
    Family(
        "communication",
        "Communication",
        r"comm(unication)?_|comm$|exposed",
        False,
        "The part of a step in which replicas wait for each other's gradients.",
        derived=True,
    ),
    Family(
        "counters",
        "Counters",
        "|".join((*COUNTS, "reductions", "packs", "counter")),
        False,
        "Counted in the graphs that ran. They are the same on every machine, so every change is real.",
        exact=True,
    ),
    Family(
        "step",
        "Step time",
        r"step_time|step_seconds|seconds_per_(step|1k)|step$",
        False,
        "Seconds per steady step of the slowest replica. Devices had finished before the clock was read.",
    ),
    Family("memory", "Memory", r"memory|peak|rss", False, "Peak memory of the largest rank."),
    Family("other", "Other benchmarks", r"", False, "Benchmarks that are not about one training step."),
)
MORE_IS_BETTER = re.compile(r"bandwidth|busbw|algbw|per_second|per_joule|speed_?up|accuracy")
_NAMED = {one.name: one for one in FAMILIES}
NEUTRAL = {"packs", *(name for name, count in COUNTS.items() if not count.judged)}
"""Counters that are reported but not judged, as in the gate: more of them can be better or worse."""
BY_CHANCE = {name for name, count in COUNTS.items() if not count.exact}
"""Counters that differ from run to run if batches are ragged. Only whether they are zero is exact."""
STRATEGY, REPLICAS = ("strategy", "variant"), ("replicas", "n_replicas", "num_replicas", "workers")


def leaf(benchmark: Benchmark) -> str:
    """Return the name of the metric: ``throughput`` for ``training.Dash.track_throughput``."""
    return re.sub(r"^(track|time|timeraw|mem|peakmem)_", "", benchmark.name.rsplit(".", 1)[-1])


def family(benchmark: Benchmark) -> Family:
    """Return the family of a benchmark.

    The sources are, in this order: the benchmark's attribute ``metric`` if it is the name of a family, our metric or
    count of the same name, and the name itself. A metric without a family has one of its own.
    """
    said = benchmark.attributes.get("metric")
    if isinstance(said, str) and said in _NAMED:
        return _NAMED[said]
    name = leaf(benchmark)
    if benchmark.name.rsplit(".", 1)[-1].startswith(("peakmem_", "mem_")):
        return _NAMED["memory"]
    if name in COUNTS:
        return _NAMED["counters"]
    metric = METRICS.get(name)
    if metric is None:
        return next(one for one in FAMILIES if re.search(one.pattern, name))
    return _NAMED[metric.family] if metric.family else _own_family(metric)


def _own_family(metric: Metric) -> Family:
    title = metric.name.replace("_", " ").capitalize()
    explanation = f"{metric.summary[:1].upper()}{metric.summary[1:]}."
    return Family(metric.name, title, "", metric.higher_is_better, explanation)


def higher_is_better(benchmark: Benchmark) -> bool | None:
    """Return whether more is better, or ``None`` if neither direction is.

    The sources are, in this order: the benchmark's own ``higher_is_better``, our metric of the same name, and the name
    itself. asv 0.6.6 copies the attribute into ``benchmarks.json``, but treats every metric as lower-is-better.
    """
    name = leaf(benchmark)
    if name in NEUTRAL:
        return None
    said = benchmark.attributes.get("higher_is_better")
    if isinstance(said, bool):
        return said
    if name in METRICS:
        return METRICS[name].higher_is_better
    if MORE_IS_BETTER.search(name):
        return True
    return family(benchmark).higher_is_better


def is_exact(benchmark: Benchmark) -> bool:
    said = benchmark.attributes.get("deterministic")
    return said if isinstance(said, bool) else family(benchmark).exact


@dataclass(frozen=True, order=True)
class Variant:
    """Strategy and number of replicas of a training: one row of the matrix."""

    strategy: str
    replicas: int

    def __str__(self) -> str:
        base = self.strategy.partition("[")[0]
        if not self.replicas or (base == "one_device" and self.replicas == 1):
            return base
        return f"{base} {TIMES} {self.replicas}"


def variant(series: Series) -> Variant | None:
    """Return the strategy and number of replicas of a series, or ``None`` for benchmarks without a strategy."""
    given = dict(series.parameters)
    strategy = next((given[name] for name in STRATEGY if name in given), None)
    if strategy is None:
        return None
    count = next((given[name] for name in REPLICAS if given.get(name, "").isdigit()), None)
    shape = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", strategy)}
    if count is not None:
        replicas = int(count)
    elif strategy.startswith("one_device"):
        replicas = 1
    elif shape:
        replicas = shape.get("replicas", 1) * shape.get("workers", 1)
    else:
        replicas = 0
    return Variant(strategy, replicas)


def workload(series: Series) -> str:
    """Return the short name for what series shown together have in common: the model, or the suite.

    It consists of the parameters other than strategy and replicas. Without such parameters it is the suite: ``Cnn`` for
    ``training.GateCnn.track_step_time``, ``training`` for ``training.Gate.…``. If two suites would get the same name,
    it is :func:`whole_workload`.
    """
    if series.clashes:
        return whole_workload(series)
    return ", ".join(_others(series)) or _suites(series)[-1]


def whole_workload(series: Series) -> str:
    """Return the unique name of a workload, with the module of its suite: ``training.Cnn`` or ``training(cnn)``."""
    suite, others = ".".join(_suites(series)), ", ".join(_others(series))
    return f"{suite}({others})" if others else suite


def mark_clashes(series: Iterable[Series]) -> tuple[Series, ...]:
    """Return the same series, and mark those whose workload has the same name as one of another suite."""
    all_of_them = tuple(series)
    called: dict[str, set[str]] = defaultdict(set)
    for one in all_of_them:
        called[workload(one)].add(whole_workload(one))
    return tuple(replace(one, clashes=len(called[workload(one)]) > 1) for one in all_of_them)


def _others(series: Series) -> list[str]:
    return [value for name, value in series.parameters if name not in STRATEGY + REPLICAS]


def _suites(series: Series) -> list[str]:
    *modules, _function = series.benchmark.name.split(".")
    return [name for part in modules if (name := re.sub(r"^(Gate|Dash)", "", part))] or ["training"]
