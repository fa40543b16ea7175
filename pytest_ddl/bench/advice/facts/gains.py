"""Gains: how many times as fast a step is after a change, with an interval from turns that were taken together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
DRAWS = 1000
QUANTILE = 25
"""Percentile of a launch's turns that stands for its step time.

Other programs can only make a turn longer, so low percentiles depend on them the least; the minimum would rest on one
turn. Two launches of one program took turns on two cores with a load of 24 (40 groups). The interval of their ratio was
0.84 to 1.04 with the lower quartile, and 0.78 to 1.09 with the median.
"""
BETWEEN_LAUNCHES = 1.1
"""Factor by which two launches of one program differ because of their memory and their cores, 95 % of the time.

The standard deviation between launches was 3.5 % (:data:`pytest_ddl.bench.gate.lockstep.GROUPS`), so the difference of
two has one of 5 %, and 1.96 times that is 10 %. Turns of one launch cannot show this.
"""

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Gain:
    """Factor by which the time for the same work changes: 2 means half the time."""

    value: float
    low: float
    high: float
    """Bounds of the 95 % interval."""
    on_average: bool = False
    """True if means of turns were compared and not quartiles: a cost that only a few turns have is in no quartile."""

    @property
    def share(self) -> float:
        """Part of the step that the change saves; negative if the change makes it slower."""
        return 1 - 1 / self.value

    def partly(self, part: float) -> Gain:
        """Return the gain if only a part (0 to 1) of what this gain saves can be saved."""
        value, low, high = (1 / (1 - part * (1 - 1 / max(each, 1e-9))) for each in (self.value, self.low, self.high))
        return Gain(value, low, high, self.on_average)

    def __str__(self) -> str:
        return f"{self.value:.2f} times as fast ({self.low:.2f} to {self.high:.2f})" + " on average" * self.on_average


def from_share(value: float, low: float, high: float) -> Gain:
    """Return the gain if a share of the step (0 to 1) is saved."""
    value, low, high = (1 / (1 - min(max(each, 0.0), 0.99)) for each in (value, low, high))
    return Gain(value, low, high)


def gain_of(base: Sequence[float], other: Sequence[float], *, on_average: bool = False) -> Gain:
    """Return the gain of ``other`` over ``base``: seconds of the same work, from the same groups of turns."""

    def ratio(times: Sequence[Times]) -> Any:
        return step_time(times[0], on_average=on_average) / step_time(times[1], on_average=on_average)

    return replace(resampled(ratio, [base, other]), on_average=on_average)


def resampled(statistic: Callable[[Sequence[Times]], Any], turns: Sequence[Sequence[float]]) -> Gain:
    """Return a statistic with its bootstrap interval; groups are drawn with all their turns.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13 (percentile interval).

    :param statistic: function of the seconds of each contender, with the groups along the last axis.
    :raises ValueError: if there are no groups, or not the same number of each contender.
    """
    table = np.array([list(one) for one in turns], float)
    if not table.size:
        raise ValueError("turns=[]: no group of turns was measured")
    groups = table.shape[1]
    drawn = np.random.default_rng(0).integers(0, groups, (DRAWS, groups))
    low, high = np.percentile(statistic(list(table[:, drawn])), [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Gain(float(statistic(list(table))), float(low), float(high))


def step_time(times: Any, *, on_average: bool = False) -> Any:
    """Return the step time of a launch in seconds: :data:`QUANTILE` of its turns along the last axis, or their mean."""
    return np.mean(times, axis=-1) if on_average else np.percentile(times, QUANTILE, axis=-1)


def noise_of(same: Gain | None) -> float:
    """Return the factor that a gain must exceed, from two launches of the same program that took turns.

    :param same: their gain; ``None`` if only one was measured.
    """
    return BETWEEN_LAUNCHES if same is None else max(BETWEEN_LAUNCHES, same.high, 1 / same.low)
