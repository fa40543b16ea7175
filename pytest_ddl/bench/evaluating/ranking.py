"""Rank the cells of an evaluation by their time to the target: a cell comes after those that are shown to be faster."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddl.bench.evaluating.judging import LEVEL, PairedDifference, step_times, steps_to, to_target, window_for
from pytest_ddl.bench.evaluating.records import REFERENCE, EvaluatedCell, Evaluation
from pytest_ddl.bench.metrics.registry import statistics_package

LEAST_SPREAD = 0.035
"""Standard deviation of the log of the step time between launches of one program on two cores that others share.

It was measured for :data:`pytest_ddl.bench.gate.lockstep.GROUPS`. Launches that agree better do so by chance, or
because they were close in time, and a repeated evaluation would separate other cells.
"""


@dataclass(frozen=True)
class Ranking:
    """Ranks of the cells that can be ranked, and the reasons of the others."""

    by: str
    """Name of the number by which cells are ranked."""
    ranks: Mapping[str, int]
    """Variant -> 1 and the number of cells that are shown to be faster: 1, 1, 3."""
    unranked: Mapping[str, str]
    """Variant -> reason."""

    @property
    def best(self) -> list[str]:
        """Variants of the first rank."""
        return [name for name, rank in self.ranks.items() if rank == 1]


@dataclass(frozen=True)
class _Ranked:
    """Logarithms of what is ranked: the sum of ``work`` and of the mean of ``pace``."""

    work: float
    """Log of the geometric mean of the steps over the seeds; or of the step's examples."""
    pace: Sequence[float]
    """Log of the seconds of a step, by launch."""
    drift: Sequence[float] = ()
    """Log of the steps over those of one device with the same batch, by seed.

    They are the same for all seeds unless the steps of a seed differ from run to run, as in asynchronous training.
    """

    @property
    def mean(self) -> float:
        return self.work + statistics.fmean(self.pace)


def rank(evaluation: Evaluation, results: Mapping[str, PairedDifference]) -> Ranking:
    """Rank all cells that are correct and not shown to end with a worse result.

    They are ranked by the time to the target, or by the time of an example if no loss was reported. Ranks hold for the
    seeds that were trained: all cells have the same ones, so a repeated evaluation has the same steps.
    """
    by_target = evaluation.target is not None
    entries: dict[str, _Ranked] = {}
    unranked: dict[str, str] = {}
    for cell in evaluation.cells:
        why = _obstacle(evaluation, cell, results.get(cell.variant), by_target)
        if why:
            unranked[cell.variant] = why
        else:
            entries[cell.variant] = _entry(evaluation, cell, by_target)
    by = f"time to a training loss of {evaluation.target:g}" if by_target else "time of an example"
    return Ranking(by, ranks_of(entries), unranked)


def _obstacle(evaluation: Evaluation, cell: EvaluatedCell, result: PairedDifference | None, by_target: bool) -> str:
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


def _entry(evaluation: Evaluation, cell: EvaluatedCell, by_target: bool) -> _Ranked:
    pace = [math.log(seconds) for seconds in step_times(evaluation, cell.variant)]
    window = window_for(evaluation)
    if not by_target or evaluation.target is None or window is None:
        launches = evaluation.matrix.of(cell.variant)
        return _Ranked(-math.log(launches[0].global_batch_size or 1), pace)
    target = evaluation.target

    def logs(variant: str) -> dict[int, float]:
        curves = evaluation.curves_of(variant, cell.batch)
        steps = {curve.seed: steps_to(curve, target, window) for curve in curves}
        return {seed: math.log(step) for seed, step in steps.items() if step}

    own, alone = logs(cell.variant), logs(REFERENCE)
    drift = [own[seed] - alone[seed] for seed in own if seed in alone]
    return _Ranked(statistics.fmean(own.values()), pace, drift)


def ranks_of(entries: Mapping[str, _Ranked]) -> dict[str, int]:
    """Return the rank of each entry, best first: 1 and the number of entries that are shown to be faster.

    Two entries are separate if the interval of their difference excludes 0, for all pairs together (Bonferroni). The
    spread of launches is that of the entry or that of all, whichever is larger, and at least :data:`LEAST_SPREAD`: with
    three launches, an entry's own spread is small by chance in many cases. Its degrees of freedom are those of all
    entries. Entries that are noisier than the others, as an F test shows, have their own spread and degrees of freedom.
    """
    order = sorted(entries, key=lambda name: entries[name].mean)
    own = _noisy({name: entries[name].pace for name in order})
    pooled, degrees = _pooled([entries[name].pace for name in order if name not in own])
    alpha = (1 - LEVEL) / max(1, len(order) * (len(order) - 1) // 2)
    faster = dict.fromkeys(order, 0)
    for first, second in itertools.combinations(order, 2):
        shared = [name not in own for name in (first, second)]
        faster[second] += _are_separate(entries[first], entries[second], shared, pooled, degrees, alpha)
    return {name: 1 + faster[name] for name in sorted(order, key=lambda name: faster[name])}


def noisy(evaluation: Evaluation) -> list[str]:
    """Return the variants whose launches differ more than those of the others, as an F test shows."""
    paces = {name: [math.log(one) for one in step_times(evaluation, name)] for name in evaluation.matrix.variants}
    return _noisy({name: pace for name, pace in paces.items() if len(pace) > 1})


def _noisy(paces: Mapping[str, Sequence[float]]) -> list[str]:
    noisy = []
    for name, pace in paces.items():
        others, degrees = _pooled([other for key, other in paces.items() if key != name])
        limit = float(statistics_package("scipy.stats").f.ppf(LEVEL, len(pace) - 1, max(1, degrees)))
        if statistics.variance(pace) > others**2 * limit:
            noisy.append(name)
    return noisy


def _pooled(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the standard deviation within groups, and its degrees of freedom."""
    degrees = sum(len(group) - 1 for group in groups)
    if degrees < 1:
        return LEAST_SPREAD, 0
    squares = sum((value - statistics.fmean(group)) ** 2 for group in groups for value in group)
    return max(LEAST_SPREAD, math.sqrt(squares / degrees)), degrees


def _are_separate(
    first: _Ranked, second: _Ranked, shared: Sequence[bool], pooled: float, degrees: int, alpha: float
) -> bool:
    difference = second.mean - first.mean
    stats = statistics_package("scipy.stats")
    parts: list[tuple[float, float]] = []
    shared_variance = 0.0
    for entry, as_others in zip((first, second), shared, strict=True):
        own = statistics.variance(entry.pace)
        if as_others:
            shared_variance += max(own, pooled**2) / len(entry.pace)
        else:
            parts.append((own / len(entry.pace), len(entry.pace) - 1))
        if len(entry.drift) > 1:
            parts.append((statistics.variance(entry.drift) / len(entry.drift), len(entry.drift) - 1))
    if shared_variance:
        # One estimate for both, so its degrees of freedom count once.
        parts.append((shared_variance, max(1, degrees)))
    total = sum(variance for variance, _freedom in parts)
    combined = total**2 / sum(variance**2 / number for variance, number in parts)
    t = float(stats.t.ppf(1 - alpha / 2, combined))
    return abs(difference) > t * math.sqrt(total)
