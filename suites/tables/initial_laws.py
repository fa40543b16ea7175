"""The distributions of the initializers of Keras: mean, spread and bounds, from the docstrings and the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from suites.parameters.spaces import Arguments

TRUNCATED = 0.87962566103423978
"""Standard deviation of a normal distribution that is cut at two deviations."""


@dataclass(frozen=True)
class Law:
    """A distribution."""

    mean: float
    deviation: float
    low: float = -np.inf
    high: float = np.inf


def uniform(low: float, high: float) -> Law:
    return Law((low + high) / 2, (high - low) / np.sqrt(12), low, high)


def truncated(mean: float, before: float) -> Law:
    """Return a normal distribution with a deviation before it is cut."""
    return Law(mean, before * TRUNCATED, mean - 2 * before, mean + 2 * before)


def law(name: str, case: Arguments, shape: Sequence[int]) -> Law | None:
    """Return the distribution of what an initializer draws for a shape, or ``None`` if it draws something else."""
    if name == "RandomUniform":
        return uniform(case["minval"], case["maxval"])
    if name == "RandomNormal":
        return Law(case["mean"], case["stddev"])
    if name == "TruncatedNormal":
        return truncated(case["mean"], case["stddev"])
    if name == "VarianceScaling":
        return scaled(case["scale"], case["mode"], case["distribution"], shape)
    kinds = {"Glorot": (1.0, "fan_avg"), "He": (2.0, "fan_in"), "Lecun": (1.0, "fan_in")}
    for kind, (scale, mode) in kinds.items():
        if name in (f"{kind}Normal", f"{kind}Uniform"):
            return scaled(scale, mode, "uniform" if name.endswith("Uniform") else "truncated_normal", shape)
    return None


def scaled(scale: float, mode: str, distribution: str, shape: Sequence[int]) -> Law:
    """Glorot and Bengio (2010), and He et al. (2015): the variance is the scale, divided by a number of units.

    A kernel of a convolution counts each place of its window.
    """
    window = int(np.prod(shape[:-2]))
    fans = {"fan_in": window * shape[-2], "fan_out": window * shape[-1]}
    deviation = np.sqrt(scale / fans.get(mode, sum(fans.values()) / 2))
    if distribution == "uniform":
        return uniform(-np.sqrt(3) * deviation, np.sqrt(3) * deviation)
    return truncated(0, deviation / TRUNCATED) if distribution == "truncated_normal" else Law(0, deviation)
