"""Change points in a series: candidates, found by a sensitive detector; a re-run decides about them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_ddl.bench.history.meaning import BY_CHANCE, family, higher_is_better, is_exact, leaf
from pytest_ddl.bench.history.model import Commit, Series, short_id

MARGIN = 0.025
"""Changes that are smaller are not listed: the gate's own margin, below which a re-run could not confirm them."""
PENALTY = 2.5
"""A change must lower the residual sum of squares by this times ln(n) noise variances. BIC asks for about 2 ln(n) for
a change of unknown place (Yao 1988, Statistics & Probability Letters 6); more, as every candidate costs a re-run."""
SHORTEST = 8
"""Points below which noise cannot be told from change."""
NOISE_FLOOR = 0.002
"""Relative noise that is assumed at least, so that a few points that happen to agree do not make others stand out."""
OUTLIER = 4.0
"""Noise standard deviations beyond all of four neighbours that make a single result an outlier."""
PLACE = 0.99
"""Probability with which the change is within the range of commits that is named."""
CREEP_WINDOW = 10
CREEP_SIGMAS = 3.5
"""How far the newest level must be above the best, in standard errors of their difference. The best of many windows is
lower than the truth by about 1.5 of them."""

Status = Literal["confirmed", "refuted", "unconfirmed", "exact", "explained", "not asked"]


@dataclass(frozen=True)
class Verdict:
    """What a re-run of both commits, side by side, said about a candidate."""

    status: Status
    message: str = ""
    effect: float | None = None
    """Relative slow-down in the re-run; 0.05 is 5 % slower."""


@dataclass(frozen=True)
class Change:
    """A change of level in one series."""

    series: Series
    kind: Literal["step", "creep"]
    before: Commit
    """The last commit that is surely on the old level."""
    after: Commit
    """The first commit that is surely on the new level."""
    likely: Commit
    """The most likely first commit of the new level."""
    old: float
    new: float
    """The levels, in the benchmark's unit."""
    spread: float
    """Half width of the 95 % interval of ``effect``; 0 where numbers are exact."""
    worse: bool
    standing: bool
    """Whether the newest results are still on the worse side."""
    verdict: Verdict = Verdict("not asked")

    @property
    def effect(self) -> float:
        """Relative change of the value; infinite from 0."""
        if self.old == 0:
            return math.copysign(math.inf, self.new)
        return self.new / self.old - 1

    @property
    def id(self) -> str:
        return short_id("r", *self.series.key, self.kind, self.likely.hash)

    @property
    def alerts(self) -> bool:
        """Whether people are to be told: worse, still there, and certain."""
        return self.worse and self.standing and self.verdict.status in ("confirmed", "exact")

    @property
    def is_candidate(self) -> bool:
        """Whether it would be told if a re-run confirmed it."""
        return self.worse and self.standing and self.verdict.status in ("unconfirmed", "not asked")

    def judged(self, verdict: Verdict) -> Change:
        return replace(self, verdict=verdict)


class DetectorMissingError(Exception):
    """The package that finds change points is not installed."""


def noise(values: Sequence[float]) -> float:
    """Standard deviation of one value, from differences between neighbours, so that steps and slopes do not count.

    The median absolute difference, scaled to a normal distribution (0.6745) and to one value of two (√2).
    """
    steps = [abs(after - before) for before, after in itertools.pairwise(values)]
    return statistics.median(steps) / (0.6745 * math.sqrt(2)) if steps else 0.0


def relative_noise(series: Series) -> float | None:
    """Relative standard deviation between neighbouring commits; ``None`` where there are too few to tell."""
    values = [point.value for point in series.points]
    if len(values) < SHORTEST or min(values) <= 0:
        return None
    return noise([math.log(value) for value in values])


def changes(series: Series, margin: float = MARGIN) -> list[Change]:
    """Changes of level in a series, oldest first, in both directions; those that are worse are candidates.

    :raises DetectorMissingError: where ``ruptures`` is not installed and the series needs it.
    """
    if is_exact(series.benchmark):
        return _exact(series)
    if len(series.points) < SHORTEST or min(point.value for point in series.points) <= 0:
        return []
    logs = [math.log(point.value) for point in series.points]
    sigma = max(noise(logs), NOISE_FLOOR)
    logs = _without_outliers(logs, sigma)
    edges = [0, *_edges([value / sigma for value in logs])]
    found = []
    for left, middle, right in zip(edges, edges[1:], edges[2:], strict=False):
        old, new = statistics.fmean(logs[left:middle]), statistics.fmean(logs[middle:right])
        if abs(new - old) < math.log1p(margin):
            continue
        middling = statistics.fmean(logs[left:right])
        first, last = _place([value - middling for value in logs[left:right]])
        commits = [point.commit for point in series.points]
        worse = _is_worse(series, new - old)
        final = statistics.fmean(logs[edges[-2] :])
        spread = 1.96 * sigma * math.sqrt(1 / (middle - left) + 1 / (right - middle))
        error = 1.96 * sigma * math.sqrt(1 / (middle - left) + 1 / (len(logs) - edges[-2]))
        found.append(
            Change(
                series,
                "step",
                before=commits[left + first - 1],
                after=commits[left + last],
                likely=commits[middle],
                old=math.exp(old),
                new=math.exp(new),
                spread=spread * math.exp(new - old),
                worse=worse,
                standing=_stands(new - old, final - old, margin, error),
            )
        )
    slow = _creep(series, logs, sigma, margin)
    return [*found, slow] if slow else found


