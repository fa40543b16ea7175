"""Model of the time of an update: draws of its unknown parameters, what follows from them, and how well each fits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from pytest_ddl.bench.forecasting.evidence import ForecastEvidence, Link, Size
from pytest_ddl.bench.forecasting.priors import (
    BETWEEN,
    PRIORS,
    UNKNOWN_BETWEEN,
    UNKNOWN_BYTES,
    UNKNOWN_MICRO,
    WITHIN,
    speed_of,
)
from pytest_ddl.bench.metrics.registry import statistics_package

Array = np.ndarray[Any, np.dtype[np.float64]]
PARAMETERS = 11
TERMS = {
    "compute": "computation",
    "fixed": "the fixed cost of each step",
    "stragglers": "waiting for the slowest replica",
    "crossing": "what each step loses as soon as several nodes take part",
    "within": "communication within a node",
    "between": "communication between nodes",
    "latency": "the latency of collectives",
}
"""Terms of a step, with their names in reports."""


@dataclass(frozen=True)
class PosteriorDraws:
    """Parameters of the model, one value for each draw. Times are relative to a micro-step of the reference."""

    fixed: Array
    jitter: Array
    within: Array
    """Time of the gradient over the link within a node."""
    growth: Array
    overlap: Array
    crossing: Array
    between: Array
    """Time of the gradient over the link between nodes."""
    between_growth: Array
    latency_within: Array
    """Time of all collectives of an update between two replicas of a node, if they had no bytes."""
    latency_between: Array
    latency_growth: Array
    """0 for latencies that grow with log2 N, 1 for N - 1."""


def parameters(evidence: ForecastEvidence, normal: Array) -> PosteriorDraws:
    """Return the parameters of independent standard normal numbers, distributed as is believed before the times.

    :param normal: one row of ``PARAMETERS`` numbers for each draw.
    :raises MissingPackageError: if scipy is not installed.
    """
    uniform = np.clip(statistics_package("scipy.stats").norm.cdf(normal), 1e-9, 1 - 1e-9)
    reference = evidence.reference
    micro = reference.seconds / reference.size.accumulation
    # Without a batch, the unit of the times is not seconds, so bytes and links say nothing.
    unit = micro if reference.size.batch_per_replica is not None else None
    # Slow phases of the machine are in the measured spread too, so it is the upper bound of that of single steps.
    jitter = PRIORS.jitter * np.abs(normal[:, 1]) if evidence.jitter is None else evidence.jitter * uniform[:, 1]
    return PosteriorDraws(
        fixed=np.clip(-PRIORS.fixed * np.log1p(-uniform[:, 0]), 0.0, 0.9),
        jitter=jitter,
        within=_transfer(evidence, evidence.within, unit, normal[:, 2], inside=True),
        growth=PRIORS.growth + PRIORS.growth_sd * normal[:, 3],
        overlap=1 + (PRIORS.overlap - 1) * uniform[:, 4] ** 2,
        crossing=PRIORS.crossing * np.abs(normal[:, 5]),
        between=_transfer(evidence, evidence.between, unit, normal[:, 6], inside=False),
        between_growth=PRIORS.between_growth + PRIORS.between_growth_sd * normal[:, 8],
        latency_within=_latency(evidence, evidence.within, normal[:, 7]) / micro,
        latency_between=_latency(evidence, evidence.between, normal[:, 9]) / micro,
        latency_growth=uniform[:, 10],
    )


def _latency(evidence: ForecastEvidence, link: Link, normal: Array) -> Array:
    """Return draws of the seconds of all collectives of an update without bytes."""
    spread = PRIORS.stated_latency_sd if link.latency else PRIORS.latency_sd
    return np.asarray((evidence.collectives or 0) * (link.latency or PRIORS.latency) * np.exp(spread * normal))


def _transfer(evidence: ForecastEvidence, link: Link, unit: float | None, normal: Array, *, inside: bool) -> Array:
    """Return draws of gradient bytes / bandwidth, relative to a micro-step of ``unit`` seconds."""
    size = evidence.gradient_bytes
    if link.bytes_per_second is not None and size is not None and unit is not None:
        return np.asarray(size / link.bytes_per_second / PRIORS.stated_share / unit * np.exp(PRIORS.stated_sd * normal))
    if not inside:
        speed = speed_of(link.kind, BETWEEN) or UNKNOWN_BETWEEN
        median = (size or UNKNOWN_BYTES) / speed / (unit or UNKNOWN_MICRO)
        return np.asarray(median * np.exp(PRIORS.between_sd * normal))
    of_kind = speed_of(link.kind, WITHIN)
    if of_kind is None or size is None or unit is None:
        return np.asarray(PRIORS.exposed * np.exp(PRIORS.exposed_sd * normal))
    return np.asarray(size / of_kind / unit * np.exp(PRIORS.within_sd * normal))


def terms(evidence: ForecastEvidence, draws: PosteriorDraws, size: Size) -> dict[str, Array]:
    """Return the time of each term of an update, by the names of ``TERMS``, in micro-steps of the reference."""
    reference = evidence.reference.size.batch_per_replica
    share = 1.0 if reference is None or size.batch_per_replica is None else size.batch_per_replica / reference
    compute = (1 - draws.fixed) * share
    micro = compute + draws.fixed
    waits = draws.jitter * NormalDist().inv_cdf((size.replicas - 3 / 8) / (size.replicas + 1 / 4))
    lost = np.zeros_like(waits)
    if size.nodes > 1:
        lost = draws.crossing * (1 + PRIORS.crossing_growth * math.log2(size.nodes / 2))
    local = math.ceil(size.replicas / size.nodes)
    zero = np.zeros_like(waits)
    within = draws.within * _ring(local) * (local / 2) ** draws.growth if local > 1 else zero
    across = draws.between * _ring(size.nodes) * (size.nodes / 2) ** draws.between_growth if size.nodes > 1 else zero
    latency = sum(
        (
            one * math.log2(count) * ((count - 1) / math.log2(count)) ** draws.latency_growth
            for one, count in ((draws.latency_within, local), (draws.latency_between, size.nodes))
            if count > 1
        ),
        start=zero,
    )
    seconds = {
        "compute": size.accumulation * compute,
        "fixed": size.accumulation * draws.fixed,
        "stragglers": size.accumulation * micro * waits,
        "crossing": size.accumulation * micro * lost,
    }
    if evidence.servers is not None:
        busy = sum(seconds.values(), start=zero)
        capacity = 2 * size.replicas / max(1, evidence.servers) * draws.between
        return {**seconds, "within": zero, "between": np.maximum(0.0, capacity - busy), "latency": latency}
    communication = within + across + latency
    backward = PRIORS.backward * micro * (1 + waits + lost)
    exposed = (backward**draws.overlap + communication**draws.overlap) ** (1 / draws.overlap) - backward
    visible = exposed / np.where(communication > 0, communication, 1.0)
    return {**seconds, "within": within * visible, "between": across * visible, "latency": latency * visible}


def _ring(count: int) -> float:
    """Return the share of the bytes that each of ``count`` members of a ring sends in an all-reduce."""
    return 2 * (count - 1) / count if count > 1 else 0.0


DRAWS = 2**13
"""Draws of each round."""
ROUNDS = (64.0, 16.0, 4.0, 1.0)
"""Temperature of each round. In the first ones, draws may agree less, so that they find the right region."""
ENOUGH = 1000.0
"""Effective number of draws of the prior that needs no further round."""
FROM_PRIOR = 0.25
"""Share of the draws of each further round that come from the prior, so that nothing is left out."""
_WIDER = 1.5
"""Factor by which a round draws wider than the draws of the round before that agreed."""


@dataclass(frozen=True)
class Fitted:
    """Draws with their weights after the measurements."""

    draws: PosteriorDraws
    weights: Array
    """They add up to 1."""
    scale: Array
    """Logarithm of the seconds of one micro-step of the reference, for each draw."""
    noise: float
    """Relative noise of one measurement. It is larger than the prior's if no draw explains the measurements."""
    misfit: float
    """Mean square difference of the measurements from the best draw, in squares of the noise that is believed."""

    @property
    def effective(self) -> float:
        """Effective number of draws."""
        return float(1 / np.sum(self.weights**2))


