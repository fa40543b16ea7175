"""Find change points in a series. The detector is sensitive; a re-run decides about its candidates."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_ddl.bench.history.meaning import BY_CHANCE, family, higher_is_better, is_exact, leaf
from pytest_ddl.bench.history.model import Commit, Series, short_id
from pytest_ddl.installing import install_line

MARGIN = 0.025
"""Smallest relative change that is listed. It is the gate's own margin; a re-run could not confirm smaller ones."""
PENALTY = 2.5
"""Number of noise variances, times ln(n), by which a change must lower the residual sum of squares.

BIC asks for about 2 ln(n) for a change at an unknown place (Yao 1988, Statistics & Probability Letters 6). The value is
higher here, because every candidate costs a re-run."""
SHORTEST = 8
"""Minimum number of points. With fewer, noise cannot be distinguished from change."""
NOISE_FLOOR = 0.002
"""Minimum relative noise. Without it, a few points that agree by chance would make others look like changes."""
OUTLIER = 4.0
"""A result is an outlier if it differs from each of its four neighbors by more standard deviations of the noise."""
PLACE = 0.99
"""Probability that the change is within the reported range of commits."""
CREEP_WINDOW = 10
CREEP_SIGMAS = 3.5
"""Minimum distance of the newest level from the best one, in standard errors of their difference.

The best of many windows is lower than the truth by about 1.5 of these errors."""

Status = Literal["confirmed", "refuted", "unconfirmed", "exact", "explained", "not asked"]


@dataclass(frozen=True)
class ChangeVerdict:
    """Verdict on a change, for a candidate from a re-run of both commits side by side."""

    status: Status
    message: str = ""
    effect: float | None = None
    """Relative slowdown in the re-run; 0.05 is 5 % slower."""


NOT_RE_RUN = ChangeVerdict("unconfirmed", "nothing was re-run")


@dataclass(frozen=True)
class Change:
    """Change of level in one series."""

    series: Series
    kind: Literal["step", "creep"]
    before: Commit
    """Last commit that is surely on the old level."""
    after: Commit
    """First commit that is surely on the new level."""
    likely: Commit
    """Most likely first commit of the new level."""
    old: float
    new: float
    """New level. Both levels are in the benchmark's unit."""
    spread: float
    """Half width of the 95 % interval of ``effect``; 0 if numbers are exact."""
    worse: bool
    standing: bool
    """True if the newest results still show the change."""
    verdict: ChangeVerdict = ChangeVerdict("not asked")

    @property
    def effect(self) -> float:
        """Relative change of the value; infinite if the old level is 0."""
        if self.old == 0:
            return math.copysign(math.inf, self.new)
        return self.new / self.old - 1

    @property
    def id(self) -> str:
        return short_id("r", *self.series.key, self.kind, self.likely.hash)

    @property
    def alerts(self) -> bool:
        """True if the change is reported as a regression: it is worse, still there, and certain."""
        return self.worse and self.standing and self.verdict.status in ("confirmed", "exact")

    @property
    def is_candidate(self) -> bool:
        """True if the change would be reported as a regression after a re-run confirmed it."""
        return self.worse and self.standing and self.verdict.status in ("unconfirmed", "not asked")

    def judged(self, verdict: ChangeVerdict) -> Change:
        return replace(self, verdict=verdict)


class DetectorMissingError(Exception):
    """Raised if the package that finds change points is not installed."""


def noise(values: Sequence[float]) -> float:
    """Estimate the standard deviation of one value from differences of neighbors, so that steps do not count.

    Slopes do not count either. The estimate is the median absolute difference. It is scaled to a normal distribution
    (0.6745) and from a difference of two values to one value (√2).
    """
    steps = [abs(after - before) for before, after in itertools.pairwise(values)]
    return statistics.median(steps) / (0.6745 * math.sqrt(2)) if steps else 0.0


def relative_noise(series: Series) -> float | None:
    """Return the relative standard deviation between neighboring commits, or ``None`` if it cannot be estimated.

    That is the case for too few points, and for values that are not positive.
    """
    values = [point.value for point in series.points]
    if len(values) < SHORTEST or min(values) <= 0:
        return None
    return noise([math.log(value) for value in values])


