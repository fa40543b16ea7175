"""Forecast the time of an update at sizes that were not measured, with intervals and what costs the most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from pytest_ddl.bench.forecasting.evidence import ForecastEvidence, Size
from pytest_ddl.bench.forecasting.model import TERMS, Array, Fitted, fit, terms
from pytest_ddl.bench.forecasting.priors import PRIORS
from pytest_ddl.bench.forecasting.refusals import Warned, refusal, warnings
from pytest_ddl.json_records import JsonRecord

LEVEL = 0.9
LARGEST_MISFIT = 16.0
"""Misfit above which the measurements contradict each other: the best draw is 4 standard deviations of noise away."""
FLOOR = 0.8
"""Efficiency whose loss the forecast names, unless another one is asked for."""


@dataclass(frozen=True)
class ForecastPoint(JsonRecord):
    """Forecast for one size, or the reason why there is none."""

    DERIVED: ClassVar = ("throughput", "binding")

    size: Size
    seconds: float | None = None
    """Median of the time of an update."""
    low: float | None = None
    high: float | None = None
    """Bounds of the interval in which a measurement is expected with the probability ``LEVEL``."""
    efficiency: float | None = None
    """Median of the throughput of a replica against that of a single one."""
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
        """Name of the term that costs the most beside the computation itself; empty without a forecast or a cost."""
        costs = {name: share for name, share in self.shares.items() if name not in ("compute", "fixed") and share > 0}
        return max(costs, key=lambda name: costs[name]) if costs else ""


@dataclass(frozen=True)
class Posterior:
    """Belief about a program after its measurements."""

    evidence: ForecastEvidence
    fitted: Fitted

    def predict(self, size: Size, *, alone: Size | None = None) -> ForecastPoint:
        """Return the forecast for a size.

        :param alone: size of a single replica, for the efficiency (default: with the same batch for each replica).
        """
        parts = terms(self.evidence, self.fitted.draws, size)
        total = sum(parts.values(), start=np.zeros_like(self.fitted.scale))
        doublings = max(0.0, math.log2(size.replicas / self.evidence.largest.size.replicas))
        count = len(self.evidence.observations)
        nodes = max(0.0, math.log2(size.nodes / max(one.size.nodes for one in self.evidence.observations)))
        beyond = PRIORS.discrepancy * doublings + PRIORS.discrepancy_nodes * nodes
        unknown = math.hypot(self.fitted.noise * math.sqrt(1 + 1 / count), beyond)
        deviation = unknown * np.random.default_rng(0).standard_normal(len(total))
        low, high = self._quantiles(np.log(total) + self.fitted.scale + deviation)
        alone = alone or Size(1, 1, size.batch_per_replica, size.accumulation)
        one = sum(terms(self.evidence, self.fitted.draws, alone).values(), start=np.zeros_like(total))
        efficiency = (size.examples / total / size.replicas) / (alone.examples / one)
        (middle,) = self._quantiles(efficiency, (0.5,))
        lowest, highest = self._quantiles(efficiency * np.exp(-deviation))
        exposed = sum((parts[name] for name in ("within", "between", "latency")), start=np.zeros_like(total)) / total
        return ForecastPoint(
            size,
            math.exp(self._quantiles(np.log(total) + self.fitted.scale, (0.5,))[0]),
            math.exp(low),
            math.exp(high),
            middle,
            lowest,
            highest,
            self._quantiles(exposed, (0.5,))[0],
            {name: float(np.sum(self.fitted.weights * parts[name] / total)) for name in TERMS},
        )

    def with_communication(self, share: float, *, between_only: bool = False) -> Posterior:
        """Return the same belief about a program that communicates only a share of the bytes, or over faster links."""
        draws = self.fitted.draws
        within = draws.within * (1.0 if between_only else share)
        changed = replace(draws, within=within, between=draws.between * share)
        return replace(self, fitted=replace(self.fitted, draws=changed))

    def _quantiles(self, values: Array, levels: Sequence[float] = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)) -> list[float]:
        order = np.argsort(values)
        reached = np.cumsum(self.fitted.weights[order])
        return [float(number) for number in np.interp(levels, reached / reached[-1], values[order])]


@dataclass(frozen=True)
class Limit:
    """First size, of doubled ones, whose efficiency is below a floor, and what would raise it there."""

    floor: float
    replicas: int | None
    """``None`` if no size that can be forecast is below the floor."""
    largest: int
    """Largest number of replicas that was looked at."""
    binding: str = ""
    efficiency: float | None = None
    remedies: dict[str, float] = field(default_factory=dict)
    """Change of the program or the machine -> efficiency with it at that size."""


@dataclass(frozen=True)
class Forecast(JsonRecord):
    """Forecast of one program."""

    evidence: ForecastEvidence
    points: tuple[ForecastPoint, ...]
    warnings: tuple[Warned, ...] = ()
    """Reasons to trust it less, in words."""
    limit: Limit | None = None
    """Size at which the efficiency falls below a floor."""

    def as_json(self) -> dict[str, Any]:
        """Return numbers, strings, lists and dicts only."""
        return {"program": self.evidence.name, **super().as_json()}


def forecast(
    evidence: ForecastEvidence,
    replicas: Sequence[int] | Sequence[Size],
    *,
    strong: bool = False,
    floor: float = FLOOR,
) -> Forecast:
    """Forecast the time of an update at several sizes. A size that cannot be forecast has the reason in its point.

    :param replicas: numbers of replicas, or whole sizes.
    :param strong: keep the examples of an update over all replicas, and not those of a replica.
    :param floor: efficiency whose loss is looked for.
    :raises MissingPackageError: if scipy is not installed.
    """
    posterior = Posterior(evidence, fit(evidence))
    sizes = [one if isinstance(one, Size) else evidence.sized(one, strong=strong) for one in replicas]
    points = tuple(_point(posterior, size, strong=strong) for size in sizes)
    return Forecast(evidence, points, tuple(warnings(evidence)), limit_of(posterior, floor, strong=strong))


def _point(posterior: Posterior, size: Size, *, strong: bool) -> ForecastPoint:
    reason = refusal(posterior.evidence, size)
    if not reason and posterior.fitted.misfit > LARGEST_MISFIT:
        reason = (
            f"the measured times contradict each other by {posterior.fitted.noise:.0%}, and no term explains that. A "
            "busy machine does this: stop other programs, and measure again with more --launches. Or give times that "
            "were measured on a calm machine: launches (JSON), or a CSV file with rows whose role is anchor"
        )
    if reason:
        return ForecastPoint(size, refused=reason)
    return posterior.predict(size, alone=_alone(posterior.evidence, strong=strong))


def _alone(evidence: ForecastEvidence, *, strong: bool) -> Size | None:
    """Return one replica that takes all examples of an update, for strong scaling."""
    return evidence.sized(1, strong=True) if strong else None


def limit_of(posterior: Posterior, floor: float, *, strong: bool = False) -> Limit | None:
    """Return the first of doubled sizes whose median efficiency is below a floor, and what would raise it.

    ``None`` if no larger size can be forecast.
    """
    evidence, last = posterior.evidence, 0
    count = max(2, evidence.largest.size.replicas)
    while True:
        size = evidence.sized(count, strong=strong)
        point = _point(posterior, size, strong=strong)
        if point.efficiency is None:
            return Limit(floor, None, last) if last else None
        if point.efficiency < floor:
            break
        last, count = count, count * 2
    alone = _alone(evidence, strong=strong)
    faster = posterior.with_communication(0.5, between_only=True)
    remedies = {
        "half the bytes (16-bit gradients)": posterior.with_communication(0.5).predict(size, alone=alone),
        "a link between nodes that is twice as fast": faster.predict(size, alone=alone),
    }
    # With a fixed global batch, these would change what is trained.
    if not strong:
        more = replace(size, accumulation=2 * size.accumulation)
        remedies["twice the micro-steps for each update"] = posterior.predict(more)
        if size.batch_per_replica is not None:
            larger = replace(size, batch_per_replica=2 * size.batch_per_replica)
            remedies["twice the batch of a replica"] = posterior.predict(larger)
    gains = {name: found.efficiency for name, found in remedies.items() if found.efficiency is not None}
    better = {name: found for name, found in gains.items() if found > point.efficiency}
    ranked = dict(sorted(better.items(), key=lambda pair: -pair[1]))
    return Limit(floor, count, count, point.binding, point.efficiency, ranked)