def fit(evidence: ForecastEvidence) -> Fitted:
    """Return weighted draws. They are the same in each call.

    :raises MissingPackageError: if scipy is not installed.
    """
    sobol = statistics_package("scipy.stats.qmc").Sobol(PARAMETERS, seed=0)
    stats = statistics_package("scipy.stats")
    standard = stats.norm.ppf(np.clip(sobol.random(DRAWS), 1e-9, 1 - 1e-9))
    prior = stats.multivariate_normal(np.zeros(PARAMETERS), np.eye(PARAMETERS))
    fitted = _weigh(evidence, standard, np.zeros(DRAWS), 1.0)
    if fitted.effective >= ENOUGH:
        return fitted
    points, correction = standard, np.zeros(DRAWS)
    for temperature in ROUNDS:
        near = _weigh(evidence, points, correction, temperature).weights
        center = near @ points
        spread = _WIDER**2 * np.cov(points, rowvar=False, aweights=near) + 1e-3 * np.eye(PARAMETERS)
        proposal = stats.multivariate_normal(center, spread)
        points = standard @ np.linalg.cholesky(spread).T + center
        few = int(FROM_PRIOR * DRAWS)
        points[:few] = standard[:few]
        density = np.logaddexp(
            math.log(FROM_PRIOR) + prior.logpdf(points), math.log1p(-FROM_PRIOR) + proposal.logpdf(points)
        )
        correction = prior.logpdf(points) - density
    return _weigh(evidence, points, correction, 1.0)


def _weigh(evidence: ForecastEvidence, normal: Array, correction: Array, temperature: float) -> Fitted:
    """Return the draws of normal numbers with their weights.

    :param correction: logarithm of the prior's density over that from which the numbers were drawn.
    """
    draws = parameters(evidence, normal)
    zero: Any = 0.0
    logs = np.array(
        [
            math.log(one.seconds) - np.log(sum(terms(evidence, draws, one.size).values(), start=zero))
            for one in evidence.observations
        ]
    )
    spreads = np.array([math.hypot(PRIORS.noise, one.spread) for one in evidence.observations])
    precision = 1 / spreads**2
    scale = (precision[:, None] * logs).sum(axis=0) / precision.sum()
    misfit = (precision[:, None] * (logs - scale) ** 2).sum(axis=0)
    # If no draw explains the measurements, the noise is larger than it was believed to be.
    inflation = max(1.0, float(misfit.min()) / max(1, len(logs) - 1))
    exponent = correction - (misfit - misfit.min()) / 2 / inflation / temperature
    weights = np.exp(exponent - exponent.max())
    return Fitted(draws, weights / weights.sum(), scale, math.sqrt(inflation / precision.mean()), inflation)
