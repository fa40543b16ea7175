"""Estimate a metric of a matrix with its uncertainty; the launch is the unit, never a block within it.

Blocks of one launch share its memory layout and placement, so pooling them understates the spread (Kalibera and Jones
2013, arXiv 2007.10899). Here each launch gives one number, and the t interval is over launches. On a ratio scale, it is
the interval of logarithms, so that a metric and its reciprocal agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_ddl.bench.launching.records import Launch
from pytest_ddl.bench.metrics.of_pair import UNSCALED
from pytest_ddl.bench.metrics.registry import (
    METRICS,
    MissingPackageError,
    NoNumberError,
    metric_named,
    statistics_package,
)

LEVEL = 0.95


class Launches(Protocol):
    """Launches of several variants, for example :class:`~pytest_ddl.bench.matrix.Matrix`."""

    @property
    def launches(self) -> Sequence[Launch]: ...

    @property
    def variants(self) -> Sequence[str]: ...

    def of(self, variant: str) -> Sequence[Launch]:
        """Return the launches of a variant.

        :raises KeyError: if there are none.
        """


@dataclass(frozen=True)
class Estimate:
    """Metric of one variant: a number with its interval, or the reason why there is none."""

    metric: str
    variant: str
    value: float | None
    """Mean over launches in the metric's unit; the geometric mean on a ratio scale."""
    low: float | None = None
    high: float | None = None
    samples: tuple[float, ...] = ()
    """One number for each launch; for a metric against a baseline, one for each pair of launches."""
    level: float = LEVEL
    baseline: str | None = None
    note: str = ""
    """Reason why there is no number, or a limit of the number."""
    no_interval: str = ""
    """Reason why there is no interval."""

    @property
    def half_width(self) -> float | None:
        """Half the interval relative to the value, as written after ±; ``None`` without an interval."""
        if self.value is None or self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / 2 / abs(self.value)

    def spread(self, decimals: int = 0) -> str:
        """Return half the interval as text, such as ``±5%``; empty without an interval."""
        half = self.half_width
        if half is None:
            return ""
        return f"±{half:.{decimals}%}" if half < 0.995 else "±>99%"

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.metric} of {self.variant}: none, {self.note}"
        unit = METRICS[self.metric].unit
        text = f"{self.metric} of {self.variant}: {self.value:.4g}{' ' + unit if unit else ''}"
        if self.low is not None and self.high is not None:
            text += f" ({self.level:.0%} interval {self.low:.4g} to {self.high:.4g}, {len(self.samples)} launches)"
        return "; ".join(filter(None, (text, self.no_interval, self.note)))


def estimate(
    name: str, matrix: Launches, variant: str, *, baseline: str | None = None, level: float = LEVEL
) -> Estimate:
    """Estimate a metric of one variant of a matrix.

    :param name: metric with scope ``launch`` or ``pair``; see ``METRICS``.
    :param baseline: variant on one replica, for metrics against a baseline (default: :func:`baseline_of`).
    :param level: confidence level of the interval, between 0 and 1.
    :raises KeyError: if the variant was not measured.
    :raises ValueError: if the metric does not exist or is not one of a variant, or the level is invalid.
    """
    found = metric_named(name)
    if found.of is None:
        raise ValueError(f"{name} is not a number of one variant (its scope is {found.scope}): see {found.function}")
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must be between 0 and 1")
    launches = matrix.of(variant)
    against: str | None = None
    note = ""
    try:
        if found.scope == "pair":
            against = baseline or baseline_of(matrix)
            # Variants take turns, so both launches of a pair ran under the same conditions.
            pairs = list(zip(matrix.of(against), launches, strict=False))
            values = [found.of(one, many) for one, many in pairs]
            if len(launches) != len(matrix.of(against)):
                note = f"{len(pairs)} pair(s): {variant} has {len(launches)}, {against} {len(matrix.of(against))}"
            if many_cores := _shared_cores(matrix, variant, against):
                note = "; ".join(filter(None, (note, many_cores)))
        else:
            values = [found.of(one) for one in launches]
    except NoNumberError as error:
        return Estimate(name, variant, None, level=level, baseline=against, note=str(error))
    low: float | None
    high: float | None
    try:
        value, low, high = interval(values, level=level, ratio_scale=found.ratio_scale)
        why = "one launch: no interval" if low is None else ""
    except MissingPackageError as error:
        # The mean needs no package for statistics, so it is given without its interval.
        back, logs = _scale(values, found.ratio_scale)
        value, low, high, why = back(statistics.fmean(logs)), None, None, f"no interval: {error}"
    return Estimate(name, variant, value, low, high, tuple(values), level, against, note, why)


def interval(
    samples: list[float], *, level: float = LEVEL, ratio_scale: bool = True
) -> tuple[float, float | None, float | None]:
    """Return the mean of independent samples and the bounds of its t interval; ``None`` as bounds of a single sample.

    The interval is ``m ± t(level, n - 1) * s / sqrt(n)``. On a ratio scale, it is computed with logarithms and
    converted back with exp.

    :raises MissingPackageError: if scipy is not installed.
    :raises ValueError: if there are no samples.
    """
    if not samples:
        raise ValueError("samples=[]: there is nothing to make a mean of")
    if len(samples) == 1:
        return samples[0], None, None
    back, values = _scale(samples, ratio_scale)
    mean = statistics.fmean(values)
    stats = statistics_package("scipy.stats")
    # Not stats.t.interval, which returns nan for equal samples, because they have no spread.
    half = stats.sem(values) * stats.t.ppf((1 + level) / 2, len(values) - 1)
    return back(mean), back(mean - half), back(mean + half)


def _scale(samples: list[float], ratio_scale: bool) -> tuple[Callable[[float], float], list[float]]:
    """Return the function that converts a mean back, and the samples on the scale on which the mean is computed."""
    if ratio_scale and all(sample > 0 for sample in samples):
        return math.exp, [math.log(sample) for sample in samples]
    return float, samples


def baseline_of(matrix: Launches) -> str:
    """Return the variant that others are compared with: ``one_device``, else the first one on one replica.

    :raises NoNumberError: if no such variant was measured.
    """
    if "one_device" in matrix.variants:
        return "one_device"
    for launch in matrix.launches:
        if launch.replicas == 1 and launch.strategy.split("[")[0] not in UNSCALED:
            return launch.strategy
    raise NoNumberError("no variant on one replica was measured: add one_device to the variants")


def _shared_cores(matrix: Launches, variant: str, baseline: str) -> str:
    """Return a note if replicas were not pinned, because one replica on a CPU then uses all cores."""
    if variant == baseline:
        return ""
    unpinned = any(item.device == "cpu" and not item.pinned for item in (*matrix.of(variant), *matrix.of(baseline)))
    return "replicas were not pinned and share cores: measure with pin=True" if unpinned else ""
