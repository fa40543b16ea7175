"""Made curves for tests of the forecast: times that follow from a known computation, a known link and known jitter."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from pytest_ddl.bench.forecasting.evidence import ForecastEvidence, Observation, Size

MILLISECOND = 1e-3


def seconds(size: Size, *, example: float = MILLISECOND, fixed: float = 0.0, gradient: float = 0.0) -> float:
    """Time of an update of a ring of nodes without overlap.

    :param gradient: seconds in which the link moves the gradient once.
    """
    compute = size.accumulation * (fixed + example * (size.batch_per_replica or 1.0))
    return compute + gradient * (2 * (size.nodes - 1) / size.nodes)


def curve(counts: Iterable[int], *, batch: float = 64, per_node: int = 1, **law: float) -> tuple[Observation, ...]:
    """Observations of a program with one batch size on several numbers of replicas."""
    sizes = [Size(count, math.ceil(count / per_node), batch) for count in counts]
    return tuple(Observation(size, seconds(size, **law)) for size in sizes)


def evidence(observations: tuple[Observation, ...], **given: Any) -> ForecastEvidence:
    return ForecastEvidence(
        **{"name": "a program", "observations": observations, "per_node": 1, "jitter": 1e-6, **given}
    )
