"""Rank the cells of an evaluation by their time to the target; cells that cannot be told apart share a rank."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddl.bench.evaluating.judging import LEVEL, Difference, step_times, steps_to, to_target, window_for
from pytest_ddl.bench.evaluating.records import Cell, Evaluation
from pytest_ddl.bench.metrics.registry import statistics_package


@dataclass(frozen=True)
class Ranking:
    """Ranks of the cells that can be ranked, and the reasons of the others."""

    by: str
    """Name of the number by which cells are ranked."""
    ranks: Mapping[str, int]
    """Variant -> rank, from 1. A shared rank counts once for each of its cells: 1, 1, 3."""
    unranked: Mapping[str, str]
    """Variant -> reason."""

    @property
    def best(self) -> list[str]:
        """Variants of the first rank."""
        return [name for name, rank in self.ranks.items() if rank == 1]


@dataclass(frozen=True)
class _Entry:
    """Logarithms of what is ranked: the sum of the means of both."""

    work: Mapping[int, float]
    """Seed -> log of the steps; or of the step's examples, once."""
    pace: Sequence[float]
    """Log of the seconds of a step, by launch."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.work.values()) + statistics.fmean(self.pace)


def rank(evaluation: Evaluation, results: Mapping[str, Difference]) -> Ranking:
    """Rank all cells that are correct and not shown to end with a worse result.

    They are ranked by the time to the target, or by the time of an example if no loss was reported.
    """
    by_target = evaluation.target is not None
    entries: dict[str, _Entry] = {}
    unranked: dict[str, str] = {}
    for cell in evaluation.cells:
        why = _obstacle(evaluation, cell, results.get(cell.variant), by_target)
        if why:
            unranked[cell.variant] = why
        else:
            entries[cell.variant] = _entry(evaluation, cell, by_target)
    by = f"time to a training loss of {evaluation.target:g}" if by_target else "time of an example"
    return Ranking(by, ranks_of(entries), unranked)


def _obstacle(evaluation: Evaluation, cell: Cell, result: Difference | None, by_target: bool) -> str:
    """Return why a cell has no rank; empty if it has one."""
    if cell.reason:
        return "it cannot run here"
    failures = evaluation.failures.get(cell.variant, {})
    if failures:
        return f"{next(iter(failures))} failed"
    verdict = evaluation.verdicts.get(cell.variant)
    if not cell.is_reference and (verdict is None or not verdict.is_correct):
        return "WRONG" if verdict is not None and verdict.verdict == "fail" else "not shown to be correct"
    if result is not None and result.differs and result.words.startswith("worse"):
        return "its result is worse than that of one device"
    if len(step_times(evaluation, cell.variant)) < 2:
        return "fewer than 2 launches: ranks need intervals"
    if by_target and (found := to_target(evaluation, cell)).reason:
        return f"target: {found.reason}"
    if by_target and result is not None and result.mean is None:
        return "its result is missing or not finite, so it cannot be compared"
    return ""


def _entry(evaluation: Evaluation, cell: Cell, by_target: bool) -> _Entry:
    pace = [math.log(seconds) for seconds in step_times(evaluation, cell.variant)]
    window = window_for(evaluation)
    if not by_target or evaluation.target is None or window is None:
        launches = evaluation.matrix.of(cell.variant)
        return _Entry({0: -math.log(launches[0].global_batch_size or 1)}, pace)
    curves = evaluation.curves_of(cell.variant, cell.batch)
    steps = {curve.seed: steps_to(curve, evaluation.target, window) for curve in curves}
    return _Entry({seed: math.log(step) for seed, step in steps.items() if step}, pace)


def ranks_of(entries: Mapping[str, _Entry]) -> dict[str, int]:
    """Return the rank of each entry, best first.

    Two entries are told apart if the interval of their difference excludes 0. Steps are compared seed by seed, because
    equal seeds give equal data. The spread of launches is that of the entry or that of all, whichever is larger: with
    three launches, an entry's own spread is small by chance in many cases. Its degrees of freedom are those of all
    entries, unless an F test shows that the entry is noisier than the others. The level holds for all pairs
    together (Bonferroni). A rank ends only if all its entries are told apart from all later ones.
    """
    order = sorted(entries, key=lambda name: entries[name].mean)
    pooled, degrees = _pooled([entries[name].pace for name in order])
    pairs = max(1, len(order) * (len(order) - 1) // 2)
    apart = {
        (first, second): _told_apart(entries[first], entries[second], pooled, degrees, (1 - LEVEL) / pairs)
        for first, second in itertools.combinations(order, 2)
    }
    found: dict[str, int] = {}
    current = 1
    for place, name in enumerate(order):
        if place and all(apart[earlier, later] for earlier in order[:place] for later in order[place:]):
            current = place + 1
        found[name] = current
    return found


def _pooled(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the standard deviation within groups, and its degrees of freedom."""
    degrees = sum(len(group) - 1 for group in groups)
    if degrees < 1:
        return 0.0, 0
    squares = sum((value - statistics.fmean(group)) ** 2 for group in groups for value in group)
    return math.sqrt(squares / degrees), degrees


def _told_apart(first: _Entry, second: _Entry, pooled: float, degrees: int, alpha: float) -> bool:
    shared = sorted(set(first.work) & set(second.work))
    steps = [second.work[seed] - first.work[seed] for seed in shared]
    difference = second.mean - first.mean
    stats = statistics_package("scipy.stats")
    parts: list[tuple[float, float]] = []
    shared_variance = 0.0
    for entry in (first, second):
        own = statistics.stdev(entry.pace) if len(entry.pace) > 1 else 0.0
        few = max(1, len(entry.pace) - 1)
        # With few launches, a spread above that of all is mostly chance. An F test says where it is not.
        noisier = own > pooled and own**2 > pooled**2 * float(stats.f.ppf(LEVEL, few, max(1, degrees)))
        if noisier:
            parts.append((own**2 / len(entry.pace), few))
        else:
            shared_variance += max(own, pooled) ** 2 / len(entry.pace)
    if shared_variance:
        # One estimate for both, so its degrees of freedom count once.
        parts.append((shared_variance, max(1, degrees)))
    if len(steps) > 1:
        parts.append((statistics.variance(steps) / len(steps), len(steps) - 1))
    total = sum(variance for variance, _freedom in parts)
    if total <= 0:
        return difference != 0
    combined = total**2 / sum(variance**2 / number for variance, number in parts)
    t = float(stats.t.ppf(1 - alpha / 2, combined))
    return abs(difference) > t * math.sqrt(total)
