"""Compare cases of a study by intervals: a case is better only if an interval separates it from the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddl.bench.metrics.estimates import interval

LEVEL = 0.95


@dataclass(frozen=True)
class Ratio:
    """Ratio of two cases over runs that took turns, with its interval; below 1, the first case has less."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> str:
        """``less``, ``more``, or ``not separated`` if the interval contains 1 or there is none."""
        if self.low is None or self.high is None or self.low <= 1.0 <= self.high:
            return "not separated"
        return "less" if self.high < 1.0 else "more"

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(first: Sequence[float], second: Sequence[float], *, level: float = LEVEL) -> Ratio:
    """Return the ratio of two cases with the t interval of its logarithm over pairs of runs.

    The runs of a pair followed each other, so a drift of the machine changes both.

    :raises ValueError: if the cases have different numbers of runs, or a value is not positive and finite.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} runs: each run needs its partner")
    if not all(value > 0 and math.isfinite(value) for value in (*first, *second)):
        raise ValueError(f"first={list(first)}, second={list(second)}: a ratio needs positive, finite values")
    return Ratio(*interval([one / other for one, other in zip(first, second, strict=True)], level=level))


def joint(comparisons: int, *, level: float = LEVEL) -> float:
    """Return the level of each of several intervals, so that all are right with the probability ``level``.

    This is Bonferroni's correction: ``1 - (1 - level) / comparisons``.
    """
    return 1 - (1 - level) / max(1, comparisons)


@dataclass(frozen=True)
class Best:
    """Case with the smallest values, if intervals separate it from all others."""

    name: str | None
    """``None`` if the smallest mean is not separated from another case."""
    smallest: str
    """Case with the smallest mean, separated or not."""
    rivals: tuple[str, ...] = ()
    """Cases that are not separated from the smallest."""

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        return f"not separated: {', '.join((self.smallest, *self.rivals))}"


def best(cases: Mapping[str, Sequence[float]], *, level: float = LEVEL) -> Best:
    """Find the case with the smallest values; name it only if it is less than every other case.

    The case is chosen by the same data that judge it, so every pair of cases could have been compared. The level of
    each interval is therefore that of :func:`joint` for all pairs: a wrong name has at most the probability
    ``1 - level``.

    :param cases: name -> one value for each run; run k of all cases followed each other.
    :raises ValueError: if there are no cases.
    """
    if not cases:
        raise ValueError("cases={}: there is nothing to compare")
    smallest = min(cases, key=lambda name: interval(list(cases[name]))[0])
    each = joint(len(cases) * (len(cases) - 1) // 2, level=level)
    rivals = tuple(
        name
        for name, values in cases.items()
        if name != smallest and ratio(cases[smallest], values, level=each).verdict != "less"
    )
    return Best(None if rivals else smallest, smallest, rivals)


def shown(values: Sequence[float], *, scale: float = 1.0, ratio_scale: bool = True) -> str:
    """Return the mean of values with its interval as text, for example ``1.2 (1.1 to 1.4)``."""
    numbers = interval([value * scale for value in values], level=LEVEL, ratio_scale=ratio_scale)
    mean, low, high = (None if number is None else written(number) for number in numbers)
    return str(mean) if low is None else f"{mean} ({low} to {high})"


def written(value: float) -> str:
    """Return three significant digits without an exponent if that is short."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"
