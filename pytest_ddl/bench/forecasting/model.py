"""Model of the time of an update: draws of its unknown parameters, and the terms that follow from each draw.

    T = s t_micro + combine(backward, communication)
    t_micro = (fixed + per example x batch) x (1 + stragglers + crossing)
    combine(r, c) = (r^g + c^g)^(1/g) - r

``s`` is the accumulation. The form with the exponent g is that of Pollux (Qiao et al., OSDI 2021). Communication is a
ring within a node, then one between nodes, each 2 (n - 1) / n S / B (Patarasuk and Yuan 2009), and a latency for each
collective. N replicas wait for the slowest: the mean of the largest of N is about sqrt(2 ln N) standard deviations
above the mean. All times of a draw are relative to one micro-step of the reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_ddl.bench.forecasting.evidence import Evidence, Link, Origin, Size
from pytest_ddl.bench.forecasting.priors import (
    BETWEEN,
    PRIORS,
    UNKNOWN_BETWEEN,
    UNKNOWN_BYTES,
    WITHIN,
    Priors,
    speed_of,
)
from pytest_ddl.bench.metrics.registry import statistics_package

Array = np.ndarray[Any, np.dtype[np.float64]]
PARAMETERS = 9
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
class Draws:
    """Parameters of the model, one value for each draw."""

    fixed: Array
    jitter: Array
    within: Array
    """Time of the gradient over the link within a node, relative to a micro-step."""
    growth: Array
    overlap: Array
    crossing: Array
    between: Array
    between_growth: Array
    latency: Array
    """Time of all latencies of an update for one doubling of replicas, relative to a micro-step."""
    priors: Priors = field(default=PRIORS)


def parameters(evidence: Evidence, normal: Array, priors: Priors = PRIORS) -> Draws:
    """Return the parameters of independent standard normal numbers, distributed as is believed before the times.

    :param normal: one row of ``PARAMETERS`` numbers for each draw.
    :raises MissingPackageError: if scipy is not installed.
    """
    uniform = np.clip(statistics_package("scipy.stats").norm.cdf(normal), 1e-9, 1 - 1e-9)
    reference = evidence.reference
    micro = reference.seconds / reference.size.accumulation
    # Without a batch, the unit of the times is not seconds, so bytes and links say nothing.
    unit = micro if reference.size.batch_per_replica is not None else None
    jitter = priors.jitter * np.abs(normal[:, 1])
    if evidence.jitter is not None:
        jitter = evidence.jitter * np.exp(priors.jitter_sd * normal[:, 1])
    latency = evidence.between.latency or evidence.within.latency
    per_collective = (latency or priors.latency) * np.exp(
        (priors.measured_sd if latency else priors.latency_sd) * normal[:, 7]
    )
    return Draws(
        fixed=np.clip(-priors.fixed * np.log1p(-uniform[:, 0]), 0.0, 0.9),
        jitter=jitter,
        within=_transfer(evidence, evidence.within, unit, priors, normal[:, 2], inside=True),
        growth=priors.growth + priors.growth_sd * normal[:, 3],
        overlap=1 + (priors.overlap - 1) * uniform[:, 4] ** 2,
        crossing=priors.crossing * np.abs(normal[:, 5]),
        between=_transfer(evidence, evidence.between, unit, priors, normal[:, 6], inside=False),
        between_growth=priors.between_growth + priors.between_growth_sd * normal[:, 8],
        latency=(evidence.collectives or 0) * per_collective / micro,
        priors=priors,
    )


def _transfer(
    evidence: Evidence, link: Link, micro: float | None, priors: Priors, normal: Array, *, inside: bool
) -> Array:
    """Return draws of gradient bytes / bandwidth, relative to a micro-step of ``micro`` seconds."""
    size = evidence.gradient_bytes
    if link.bytes_per_second is not None and size is not None and micro is not None:
        measured = link.origin is Origin.MEASURED
        speed = link.bytes_per_second * (1.0 if measured else priors.stated_share)
        median, spread = size / speed / micro, priors.measured_sd if measured else priors.stated_sd
    elif inside:
        kind = speed_of(link.kind, WITHIN)
        known = kind is not None and size is not None and micro is not None
        median = size / kind / micro if known and size and kind and micro else priors.exposed
        spread = priors.within_sd if known else priors.exposed_sd
    else:
        speed = speed_of(link.kind, BETWEEN) or UNKNOWN_BETWEEN
        median, spread = (size or UNKNOWN_BYTES) / speed / (micro or 0.2), priors.between_sd
    return np.asarray(median * np.exp(spread * normal))


def terms(evidence: Evidence, draws: Draws, size: Size) -> dict[str, Array]:
    """Return the time of each term of an update, by the names of ``TERMS``, in micro-steps of the reference."""
    priors = draws.priors
    reference = evidence.reference.size.batch_per_replica
    share = 1.0 if reference is None or size.batch_per_replica is None else size.batch_per_replica / reference
    compute = (1 - draws.fixed) * share
    micro = compute + draws.fixed
    waits = draws.jitter * math.sqrt(2 * math.log(size.replicas))
    lost = np.zeros_like(waits)
    if size.nodes > 1:
        lost = draws.crossing * (1 + priors.crossing_growth * math.log2(size.nodes / 2))
    local = math.ceil(size.replicas / size.nodes)
    within = draws.within * (_ring(local) * (local / 2) ** draws.growth if local > 1 else 0.0)
    between = draws.between * (_ring(size.nodes) * (size.nodes / 2) ** draws.between_growth if size.nodes > 1 else 0.0)
    latency = draws.latency * math.log2(size.replicas) if size.replicas > 1 else 0.0 * draws.latency
    communication = within + between + latency
    backward = priors.backward * micro * (1 + waits + lost)
    power = draws.overlap
    exposed = (backward**power + communication**power) ** (1 / power) - backward
    visible = exposed / np.where(communication > 0, communication, 1.0)
    return {
        "compute": size.accumulation * compute,
        "fixed": size.accumulation * draws.fixed,
        "stragglers": size.accumulation * micro * waits,
        "crossing": size.accumulation * micro * lost,
        "within": within * visible,
        "between": between * visible,
        "latency": latency * visible,
    }


def _ring(count: int) -> float:
    """Return the share of the bytes that each of ``count`` members of a ring sends in an all-reduce."""
    return 2 * (count - 1) / count if count > 1 else 0.0
