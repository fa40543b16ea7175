"""Reasons why a size is not forecast, and what makes a forecast less certain. Each has one function, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pytest_ddl.bench.forecasting.evidence import ForecastEvidence, Origin, Size, efficiencies
from pytest_ddl.bench.forecasting.priors import WITHIN, speed_of

SUPERLINEAR = 1.03
"""Efficiency above which the smaller run was slower than it should be: noise of published times is below 3 %."""
FARTHEST = 16
"""Largest target as a multiple of the largest measured number of replicas."""


@dataclass(frozen=True)
class Warned:
    """Reason to trust a forecast less."""

    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}: {self.fix}"


def shares_cores(evidence: ForecastEvidence, _size: Size) -> str:
    """Refuse if replicas took cores from each other when they were measured."""
    if not evidence.shares_cores:
        return ""
    return (
        f"{evidence.shares_cores}: their times say nothing about replicas that have their own (measure with pin=True)"
    )


def below_one_example(_evidence: ForecastEvidence, size: Size) -> str:
    """Refuse sizes whose replicas would have less than one example."""
    if size.batch_per_replica is None or size.batch_per_replica >= 1:
        return ""
    return (
        f"{size.replicas} replicas would have {size.batch_per_replica:.3g} examples each: keep the batch of a replica"
    )


def wrong_baseline(evidence: ForecastEvidence, _size: Size) -> str:
    """Refuse if more replicas were more than proportionally faster."""
    worst = max(efficiencies(evidence.observations), key=lambda pair: pair[1], default=None)
    if worst is None or worst[1] <= SUPERLINEAR:
        return ""
    return (
        f"{worst[0].size.replicas} replicas were {worst[1]:.2f} times as fast as ideal: the run on fewer replicas was "
        "slower than it should be, or ran on other hardware (measure it again)"
    )


def too_far(evidence: ForecastEvidence, size: Size) -> str:
    """Refuse sizes that are much larger than what was measured."""
    largest = evidence.largest.size.replicas
    if size.replicas <= FARTHEST * largest:
        return ""
    return f"{size.replicas} replicas are more than {FARTHEST} times the {largest} that were measured: measure more"


def unknown_link_between(evidence: ForecastEvidence, size: Size) -> str:
    """Refuse sizes on several nodes if nothing is known about the link between them, or about the bytes."""
    if size.nodes < 2 or evidence.has_crossed:
        return ""
    if evidence.between.bytes_per_second is not None:
        known = evidence.gradient_bytes is not None and evidence.reference.size.batch_per_replica is not None
        what = "the bytes of the gradients and the batch of a replica are needed to use the stated link"
        return "" if known else f"{what}: measure with counters, or on two nodes"
    of_kind = f" ({evidence.between.kind} has no number)" if evidence.between.kind else ""
    return (
        f"{size.replicas} replicas need {size.nodes} nodes, and their link was neither measured nor stated{of_kind}: "
        "measure on two nodes, or give --link=25Gbit/s"
    )


def unknown_link_within(evidence: ForecastEvidence, size: Size) -> str:
    """Refuse sizes with several replicas in a node if nothing is known about the link between them."""
    within = evidence.within
    stated = within.bytes_per_second is not None or speed_of(within.kind, WITHIN) is not None
    if size.replicas <= size.nodes or evidence.has_reduced or stated:
        return ""
    return (
        f"{size.replicas} replicas share {size.nodes} node(s), and no two replicas of one node were measured: measure "
        "2 replicas, or give --link-within=NVLink or a number such as 60GB/s"
    )


def unknown_capacity(evidence: ForecastEvidence, size: Size) -> str:
    """Refuse parameter servers whose capacity is not known: they saturate, and smaller runs do not show it."""
    if evidence.servers is None or size.replicas <= evidence.largest.size.replicas:
        return ""
    if evidence.servers and evidence.between.bytes_per_second is not None and evidence.gradient_bytes is not None:
        return ""
    return "parameter servers saturate at a capacity that smaller runs do not show: give --servers=N and their --link"


REFUSALS: tuple[Callable[[ForecastEvidence, Size], str], ...] = (
    shares_cores,
    below_one_example,
    wrong_baseline,
    too_far,
    unknown_capacity,
    unknown_link_between,
    unknown_link_within,
)
"""All reasons to refuse a size, in the order in which they are looked at."""


def refusal(evidence: ForecastEvidence, size: Size) -> str:
    """Return the first reason why a size cannot be forecast; empty if there is none."""
    return next((reason for check in REFUSALS if (reason := check(evidence, size))), "")


def warnings(evidence: ForecastEvidence) -> Iterator[Warned]:
    """Yield what makes a forecast less certain."""
    batches = {one.size.batch_per_replica for one in evidence.observations if one.size.replicas == 1}
    if len(batches) < 2:
        yield Warned(
            "the fixed cost of a step was not separated from that of its examples", "measure 3 batches on one replica"
        )
    if evidence.jitter is None:
        yield Warned("waiting for the slowest replica is a guess", "measure at least 8 blocks on one replica")
    for name, link in (("within a node", evidence.within), ("between nodes", evidence.between)):
        if link.origin is Origin.STATED and link.bytes_per_second is not None:
            yield Warned(f"the link {name} is stated and was not measured", "measure two replicas over it")
    if evidence.servers:
        yield Warned(f"{evidence.servers} parameter servers with equal shares are assumed", "measure more workers")
    if evidence.gradient_bytes is None:
        yield Warned("the bytes of the gradients are not known", "give a measurement with counters")