def _stands(change: float, left: float, margin: float, error: float) -> bool:
    """Whether a change still matters, of which the newest level has ``left``; both are differences of logarithms.

    Half of it does, and so does what is beyond the margin, unless it is within noise: a part that was repaired of a
    large slowdown does not end it.

    :param error: half width of the 95 % interval of ``left``.
    """
    if left == change:
        return True
    size = math.copysign(1, change) * left
    return size > max(min(abs(change) / 2, math.log1p(margin)), error)


def _without_outliers(values: Sequence[float], sigma: float) -> list[float]:
    """Single values far above, or far below, all four neighbours become their median: no commit did that."""
    kept = list(values)
    for place in range(2, len(values) - 2):
        around = [*values[place - 2 : place], *values[place + 1 : place + 3]]
        if not min(around) - OUTLIER * sigma < values[place] < max(around) + OUTLIER * sigma:
            kept[place] = statistics.median(around)
    return kept


def _is_worse(series: Series, difference: float) -> bool:
    better = higher_is_better(series.benchmark)
    return better is not None and (difference < 0) == better and difference != 0


def _edges(scaled: Sequence[float]) -> list[int]:
    """Where segments end, of values with noise 1: PELT (Killick et al. 2012, arXiv 1101.1438)."""
    try:
        import ruptures
    except ImportError as error:
        raise DetectorMissingError(
            f"finding changes needs ruptures ({error}): pip install 'pytest-ddl[bench]', or --no-detect for the page "
            "alone"
        ) from error
    import numpy as np

    # Two points at least: one alone is an outlier as long as no other commit agrees with it. The linear kernel's
    # cost is the sum of squares, in compiled code.
    algorithm: Any = ruptures.KernelCPD(kernel="linear", min_size=2)
    found = algorithm.fit(np.asarray(scaled).reshape(-1, 1)).predict(pen=PENALTY * math.log(len(scaled)))
    return [int(edge) for edge in found]


def _place(values: Sequence[float]) -> tuple[int, int]:
    """The first and last place that one change in these values may have: the most likely ones that hold ``PLACE``.

    The posterior of the place for normal noise of unknown size, levels and place without prior knowledge (Smith 1975,
    Biometrika 62): proportional to ``(k(n - k))^(-1/2) S(k)^(-(n - 2) / 2)``, S the residual sum of squares.
    """
    size = len(values)
    sums = [0.0, *itertools.accumulate(values)]
    squares = math.fsum(value * value for value in values)
    logs = {}
    for split in range(1, size):
        means = sums[split] ** 2 / split + (sums[-1] - sums[split]) ** 2 / (size - split)
        rest = max(squares - means, 1e-12 * squares)
        logs[split] = -(size - 2) / 2 * math.log(rest) - math.log(split * (size - split)) / 2
    best = max(logs.values())
    weights = {split: math.exp(log - best) for split, log in logs.items()}
    kept, total = [], 0.0
    for split in sorted(weights, key=lambda place: -weights[place]):
        kept.append(split)
        total += weights[split]
        if total >= PLACE * sum(weights.values()):
            break
    return min(kept), max(kept)


def _exact(series: Series) -> list[Change]:
    found = []
    by_chance = BY_CHANCE.search(leaf(series.benchmark))
    levels = [min(point.value, 1.0) if by_chance else point.value for point in series.points]
    for (before, old), (after, new) in itertools.pairwise(zip(series.points, levels, strict=True)):
        if old == new:
            continue
        worse = _is_worse(series, new - old)
        standing = _is_worse(series, levels[-1] - old) if worse else levels[-1] == new
        found.append(
            Change(
                series,
                "step",
                before.commit,
                after.commit,
                after.commit,
                before.value,
                after.value,
                0.0,
                worse,
                standing,
                Verdict("exact", "counted: the same in every run"),
            )
        )
    return found


def _creep(series: Series, logs: Sequence[float], sigma: float, margin: float) -> Change | None:
    """The newest level against the best that ever held for a while: what small steps add up to (asv#932)."""
    size = min(CREEP_WINDOW, len(logs) // 3)
    better = higher_is_better(series.benchmark)
    if size < 4 or better is None or family(series.benchmark).derived:
        return None
    sign = -1 if better else 1
    windows = {start: sign * statistics.fmean(logs[start : start + size]) for start in range(len(logs) - 2 * size + 1)}
    start = min(windows, key=lambda place: windows[place])
    newest = sign * statistics.fmean(logs[-size:])
    error = sigma * math.sqrt(2 / size)
    if newest - windows[start] < max(math.log1p(margin), CREEP_SIGMAS * error):
        return None
    old, new = math.exp(sign * windows[start]), math.exp(sign * newest)
    middle, last = series.points[start + size // 2].commit, series.points[-1].commit
    return Change(series, "creep", middle, last, last, old, new, 1.96 * error * new / old, True, True)


def beyond_steps(creep: Change, steps: Sequence[Change], margin: float = MARGIN) -> bool:
    """Whether a creep is more than the steps of its series that were not refuted, by more than ``margin``.

    Steps back count too: of a slowdown that was repaired in part, the rest is told.
    """
    told = sum(
        math.log(step.new / step.old)
        for step in steps
        if step.kind == "step"
        and step.series.key == creep.series.key
        and step.verdict.status != "refuted"
        and step.after > creep.before
    )
    total = math.log(creep.new / creep.old)
    return math.copysign(1, total) * (total - told) >= math.log1p(margin)
