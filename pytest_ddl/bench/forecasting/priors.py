"""Beliefs of the forecast before it sees a measurement: ranges of each term, and the speed of kinds of links.

The numbers were chosen on 55 published series (NVIDIA DeepLearningExamples, TensorFlow's benchmarks of 2017, MXNet,
Bugliarello 2018) by the density that a forecast gave to later points of each series. They were then rounded, and those
of links between nodes were left wider, because only six of these series cross nodes with an anchor.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Priors:
    """Parameters of the distributions. A share is a share of the time of one micro-step on one replica."""

    fixed: float = 0.04
    """Mean share of a micro-step that does not depend on the batch. Exponential."""
    jitter: float = 0.015
    """Scale of the relative spread of a step, of which N replicas wait for the slowest. Half normal."""
    exposed: float = 0.035
    """Median share of communication within a node, if bytes or link are unknown. Log-normal."""
    exposed_sd: float = 1.5
    within_sd: float = 0.9
    """Spread of the logarithm of the bandwidth within a node, if only the kind of the link is known."""
    growth: float = 0.3
    """Mean of the power with which communication within a node grows faster than a ring over N. Normal."""
    growth_sd: float = 0.35
    overlap: float = 3.3
    """Largest exponent with which communication and backward pass are combined; 1 means that nothing overlaps. The
    part above 1 is the square of a uniform number. Form of Pollux (Qiao et al., OSDI 2021, section 3.2)."""
    crossing: float = 0.02
    """Scale of the share of each micro-step that is lost as soon as several nodes take part. Half normal."""
    crossing_growth: float = 0.4
    """Growth of that share for each further doubling of the nodes."""
    between_sd: float = 0.8
    """Spread of the logarithm of the bandwidth between nodes, if only the kind of the link is known."""
    between_growth: float = 0.05
    """Mean of the power with which communication between nodes grows faster than a ring. Normal."""
    between_growth_sd: float = 0.1
    stated_sd: float = 0.35
    """Spread of the logarithm of a bandwidth that somebody states."""
    stated_share: float = 0.7
    """Share of a stated bandwidth that training reaches. Zhang et al. 2020 (arXiv 2006.10103) measure less than the
    data sheet on each system."""
    latency: float = 50e-6
    """Median seconds of a very small all-reduce over two replicas. Log-normal."""
    latency_sd: float = 1.2
    stated_latency_sd: float = 0.35
    """Spread of the logarithm of a latency that somebody states."""
    noise: float = 0.013
    """Relative noise of one published or measured time, beside the spread that is known."""
    discrepancy: float = 0.012
    """Error of the model itself, for each doubling of replicas beyond the largest measured number."""
    discrepancy_nodes: float = 0.03
    """The same for each doubling of nodes beyond the largest measured number. Networks have more layers than one."""
    backward: float = 0.65
    """Share of the computation with which communication can overlap: the backward pass takes twice the forward one."""


PRIORS = Priors()

WITHIN = {"NVLink/NVSwitch": 75e9, "NVSwitch": 75e9, "NVLink": 75e9, "NVLink gen1": 19e9, "PCIe": 5e9}
"""Median bandwidth within a node by the kind of the link, in bytes/s of an all-reduce as the program sees it."""
BETWEEN = {"InfiniBand": 80e9}
"""The same between nodes. It narrows a link that was measured; without a measurement such a link is refused."""
UNKNOWN_BETWEEN = 2e9
UNKNOWN_BYTES = 100e6
UNKNOWN_MICRO = 0.2
"""Bytes of a gradient and seconds of a micro-step, if they are not known and nodes were crossed in a measurement."""


def speed_of(kind: str, table: dict[str, float]) -> float | None:
    """Return the bandwidth of the longest kind of the table with which the name of a link begins."""
    names = [name for name in table if kind.lower().startswith(name.lower())]
    return table[max(names, key=len)] if names else None
