"""Weigh draws of the model by the measured times.

A draw counts as much as it agrees with the measurements. Its scale, the seconds of one micro-step, is integrated out:
under normal noise of the logarithms it is the weighted mean of the differences. The draws come from the
prior. If few of them agree, further rounds draw around those that agreed best in the round before, and a part from the
prior (Cappé et al. 2004, Population Monte Carlo).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ddl.bench.forecasting.evidence import ForecastEvidence
from pytest_ddl.bench.forecasting.model import PARAMETERS, Array, PosteriorDraws, parameters, terms
from pytest_ddl.bench.forecasting.priors import PRIORS, Priors
from pytest_ddl.bench.metrics.registry import statistics_package

DRAWS = 2**13
"""Draws of each round."""
ROUNDS = (64.0, 16.0, 4.0, 1.0)
"""Temperature of each round: the first ones let draws agree less, so that they find where to look."""
ENOUGH = 1000.0
"""Effective number of draws of the prior that needs no further round."""
FROM_PRIOR = 0.25
"""Share of the draws of each further round that come from the prior, so that nothing is left out."""
_WIDER = 1.5
"""How much wider a round draws than those of the round before that agreed."""


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


def fit(evidence: ForecastEvidence, priors: Priors = PRIORS) -> Fitted:
    """Return weighted draws. They are the same in each call.

    :raises MissingPackageError: if scipy is not installed.
    """
    sobol = statistics_package("scipy.stats.qmc").Sobol(PARAMETERS, seed=0)
    stats = statistics_package("scipy.stats")
    standard = stats.norm.ppf(np.clip(sobol.random(DRAWS), 1e-9, 1 - 1e-9))
    prior = stats.multivariate_normal(np.zeros(PARAMETERS), np.eye(PARAMETERS))
    found = _weigh(evidence, standard, np.zeros(DRAWS), 1.0, priors)
    if found.effective >= ENOUGH:
        return found
    points, correction = standard, np.zeros(DRAWS)
    for temperature in ROUNDS:
        near = _weigh(evidence, points, correction, temperature, priors).weights
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
    return _weigh(evidence, points, correction, 1.0, priors)


def _weigh(evidence: ForecastEvidence, normal: Array, correction: Array, temperature: float, priors: Priors) -> Fitted:
    """Return the draws of normal numbers with their weights.

    :param correction: logarithm of the prior's density over that from which the numbers were drawn.
    """
    draws = parameters(evidence, normal, priors)
    zero: Any = 0.0
    logs = np.array(
        [
            math.log(one.seconds) - np.log(sum(terms(evidence, draws, one.size).values(), start=zero))
            for one in evidence.observations
        ]
    )
    spreads = np.array([math.hypot(priors.noise, one.spread) for one in evidence.observations])
    precision = 1 / spreads**2
    scale = (precision[:, None] * logs).sum(axis=0) / precision.sum()
    misfit = (precision[:, None] * (logs - scale) ** 2).sum(axis=0)
    # If no draw explains the measurements, the noise is larger than it was believed to be.
    inflation = max(1.0, float(misfit.min()) / max(1, len(logs) - 1))
    exponent = correction - (misfit - misfit.min()) / 2 / inflation / temperature
    weights = np.exp(exponent - exponent.max())
    return Fitted(draws, weights / weights.sum(), scale, math.sqrt(inflation / precision.mean()), inflation)
