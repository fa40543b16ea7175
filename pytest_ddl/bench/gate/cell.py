"""Measure one cell of the gate: launch one target under one variant until there is a verdict."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pytest_ddl.bench.counters.changes import NOT_COUNTED, CounterChange, compare_launches, uncounted
from pytest_ddl.bench.gate.canary import network_problem
from pytest_ddl.bench.gate.lockstep import GROUPS, Paired, VersionPair
from pytest_ddl.bench.gate.result import CellResult
from pytest_ddl.bench.gate.sides import MeasurementError, Side
from pytest_ddl.bench.gate.target import VersionTarget
from pytest_ddl.bench.gate.verdict import Decision, Rule, Verdict, decide, decide_launches, percent
from pytest_ddl.bench.launching.records import BenchSpec

EXAMPLES = "examples"
"""Name that ``accept`` may contain in addition to counters. BASE and HEAD may then take batches of different sizes."""
OVERLOADED = 2
"""Overloaded launches that end the measurement of time, if there are more of them than calm ones.

It is also the number of launches that may be made beyond the last look."""
_LARGE = 4.0
"""Slowdown, in margins, which each overloaded launch must show, so that further ones are made on such a machine."""
_STRICT = 0.1
"""Share of the false alarms that a regression on an overloaded machine may use. Load widens the spread of launches, so
the slowdown must be many times the spread."""


@dataclass(frozen=True)
class Cell:
    """Description of one measurement: both versions, the target, and the settings."""

    base: Side
    head: Side
    target: VersionTarget
    strategy: str
    ranks: int
    bench: BenchSpec
    rule: Rule
    budget: float
    """Seconds for the cell. The next launch does not begin if it is expected to end later."""
    accept: Mapping[str, str] = field(default_factory=dict)
    counters_only: bool = False
    cores_per_replica: int = 0
    canary: bool = False
    """True to watch the network between the hosts; see :mod:`pytest_ddl.bench.gate.canary`."""


def measure_cell(
    cell: Cell, tell: Callable[[str], None] = lambda _line: None, launch: Callable[[int], Paired] | None = None
) -> CellResult:
    """Launch until there is a verdict, or until launches or seconds are used up.

    Counters are compared first. They are exact on any machine, so worse counters are always a regression.

    :param tell: is called with a line for each launch.
    :param launch: is used instead of :meth:`VersionPair.launch`.
    """
    if launch is None:
        bench = replace(cell.bench, count_all=cell.counters_only)
        versions = (cell.base, cell.head, cell.target, cell.strategy, cell.ranks, bench)
        groups = 1 if cell.counters_only else GROUPS
        cores, canary = cell.cores_per_replica, cell.canary
        with VersionPair(*versions, groups=groups, cores_per_replica=cores, canary=canary) as pair:
            return measure_cell(cell, tell, pair.launch)
    started = time.monotonic()
    made: list[Paired] = []

    def result(verdict: Verdict, reason: str, decision: Decision | None = None) -> CellResult:
        seconds = time.monotonic() - started
        changes = _changes(made, cell.accept)
        return CellResult(
            str(cell.target),
            cell.strategy,
            verdict,
            reason,
            decision,
            changes,
            tuple(made),
            seconds,
            cell.counters_only,
        )

    while True:
        try:
            made.append(launch(len(made)))
        except MeasurementError as error:
            return result(Verdict.ERROR, str(error))
        calm = [one for one in made if not one.load.problem]
        tell(_line(len(made), made[-1], cell.counters_only))
        calm = calm if not cell.counters_only else []
        worse = [change for change in _changes(made, cell.accept) if change.is_regression]
        if worse:
            return result(Verdict.REGRESSION, f"counters: {worse[0].message}", _decided(calm, cell))
        other_work = _other_work(made[-1], cell.accept)
        if other_work:
            return result(Verdict.INCONCLUSIVE, other_work, _decided(calm, cell))
        not_counted = uncounted(made[-1].base.counters, made[-1].head.counters)
        if cell.counters_only and not_counted:
            return result(Verdict.INCONCLUSIVE, not_counted)
        if cell.counters_only:
            steps = min(one.counters.counted_steps for one in (made[-1].base, made[-1].head))
            if not steps:
                return result(Verdict.INCONCLUSIVE, "the steps were not counted one by one")
            return result(
                Verdict.PASS,
                f"the counters of {steps} steps are not worse; time was not measured (--counters-only). Nothing counts "
                f"{' or '.join(NOT_COUNTED)}",
            )
        overloaded = len(made) - len(calm)
        used = time.monotonic() - started
        late = used + statistics.fmean(one.seconds for one in made) > cell.budget
        if overloaded >= OVERLOADED and overloaded > len(calm):
            provisional = _provisional(made, cell.rule)
            if provisional is not None and len(made) < cell.rule.looks[0] and not late:
                continue
            disturbed = network_problem(made, cell.rule)
            if provisional is not None and provisional.verdict is Verdict.REGRESSION and not disturbed:
                return result(
                    Verdict.REGRESSION,
                    f"provisional, because the machine is overloaded ({_last_problem(made)}): {provisional.reason}, "
                    f"which is many times the spread of {len(made)} launches. Measure the size on a calm machine",
                    provisional,
                )
            return result(
                Verdict.INCONCLUSIVE,
                f"no verdict on time, because the machine is overloaded: {_last_problem(made)}. The counters are not "
                "worse. Measure on a calm machine, or give --counters-only",
                _decided(calm, cell),
            )
        over = len(made) >= cell.rule.looks[-1] + OVERLOADED or len(calm) >= cell.rule.looks[-1]
        if len(calm) in cell.rule.looks or over or late:
            decision = _decision(calm, cell.rule)
            if disturbed := network_problem(calm, cell.rule):
                return result(Verdict.INCONCLUSIVE, f"no verdict on time: {disturbed}", decision)
            if decision.verdict is not Verdict.INCONCLUSIVE:
                return result(decision.verdict, decision.reason, decision)
            if over or late:
                end = "launches (--max-launches)" if over else f"the {cell.budget:g} s of --budget"
                aside = f" {overloaded} more launch(es) were set aside: {_last_problem(made)}." if overloaded else ""
                return result(
                    Verdict.INCONCLUSIVE,
                    f"{decision.reason}. All {end} are used up after {len(calm)} launch(es).{aside}",
                    decision,
                )


def _decision(calm: list[Paired], rule: Rule) -> Decision:
    """Decide from the times of the launches, and withdraw a pass if HEAD spent time that was not counted."""
    decision = decide_launches([one.log_ratio for one in calm], [one.total_ratio for one in calm], rule)
    if decision.verdict not in (Verdict.PASS, Verdict.IMPROVEMENT):
        return decision
    base, head = (sum(one.dropped_blocks[side] for one in calm) for side in (0, 1))
    if head - base >= len(calm):
        reason = (
            f"HEAD traces functions after its warm-up: {head} blocks of {len(calm)} launches were dropped for this "
            f"reason ({base} of BASE), so the verdict does not include their time. Trace less (fixed shapes, no Python "
            "numbers as arguments), or increase --warm-up until it includes all tracing"
        )
        return replace(decision, verdict=Verdict.INCONCLUSIVE, reason=reason)
    return decision


def _provisional(made: list[Paired], rule: Rule) -> Decision | None:
    """Decide from all launches on an overloaded machine; ``None`` if not each of them shows a large slowdown."""
    ratios = [one.log_ratio for one in made]
    if min(ratios) < math.log1p(_LARGE * rule.margin):
        return None
    return decide(ratios, replace(rule, false_alarms=_STRICT * rule.false_alarms))


def _decided(calm: list[Paired], cell: Cell) -> Decision | None:
    """Return what the step times decide, to show beside a verdict with another reason; ``None`` below 3 launches."""
    return _decision(calm, cell.rule) if len(calm) >= 3 else None


def _changes(made: list[Paired], accept: Mapping[str, str]) -> tuple[CounterChange, ...]:
    return tuple(compare_launches([(one.base.counters, one.head.counters) for one in made], counters_of(accept)))


def counters_of(accept: Mapping[str, str]) -> dict[str, str]:
    """Return the accepted changes that are about counters."""
    return {name: reason for name, reason in accept.items() if name != EXAMPLES}


def _other_work(one: Paired, accept: Mapping[str, str]) -> str:
    """Return the reason why steps cannot be compared if their batches have different sizes; else an empty text."""
    base, head = one.base.examples_per_step, one.head.examples_per_step
    if EXAMPLES in accept or base is None or head is None or base == head:
        return ""
    return (
        f"a step of BASE takes {base} examples and a step of HEAD takes {head}: their times cannot be compared. Use "
        f"run.global_batch_size in both versions, or give --accept {EXAMPLES}=REASON to compare them anyway"
    )


def _last_problem(made: list[Paired]) -> str:
    return next(one.load.problem for one in reversed(made) if one.load.problem)


def _line(number: int, one: Paired, counters_only: bool) -> str:
    if counters_only:
        return f"launch {number}: {one.seconds:.1f} s"
    base, head = (f"{seconds * 1e3:.3f} ms" for seconds in one.step_seconds)
    aside = f"; set aside: {one.load.problem}" if one.load.problem else ""
    return f"launch {number}: {percent(one.log_ratio)} (BASE {base}, HEAD {head} a step; {one.seconds:.1f} s){aside}"
