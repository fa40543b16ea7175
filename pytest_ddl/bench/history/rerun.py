"""Confirm a candidate with the gate, which runs both commits at the same time and in turn."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pytest_ddl.bench.history.confirm import RERUN, Confirm, NotRerunError, at_most
from pytest_ddl.bench.history.detect import ChangeVerdict
from pytest_ddl.bench.history.meaning import family, higher_is_better, leaf, variant, whole_workload, workload
from pytest_ddl.bench.history.model import Series
from pytest_ddl.bench.metrics import METRICS, NoNumberError

NUMBERS = ("budget", "launches", "false_alarms", "margin")
"""Fields of :class:`~pytest_ddl.bench.gate.plan.GatePlan` that can be given. All others are fields of ``BenchSpec``."""
WANTED = "this re-run is about times; counters have their own series"


def gate_confirmation(
    repository: Path,
    targets: Sequence[str],
    options: Sequence[str] = (),
    machine: str | None = None,
    gate: Callable[..., Any] | None = None,
    reruns: int = 10,
    tell: Callable[[str], None] = lambda _: None,
) -> Confirm:
    """Return the function for :func:`~pytest_ddl.bench.history.confirm.confirm_all` that runs the gate.

    :param targets: ``[WORKLOAD=]MODULE:FUNCTION``; one without a workload is for all other workloads.
    :param options: ``NAME=VALUE``, with a name from ``NUMBERS`` or a field of ``BenchSpec``.
    :param machine: asv's name of this machine; by default its host name and those in ``~/.asv-machine.json``.
    :param gate: is used instead of :func:`pytest_ddl.bench.gate.gating.gate`.
    :param reruns: maximum number of re-runs; only those that were measured count.
    :param tell: is called with a line for each re-run, because a re-run takes minutes.
    :raises ValueError: if an argument cannot be used.
    """
    from pytest_ddl.bench.counters.changes import NAMES
    from pytest_ddl.bench.gate.gating import gate as own_gate
    from pytest_ddl.bench.git import GitError

    functions = _functions(targets)
    # A counter that became worse would end the gate before it measures enough times.
    accept = {name: WANTED for name in NAMES if name not in ("eager", "steady_steps")}
    given = {"repository": repository, "accept": accept, **_options(options)}
    here = {machine} if machine else known_names()

    def measured(before: str, after: str, target: str, strategy: str, **how: Any) -> Any:
        tell(f"re-running {before[:8]} and {after[:8]}: {target}, {strategy}")
        return (gate or own_gate)(before, after, target, strategy, **how)

    limited = at_most(reruns, measured)

    def confirm(before: str, after: str, series: Series) -> ChangeVerdict:
        if series.machine not in here:
            raise NotRerunError(
                f"the results are from {series.machine}, and this machine is {', '.join(sorted(here))}: run this "
                f"there, or give --machine {series.machine} if it is the same machine"
            )
        names = (workload(series), whole_workload(series), "")
        target = next((functions[name] for name in names if name in functions), None)
        if target is None:
            raise NotRerunError(f"no --target was given for the workload {workload(series)}")
        found = variant(series)
        if found is None:
            raise NotRerunError("it does not measure a training function, and the gate re-runs only these")
        strategy = _text(found.strategy, found.replicas)
        try:
            result = limited(before, after, target, strategy, **given)
        except (GitError, ValueError) as error:
            raise NotRerunError(f"the gate could not run: {error}") from error
        cell = result.cells[0]
        if family(series.benchmark).name in RERUN:
            return judged(cell.verdict.value, cell.reason, cell.decision)
        return _other_metric(cell, series, result.margin)

    return confirm


def known_names(path: Path | None = None) -> set[str]:
    """Return the names under which asv may store results of this machine."""
    names = {platform.node()}
    try:
        data = json.loads((path or Path.home() / ".asv-machine.json").read_text(encoding="utf-8"))
        names |= {name for name in data if name != "version"}
    except (OSError, ValueError, TypeError):
        pass
    return names


def _functions(targets: Sequence[str]) -> dict[str, str]:
    functions: dict[str, str] = {}
    for text in targets:
        name, equals, function = text.partition("=")
        function, name = (function, name) if equals else (text, "")
        place, colon, last = function.rpartition(":")
        if not (colon and place and last.isidentifier()):
            raise ValueError(f"--target={text!r} must be [WORKLOAD=]MODULE:FUNCTION, as in Cnn=benchmarks.training:cnn")
        functions[name] = function
    if not functions:
        raise ValueError("--confirm needs --target [WORKLOAD=]MODULE:FUNCTION: the training function to run again")
    return functions


def _options(options: Sequence[str]) -> dict[str, Any]:
    from pytest_ddl.bench.launching.records import BenchSpec

    names = {one.name for one in fields(BenchSpec)}
    plan: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    for text in options:
        name, _, value = text.partition("=")
        try:
            read: Any = json.loads(value)
        except ValueError:
            read = value
        if name in NUMBERS and isinstance(read, int | float):
            plan[name] = read
        elif name in names:
            spec[name] = read
        else:
            valid = ", ".join((*NUMBERS, *sorted(names)))
            raise ValueError(f"--confirm-option={text!r} must be NAME=VALUE with one of {valid}")
    return {**plan, "bench": BenchSpec(**spec)}


def _text(strategy: str, replicas: int) -> str:
    """Return the variant of a strategy with this number of replicas, in the gate's notation."""
    from pytest_ddl.bench.matrix import sized_variant
    from pytest_ddl.harness import process_harness

    if "[" in strategy or not replicas:
        return strategy
    return sized_variant(process_harness().registry, strategy, replicas) or strategy


def judged(verdict: str, reason: str, decision: Any) -> ChangeVerdict:
    """Translate the gate's verdict into one on a candidate.

    A regression confirms it. A pass or an improvement refutes it. Anything else leaves it unconfirmed.
    """
    effect = None if decision is None or not math.isfinite(decision.ratio) else decision.ratio - 1
    about = f"re-run, {decision.launches} launches: {reason}" if decision is not None else f"re-run: {reason}"
    if verdict == "regression":
        return ChangeVerdict("confirmed", about, effect)
    if verdict in ("pass", "improvement"):
        return ChangeVerdict("refuted", about, effect)
    return ChangeVerdict("unconfirmed", about, effect)


def _other_metric(cell: Any, series: Series, margin: float) -> ChangeVerdict:
    """Judge memory, energy and similar metrics: apply the same rule to their values in the re-run's launches."""
    from pytest_ddl.bench.gate.verdict import Rule, decide

    name = leaf(series.benchmark)
    metric = METRICS.get(name)
    if metric is None or metric.scope != "launch" or metric.of is None:
        return ChangeVerdict("unconfirmed", f"{name} is not a metric of a launch, and the gate re-runs only these")
    sign = -1 if higher_is_better(series.benchmark) else 1
    try:
        pairs = [(metric.of(one.base), metric.of(one.head)) for one in cell.launches if not one.load.problem]
        ratios = [sign * math.log(head / base) for base, head in pairs]
    except (NoNumberError, ValueError, ZeroDivisionError) as error:
        return ChangeVerdict("unconfirmed", f"the re-run has no {name}: {error}")
    if len(ratios) < 3:
        return ChangeVerdict(
            "unconfirmed", f"the re-run has {len(ratios)} calm launches, but 3 are needed: {cell.reason}"
        )
    decision = decide(ratios, Rule(margin=margin, looks=(len(ratios),)), name)
    return judged(decision.verdict.value, decision.reason, decision)
