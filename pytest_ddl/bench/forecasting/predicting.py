"""Forecast the time of an update at sizes that were not measured: weigh the draws by the measurements, and read them.

A draw of the model counts as much as it agrees with the measured times. Its scale, the time of one micro-step in
seconds, is integrated out: under normal noise of the logarithms it is the weighted mean of the differences. This is
importance sampling (Robert and Casella 2004, Monte Carlo Statistical Methods, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pytest_ddl.bench.forecasting.evidence import Evidence, Size
from pytest_ddl.bench.forecasting.model import TERMS, Array, Draws, draw, terms
from pytest_ddl.bench.forecasting.priors import PRIORS, Priors
from pytest_ddl.bench.forecasting.refusals import Warned, refusal, warnings

LEVEL = 0.9
FEWEST_EFFECTIVE = 5.0
"""Effective number of draws below which no draw explains the measurements."""
FLOOR = 0.8
"""Efficiency whose loss the forecast names, unless another one is asked for."""


@dataclass(frozen=True)
class Point:
    """Forecast for one size, or the reason why there is none."""

    size: Size
    seconds: float | None = None
    """Median of the time of an update."""
    low: float | None = None
    high: float | None = None
    """Bounds of the interval in which a measurement is expected with the probability ``LEVEL``."""
    efficiency: float | None = None
    """Median of the throughput of a replica against that of one replica alone."""
    efficiency_low: float | None = None
    efficiency_high: float | None = None
    exposed: float | None = None
    """Median share of the update in which replicas communicate and do not compute."""
    shares: dict[str, float] = field(default_factory=dict)
    """Term -> mean share of the update."""
    refused: str = ""
    """Reason why there is no number."""

    @property
    def throughput(self) -> float | None:
        """Examples per second; without a batch size, batches of a replica per second."""
        return None if self.seconds is None else self.size.examples / self.seconds

    @property
    def binding(self) -> str:
        """Name of the term that costs the most beside the computation itself; empty without a forecast."""
        costs = {name: share for name, share in self.shares.items() if name not in ("compute", "fixed")}
        return max(costs, key=lambda name: costs[name]) if costs else ""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "throughput": self.throughput, "binding": self.binding}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Point:
        """Return the point that :meth:`as_json` wrote."""
        kept = {key: value for key, value in data.items() if key not in ("throughput", "binding")}
        return cls(**{**kept, "size": Size(**data["size"])})


@dataclass(frozen=True)
class Posterior:
    """Draws with their weights after the measurements."""

    evidence: Evidence
    draws: Draws
    weights: Array
    scale: Array
    """Logarithm of the seconds of one micro-step of the reference, for each draw."""
    noise: float
    """Relative noise of one measurement. It is larger than the prior's if no draw explains the measurements."""

    @property
    def effective(self) -> float:
        """Effective number of draws."""
        return float(1 / np.sum(self.weights**2))

    def predict(self, size: Size, *, floor_of: Size | None = None) -> Point:
        """Return the forecast for a size.

        :param floor_of: size of one replica alone, for the efficiency.
        """
        parts = terms(self.evidence, self.draws, size)
        total = sum(parts.values(), start=np.zeros_like(self.scale))
        doublings = max(0.0, math.log2(size.replicas / self.evidence.largest.size.replicas))
        count = len(self.evidence.observations)
        unknown = math.hypot(self.noise * math.sqrt(1 + 1 / count), self.draws.priors.discrepancy * doublings)
        deviation = unknown * np.random.default_rng(0).standard_normal(len(total))
        low, high = self._quantiles(np.log(total) + self.scale + deviation)
        one = sum(terms(self.evidence, self.draws, floor_of or _alone(size)).values(), start=np.zeros_like(total))
        alone = floor_of or _alone(size)
        efficiency = (size.examples / total / size.replicas) / (alone.examples / one)
        middle = self._quantiles(efficiency, (0.5,))[0]
        spread = self._quantiles(efficiency * np.exp(-deviation))
        exposed = sum((parts[name] for name in ("within", "between", "latency")), start=np.zeros_like(total)) / total
        return Point(
            size,
            math.exp(self._quantiles(np.log(total) + self.scale, (0.5,))[0]),
            math.exp(low),
            math.exp(high),
            middle,
            *spread,
            self._quantiles(exposed, (0.5,))[0],
            {name: float(np.sum(self.weights * parts[name] / total)) for name in TERMS},
        )

    def _quantiles(self, values: Array, levels: Sequence[float] = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)) -> list[float]:
        order = np.argsort(values)
        reached = np.cumsum(self.weights[order])
        return [float(number) for number in np.interp(levels, reached / reached[-1], values[order])]


@dataclass(frozen=True)
class Forecast:
    """Forecast of one program."""

    evidence: Evidence
    points: tuple[Point, ...]
    warnings: tuple[Warned, ...] = ()
    """What makes the forecast less certain, in words."""

    def as_json(self) -> dict[str, Any]:
        """Return numbers, strings, lists and dicts only."""
        return {
            "program": self.evidence.name,
            "evidence": asdict(self.evidence),
            "points": [point.as_json() for point in self.points],
            "warnings": [asdict(one) for one in self.warnings],
        }


def fit(evidence: Evidence, priors: Priors = PRIORS) -> Posterior:
    """Weigh draws of the model by the measured times."""
    draws = draw(evidence, priors)
    logs = np.array(
        [
            math.log(one.seconds) - np.log(sum(terms(evidence, draws, one.size).values(), start=0.0))
            for one in evidence.observations
        ]
    )
    spreads = np.array([math.hypot(priors.noise, one.spread) for one in evidence.observations])
    precision = 1 / spreads**2
    scale = (precision[:, None] * logs).sum(axis=0) / precision.sum()
    misfit = (precision[:, None] * (logs - scale) ** 2).sum(axis=0)
    # If no draw explains the measurements, the noise is larger than it was believed to be.
    inflation = max(1.0, float(misfit.min()) / max(1, len(logs) - 1))
    weights = np.exp(-(misfit - misfit.min()) / 2 / inflation)
    return Posterior(
        evidence, draws, weights / weights.sum(), scale, math.sqrt(inflation / precision.mean())
    )


def forecast(evidence: Evidence, sizes: Sequence[Size], priors: Priors = PRIORS) -> Forecast:
    """Forecast the time of an update at several sizes. A size that cannot be forecast has the reason in its point.

    :raises MissingPackageError: if scipy is not installed.
    """
    posterior = fit(evidence, priors)
    points = []
    for size in sizes:
        reason = refusal(evidence, size)
        if not reason and posterior.effective < FEWEST_EFFECTIVE:
            reason = "no term of the model explains the measured times: measure again, and more sizes"
        points.append(Point(size, refused=reason) if reason else posterior.predict(size))
    return Forecast(evidence, tuple(points), tuple(warnings(evidence)))


def _alone(size: Size) -> Size:
    return Size(1, 1, size.batch_per_replica, size.accumulation)
