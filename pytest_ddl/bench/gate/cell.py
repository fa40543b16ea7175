"""Measure one cell of the gate: launch one target under one variant until there is a verdict."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_ddl.bench.counters.changes import NOT_COUNTED, CounterChange, compare_launches, uncounted
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

It is also the number of launches that may be made beyond the last look.
"""
_LARGE = 4.0
"""Slowdown, in margins, that each launch on an overloaded machine must show. Otherwise no further one is made there."""
_STRICT = 0.1
"""Share of the false alarms that a regression on an overloaded machine may use.

Load widens the spread of launches, so the slowdown must be many times the spread.
"""
_SHARED_NETWORK = "Measure while nobody else uses the network between the hosts"
"""Advice if the network disturbed a measurement."""


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
    """True to watch the network between the hosts; see :func:`network_problem`."""


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
    return _Measurement(cell, tell).until_verdict(launch)


class _Measurement:
    """Launches of one cell so far, and what follows from them."""

    def __init__(self, cell: Cell, tell: Callable[[str], None]) -> None:
        self._cell, self._tell = cell, tell
        self._started = time.monotonic()
        self._made: list[Paired] = []

    def until_verdict(self, launch: Callable[[int], Paired]) -> CellResult:
        """Launch until there is a verdict."""
        while True:
            try:
                self._made.append(launch(len(self._made)))
            except MeasurementError as error:
                return self._result(Verdict.ERROR, str(error))
            self._tell(_line(len(self._made), self._made[-1], self._cell.counters_only))
            result = self._of_work()
            if result is None and self._cell.counters_only:
                result = self._of_counters_only()
            if result is None:
                result = self._on_overloaded_machine() if self._is_overloaded else self._of_times()
            if result is not None:
                return result

    @property
    def _calm(self) -> list[Paired]:
        """Launches whose times count: none if only counters are compared."""
        return [] if self._cell.counters_only else [one for one in self._made if not one.load.problem]

    @property
    def _is_overloaded(self) -> bool:
        disturbed = len(self._made) - len(self._calm)
        return disturbed >= OVERLOADED and disturbed > len(self._calm)

    @property
    def _is_late(self) -> bool:
        """True if the next launch is expected to end after the budget."""
        used = time.monotonic() - self._started
        return used + statistics.fmean(one.seconds for one in self._made) > self._cell.budget

    @property
    def _changes(self) -> tuple[CounterChange, ...]:
        pairs = [(one.base.counters, one.head.counters) for one in self._made]
        return tuple(compare_launches(pairs, counters_of(self._cell.accept)))

    @property
    def _decided(self) -> Decision | None:
        """Decision of the step times, to show beside a verdict with another reason; ``None`` below 3 launches."""
        return _decision(self._calm, self._cell.rule) if len(self._calm) >= 3 else None

    def _result(self, verdict: Verdict, reason: str, decision: Decision | None = None) -> CellResult:
        cell, seconds = self._cell, time.monotonic() - self._started
        measured = self._changes, tuple(self._made), seconds, cell.counters_only
        return CellResult(str(cell.target), cell.strategy, verdict, reason, decision, *measured)

    def _of_work(self) -> CellResult | None:
        """Return the result if counters are worse, or if the versions do other work in a step."""
        worse = [change for change in self._changes if change.is_regression]
        if worse:
            return self._result(Verdict.REGRESSION, f"counters: {worse[0].message}", self._decided)
        other_work = _other_work(self._made[-1], self._cell.accept)
        if other_work:
            return self._result(Verdict.INCONCLUSIVE, other_work, self._decided)
        return None

    def _of_counters_only(self) -> CellResult:
        """Return the result of counters that are not worse, if time is not measured."""
        last = self._made[-1]
        not_counted = uncounted(last.base.counters, last.head.counters)
        steps = min(one.counters.counted_steps for one in (last.base, last.head))
        if not_counted or not steps:
            return self._result(Verdict.INCONCLUSIVE, not_counted or "the steps were not counted one by one")
        return self._result(
            Verdict.PASS,
            f"the counters of {steps} steps are not worse; time was not measured (--counters-only). Nothing counts "
            f"{' or '.join(NOT_COUNTED)}",
        )

    def _on_overloaded_machine(self) -> CellResult | None:
        """Return the result from launches that other programs have disturbed; ``None`` to launch again."""
        made, rule = self._made, self._cell.rule
        provisional = _provisional(made, rule)
        if provisional is not None and len(made) < rule.looks[0] and not self._is_late:
            return None
        disturbed = network_problem(made, rule)
        if provisional is not None and provisional.verdict is Verdict.REGRESSION and not disturbed:
            return self._result(
                Verdict.REGRESSION,
                f"provisional, because the machine is overloaded ({_last_problem(made)}): {provisional.reason}, "
                f"which is many times the spread of {len(made)} launches. Measure the size on a calm machine",
                provisional,
            )
        return self._result(
            Verdict.INCONCLUSIVE,
            f"no verdict on time, because the machine is overloaded: {_last_problem(made)}. The counters are not "
            "worse. Measure on a calm machine, or give --counters-only",
            self._decided,
        )

    def _of_times(self) -> CellResult | None:
        """Return the result from the times of the launches; ``None`` to launch again."""
        calm, rule, late = self._calm, self._cell.rule, self._is_late
        over = len(self._made) >= rule.looks[-1] + OVERLOADED or len(calm) >= rule.looks[-1]
        if not (len(calm) in rule.looks or over or late):
            return None
        decision = _decision(calm, rule)
        if disturbed := network_problem(calm, rule):
            return self._result(Verdict.INCONCLUSIVE, f"no verdict on time: {disturbed}", decision)
        if decision.verdict is not Verdict.INCONCLUSIVE:
            return self._result(decision.verdict, decision.reason, decision)
        if not (over or late):
            return None
        end = "launches (--max-launches)" if over else f"the {self._cell.budget:g} s of --budget"
        aside, more = "", len(self._made) - len(calm)
        if more:
            aside = f" {more} more launch(es) were set aside: {_last_problem(self._made)}."
        return self._result(
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


def network_problem(made: Sequence[Paired], rule: Rule) -> str:
    """Return why the times of some launches cannot be compared; an empty text if they can.

    Two tests use the level of one look of the gate (:attr:`Rule.level`), each for a change of more than the margin:

    * The canary of HEAD took another time than that of BASE: a t test of the log ratios of the launches.
    * The canary changed from launch to launch by more than the two sides differ within one launch: a one-way analysis
      of variance of the log times, with the launches as groups (Fisher, *Statistical Methods for Research Workers*,
      1925). Both sides of a launch meet the same network, so their differences are the noise.

    :param made: launches that a decision uses.
    """
    for one in made:
        if one.base.hosts != one.head.hosts:
            of_base, of_head = (", ".join(dict.fromkeys(launch.hosts)) for launch in (one.base, one.head))
            return (
                f"the versions did not run on the same hosts: BASE on {of_base}, HEAD on {of_head}. Run the gate "
                "inside one allocation, or name the hosts with PYTEST_DDL_HOSTS"
            )
    logs = [(math.log(one.canary[0]), math.log(one.canary[1])) for one in made if one.canary is not None]
    # Two groups have no reliable spread.
    if len(logs) < 3:
        return ""
    return _between_sides(logs, rule) or _between_launches(logs, rule)


def _between_sides(logs: Sequence[tuple[float, float]], rule: Rule) -> str:
    from scipy import stats

    ratios = [head - base for base, head in logs]
    mean = statistics.fmean(ratios)
    if abs(mean) <= math.log1p(rule.margin):
        return ""
    if len(set(ratios)) > 1 and not stats.ttest_1samp(ratios, 0.0).pvalue < rule.level:
        return ""
    return (
        f"the network was not the same for both versions: a small all-reduce of HEAD took {percent(mean)} of time "
        f"compared with that of BASE, in {len(logs)} launches, and not by chance. {_SHARED_NETWORK}"
    )


def _between_launches(logs: Sequence[tuple[float, float]], rule: Rule) -> str:
    from scipy import stats

    means = [statistics.fmean(sides) for sides in logs]
    change = max(means) - min(means)
    if change <= math.log1p(rule.margin):
        return ""
    if any(base != head for base, head in logs) and not stats.f_oneway(*logs).pvalue < rule.level:
        return ""
    slow, fast = (1e3 * math.exp(find(means)) for find in (max, min))
    return (
        f"the network changed while the gate measured: the same small all-reduces took from {fast:.3g} to "
        f"{slow:.3g} ms in {len(logs)} launches, much more than both versions differ within a launch. {_SHARED_NETWORK}"
    )
