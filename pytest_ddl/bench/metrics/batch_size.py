"""Steps to a target as a function of the global batch size, to find the sizes at which a larger batch still helps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any

from pytest_ddl.bench.metrics.registry import NoNumberError, metric, statistics_package

FEWEST_BATCHES = 3
PERFECT = -0.9
"""Slope ``d log(steps) / d log(batch)`` up to which scaling is perfect: doubling the batch saves 46 % of the steps."""
USELESS = -0.1
"""Slope above which a larger batch hardly helps: doubling the batch saves 7 % of the steps or less."""


class Regime(str, Enum):
    """Effect of doubling the global batch."""

    PERFECT_SCALING = "perfect scaling"
    DIMINISHING_RETURNS = "diminishing returns"
    MAXIMAL_DATA_PARALLELISM = "maximal data parallelism"


@dataclass(frozen=True)
class BatchScaling:
    """Steps to a target as a function of the batch: ``steps(B) = fewest (1 + critical / B)``."""

    points: tuple[tuple[int, float], ...]
    """Batch sizes with their measured steps."""
    fewest_steps: float
    """Limit of the steps for very large batches."""
    critical_batch: float
    """Batch size in examples that takes twice the fewest steps and twice the fewest examples."""
    regimes: tuple[Regime, ...]
    """Regime of each point."""
    residual: float
    """Standard deviation of log(measured / fitted); the smaller, the better the curve describes the points."""
    notes: tuple[str, ...] = ()

    @property
    def perfect_up_to(self) -> float:
        """Largest batch of perfect scaling, in examples."""
        return self.critical_batch * (1 + PERFECT) / -PERFECT

    @property
    def maximal_from(self) -> float:
        """Smallest batch beyond which a larger one saves hardly any steps, in examples."""
        return self.critical_batch * (1 + USELESS) / -USELESS

    def predict(self, batch: float) -> float:
        """Return the predicted steps to the target for a batch size."""
        return self.fewest_steps * (1 + self.critical_batch / batch)

    def __str__(self) -> str:
        text = "; ".join(
            f"batch {batch}: {steps:g} steps, {regime.value}"
            for (batch, steps), regime in zip(self.points, self.regimes, strict=True)
        )
        notes = "".join(f"\n{note}" for note in self.notes)
        return (
            f"{text}\nperfect scaling up to about {self.perfect_up_to:.0f}, none beyond {self.maximal_from:.0f}{notes}"
        )


@metric(
    "steps",
    "lower",
    scope="training",
    name="steps_to_target",
    summary="steps until the loss reaches a target, against the global batch size",
    measured_by="training_to_target:steps_to_target",
)
def batch_regimes(points: Sequence[tuple[int, float]]) -> BatchScaling:
    """Determine in which of the three regimes each batch size is.

    Shallue et al. find that steps fall as 1/B (perfect scaling), then more slowly (diminishing returns), then not at
    all (maximal data parallelism). The fitted curve is ``steps(B) = S (1 + B_crit / B)``, by least squares of
    logarithms. Its slope in log-log is ``-1 / (1 + B / B_crit)``. The regimes are slopes below -0.9, between -0.9 and
    -0.1, and above -0.1. These bounds are our own; the paper gives none.

    The steps of a batch size are only meaningful if the learning rate (and momentum) were tuned for it. With a rate
    that is scaled by a rule, perfect scaling ends early because of the rule.

    The curve is from McCandlish et al. 2018, arXiv 1812.06162.

    :formula: first step with smoothed loss <= target, best of the learning rates; regimes from S (1 + B_crit / B)
    :source: Shallue et al. 2019, JMLR 20(112)
    :param points: global batch sizes, each with its steps to the target.
    :raises NoNumberError: for fewer than 3 different batch sizes.
    :raises ValueError: if a size or a number of steps is not positive.
    """
    ordered = sorted((int(batch), float(steps)) for batch, steps in points)
    if any(not batch > 0 or not steps > 0 for batch, steps in ordered):
        raise ValueError(f"points={list(points)!r}: batch sizes and steps must be positive")
    if len({batch for batch, _steps in ordered}) < FEWEST_BATCHES:
        raise NoNumberError(f"regimes need {FEWEST_BATCHES} batch sizes or more, not {len(ordered)} point(s)")
    import numpy as np

    optimize = statistics_package("scipy.optimize")
    batches, steps = np.array([each[0] for each in ordered], float), np.array([each[1] for each in ordered])

    def residuals(logs: Any) -> Any:
        # Logarithms of the parameters keep both positive, and logaddexp adds the two terms without overflow.
        return np.logaddexp(logs[0], logs[1] - np.log(batches)) - np.log(steps)

    start = np.log([steps.min() / 2, (steps * batches).min() / 2])
    found = optimize.least_squares(residuals, start, bounds=(-50, 50), x_scale=1.0)
    fewest, examples = (math.exp(each) for each in found.x)
    critical = examples / fewest
    spread = float(np.sqrt(np.sum(found.fun**2) / max(1, len(ordered) - 2)))
    regimes = tuple(_regime(-1 / (1 + batch / critical)) for batch, _steps in ordered)
    return BatchScaling(tuple(ordered), fewest, critical, regimes, spread, _notes(ordered, spread))


def _regime(slope: float) -> Regime:
    if slope <= PERFECT:
        return Regime.PERFECT_SCALING
    return Regime.DIMINISHING_RETURNS if slope < USELESS else Regime.MAXIMAL_DATA_PARALLELISM


def _notes(points: list[tuple[int, float]], spread: float) -> tuple[str, ...]:
    notes = []
    if spread > 0.25:
        notes.append(f"the curve misses the points by {spread:.0%}: the regimes are not reliable")
    for (batch, steps), (larger, more) in pairwise(points):
        if larger > batch and more > 1.1 * steps:
            notes.append(
                f"batch {larger} takes more steps than {batch} ({more:g} > {steps:g}): its learning rate is not tuned"
            )
        if larger > batch and more < 0.9 * steps * batch / larger:
            notes.append(f"batch {larger} exceeds perfect scaling from {batch}: {batch} is not tuned")
    return tuple(notes)
