"""Fit the Universal Scalability Law to throughput over numbers of replicas."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddl.bench.metrics.estimates import LEVEL, Launches, estimate
from pytest_ddl.bench.metrics.registry import NoNumberError, metric, statistics_package

FEWEST_SIZES = 6
"""Fewest sizes for a fit; with fewer, three parameters follow the noise (Gunther 2007: half a dozen data points)."""


@dataclass(frozen=True)
class Parameter:
    """Fitted parameter with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class UslFit:
    """Fit of ``X(N) = λ N / (1 + σ (N - 1) + κ N (N - 1))``, with intervals of its parameters."""

    throughput_of_one: Parameter
    """lambda: the throughput of one replica in examples/s."""
    contention: Parameter
    """sigma, see :func:`usl_contention`; 0 is ideal."""
    coherency: Parameter
    """kappa, see :func:`usl_coherency`."""
    sizes: tuple[int, ...]
    level: float
    residual: float
    """Standard deviation of measured divided by fitted throughput; the smaller, the better the fit."""

    @property
    def peak(self) -> float | None:
        """Replicas beyond which throughput falls, ``sqrt((1 - σ) / κ)``; ``None`` without coherency cost."""
        if self.coherency.value <= 0 or self.contention.value >= 1:
            return None
        return math.sqrt((1 - self.contention.value) / self.coherency.value)

    def predict(self, replicas: float) -> float:
        """Return the throughput in examples/s; beyond the largest measured size, it is only an extrapolation."""
        return float(_law(replicas, self.throughput_of_one.value, self.contention.value, self.coherency.value))

    def __str__(self) -> str:
        peak = f"peak at {self.peak:.0f} replicas" if self.peak is not None else "no peak"
        return (
            f"USL over {len(self.sizes)} sizes: contention {self.contention}, coherency {self.coherency}, {peak}, "
            f"residual {self.residual:.1%}"
        )


@metric("", "lower", scope="sizes", ratio_scale=False, measured_by="metrics.usl:fit_usl")
def usl_contention(fit: UslFit) -> float:
    """Return the share of work that waits for shared resources; needs at least 6 sizes.

    :formula: sigma of X(N) = lambda N / (1 + sigma (N-1) + kappa N (N-1))
    :source: Gunther 2007, arXiv 0808.1431
    """
    return fit.contention.value


@metric("", "lower", scope="sizes", ratio_scale=False, measured_by="metrics.usl:fit_usl")
def usl_coherency(fit: UslFit) -> float:
    """Return the cost of each pair of replicas; above 0, throughput has a peak.

    :formula: kappa of the same
    :source: Gunther 2007, arXiv 0808.1431
    """
    return fit.coherency.value


def fit_usl(replicas: Sequence[int], throughputs: Sequence[float], *, level: float = LEVEL) -> UslFit:
    """Fit the Universal Scalability Law.

    ``X(N) = λ N / (1 + σ (N - 1) + κ N (N - 1))`` is fitted by least squares of relative errors
    (``scipy.optimize.curve_fit``). The intervals are t intervals from the covariance of the parameters. Parameters are
    not bounded: a contention below 0 means faster than linear (caches), and is reported as it is.

    Source: Gunther 2007, Guerrilla Capacity Planning, chapters 4 to 6; arXiv 0808.1431.

    :param replicas: sizes, one for each throughput; several throughputs of one size count as one size.
    :param throughputs: examples/s.
    :param level: confidence level of the intervals.
    :raises NoNumberError: for fewer than 6 different sizes, or if no curve can be fitted.
    :raises ValueError: if the lists differ in length, or a number is not positive.
    """
    if len(replicas) != len(throughputs):
        raise ValueError(f"{len(replicas)} sizes for {len(throughputs)} throughputs: give one size for each")
    if any(not value > 0 for value in (*replicas, *throughputs)):
        raise ValueError("replicas and throughputs must be positive")
    sizes = sorted(set(replicas))
    if len(sizes) < FEWEST_SIZES:
        raise NoNumberError(
            f"a USL fit needs {FEWEST_SIZES} different numbers of replicas or more, not {len(sizes)} "
            f"({', '.join(map(str, sizes))}): fewer fit any noise. Efficiency and the serial fraction need only two"
        )
    import numpy as np

    optimize, stats = statistics_package("scipy.optimize"), statistics_package("scipy.stats")

    # Launches of one size share the conditions of that size, so sizes are independent and launches are not.
    mean = [
        statistics.geometric_mean([t for n, t in zip(replicas, throughputs, strict=True) if n == size])
        for size in sizes
    ]
    x, y = np.array(sizes, float), np.array(mean)
    start = (float(y[0] / x[0]), 0.05, 0.001)
    try:
        found, covariance = optimize.curve_fit(_law, x, y, p0=start, sigma=y, maxfev=20_000)
    except RuntimeError as error:
        raise NoNumberError(f"no USL curve could be fitted: {error}") from None
    free = len(sizes) - len(found)
    half = stats.t.ppf((1 + level) / 2, free) * np.sqrt(np.diag(covariance))
    parameters = [Parameter(float(v), float(v - each), float(v + each)) for v, each in zip(found, half, strict=True)]
    residual = float(np.sqrt(np.sum((y / _law(x, *found) - 1) ** 2) / free))
    return UslFit(parameters[0], parameters[1], parameters[2], tuple(sizes), level, residual)


def usl_of(matrix: Launches, strategy: str = "mirrored", *, level: float = LEVEL) -> UslFit:
    """Fit the law to a strategy's variants in a matrix: the mean throughput of each number of replicas.

    The throughput of one replica is that of the strategy's own variant with one replica, else of ``one_device``.

    :raises NoNumberError: for fewer than 6 sizes, or if a throughput is not known.
    """
    throughputs: dict[int, float] = {}
    for variant in matrix.variants:
        name, replicas = variant.split("[")[0], matrix.of(variant)[0].replicas
        if name != strategy and not (name == "one_device" and replicas not in throughputs):
            continue
        mean = estimate("throughput", matrix, variant)
        if mean.value is None:
            raise NoNumberError(mean.note)
        throughputs[replicas] = mean.value
    return fit_usl(list(throughputs), list(throughputs.values()), level=level)


def _law(n: Any, one: float, contention: float, coherency: float) -> Any:
    return one * n / (1 + contention * (n - 1) + coherency * n * (n - 1))