def changes(series: Series, margin: float = MARGIN) -> list[Change]:
    """Find changes of level in a series, oldest first, in both directions. Those that are worse are candidates.

    :raises DetectorMissingError: if the series needs ``ruptures`` and it is not installed.
    """
    if is_exact(series.benchmark):
        return _exact(series)
    if len(series.points) < SHORTEST or min(point.value for point in series.points) <= 0:
        return []
    logs = [math.log(point.value) for point in series.points]
    sigma = max(noise(logs), NOISE_FLOOR)
    logs = _without_outliers(logs, sigma)
    edges = [0, *_edges([value / sigma for value in logs])]
    detected = []
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
        detected.append(
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
    return [*detected, slow] if slow else detected


def _stands(change: float, left: float, margin: float, error: float) -> bool:
    """Return whether a change still matters at the newest level. Differences are of logarithms.

    It matters if the remaining part is more than half of the change or more than the margin, and is not within noise.
    So a large slowdown does not count as ended if only a part of it was repaired.

    :param left: part of ``change`` that the newest level still has.
    :param error: half width of the 95 % interval of ``left``.
    """
    if left == change:
        return True
    size = math.copysign(1, change) * left
    return size > max(min(abs(change) / 2, math.log1p(margin)), error)


def _without_outliers(values: Sequence[float], sigma: float) -> list[float]:
    """Replace single outliers by the median of their four neighbors. A commit would change the later values too."""
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
    """Return the ends of the segments of values with noise 1, found by PELT (Killick et al. 2012, arXiv 1101.1438)."""
    try:
        import ruptures
    except ImportError as error:
        raise DetectorMissingError(
            f"finding changes needs ruptures ({error}): {install_line('bench')}, or --no-detect to write only the page"
        ) from error
    import numpy as np

    # At least two points, because a single one is an outlier until another commit agrees with it. The linear kernel
    # is used because its cost, the sum of squares, is computed in compiled code.
    algorithm: Any = ruptures.KernelCPD(kernel="linear", min_size=2)
    ends = algorithm.fit(np.asarray(scaled).reshape(-1, 1)).predict(pen=PENALTY * math.log(len(scaled)))
    return [int(edge) for edge in ends]


def _place(values: Sequence[float]) -> tuple[int, int]:
    """Return the first and last of the most likely places of one change, which together have probability ``PLACE``.

    The posterior of the place is for normal noise of unknown size, without prior knowledge of levels and place (Smith
    1975, Biometrika 62). It is proportional to ``(k(n - k))^(-1/2) S(k)^(-(n - 2) / 2)``, with S the residual sum of
    squares.
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
    exact = []
    by_chance = leaf(series.benchmark) in BY_CHANCE
    levels = [min(point.value, 1.0) if by_chance else point.value for point in series.points]
    for (before, old), (after, new) in itertools.pairwise(zip(series.points, levels, strict=True)):
        if old == new:
            continue
        worse = _is_worse(series, new - old)
        standing = _is_worse(series, levels[-1] - old) if worse else levels[-1] == new
        exact.append(
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
                ChangeVerdict("exact", "counted: the same in every run"),
            )
        )
    return exact


def _creep(series: Series, logs: Sequence[float], sigma: float, margin: float) -> Change | None:
    """Compare the newest level with the best one that lasted for a while, to find sums of small steps (asv#932)."""
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
    """Return whether a creep exceeds the steps of its series that were not refuted, by at least ``margin``.

    Steps in the other direction count too, so that the rest of a slowdown is reported if it was repaired in part.
    """
    reported = sum(
        math.log(step.new / step.old)
        for step in steps
        if step.kind == "step"
        and step.series.key == creep.series.key
        and step.verdict.status != "refuted"
        and step.after > creep.before
    )
    total = math.log(creep.new / creep.old)
    return math.copysign(1, total) * (total - reported) >= math.log1p(margin)
