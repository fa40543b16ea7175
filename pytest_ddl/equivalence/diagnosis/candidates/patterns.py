"""Candidates for random or normalizing layers, and for gathered values. They are only consistent, never recomputed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_ddl.equivalence.diagnosis.candidates.case import Case, Fit
from pytest_ddl.equivalence.diagnosis.candidates.shared import (
    adds_up,
    computed_alone,
    plain_normalization,
    random_sources,
)
from pytest_ddl.equivalence.evidence.observe import of_kind
from pytest_ddl.equivalence.findings import Grounds
from pytest_ddl.records import VariableKind


def normalization(case: Case) -> Fit | None:
    """Test for batch normalization by each replica's own statistics, which acts from the first step on."""
    layers = plain_normalization(case)
    if not layers or case.replicas == 1 or case.step != 1:
        return None
    return Fit(
        "per-replica-normalization",
        f"consistent with it: {', '.join(layers[:3])} is not synchronized",
        grounds=Grounds.PATTERN,
    )


def random_streams(case: Case) -> Fit | None:
    """Test for random layers, such as dropout, that draw other numbers than one device."""
    sources = random_sources(case)
    if not sources or case.replicas == 1:
        return None
    evidence = f"consistent with it: the program draws random numbers in {', '.join(sources[:3])}"
    for variable in of_kind(case.distributed, VariableKind.STATE):
        values = [value for _r, _c, value in case.distributed.components(variable.index, case.step)]
        if "seed_generator" in variable.name and len(values) > 1:
            if all(np.array_equal(value, values[0]) for value in values):
                evidence += f"; the state of {variable.name} is the same on all {len(values)} replicas"
                return Fit("random-stream-repeated-across-replicas", evidence, grounds=Grounds.PATTERN)
            break
    return Fit(
        "random-stream-differs-across-replicas",
        evidence,
        grounds=Grounds.PATTERN,
        also=("random-stream-repeated-across-replicas",),
    )


def positions(case: Case) -> Fit | None:
    """Test for positions within the replica's part that should be positions in the gathered values.

    A program that gathers has a loss of the whole batch. If its loss is wrong on the same examples, and no weighting of
    the replicas explains it, then a replica finds the wrong rows in what it gathered. A replica whose gradient is
    that of its own examples did not use what it gathered.
    """
    source = case.computed
    where = list(dict.fromkeys(_gathers(case)))
    if source is None or not where or not case.same_examples or adds_up(case, source) or not _loss_differs(case):
        return None
    alone = computed_alone(case, source)
    if not alone or any(alone.values()) or plain_normalization(case) or random_sources(case):
        return None
    return Fit(
        "gathered-positions-wrong",
        f"consistent with it: the loss uses values gathered at {', '.join(where[:3])}, and it is wrong on the same "
        "examples",
        grounds=Grounds.PATTERN,
        also=("batch-coupled-loss",),
    )


def _gathers(case: Case) -> Iterator[str]:
    """Yield the lines at which the program gathers values of all replicas, up to the step."""
    for rank in case.distributed.ranks[:1]:
        for graph in rank.graphs:
            if graph.step <= case.step:
                yield from (item.where for item in graph.asked if item.kind == "all_gather")


def _loss_differs(case: Case) -> bool:
    ours, theirs = (record.ranks[0].steps[case.step - 1].loss for record in (case.reference, case.distributed))
    if ours is None or theirs is None:
        return False
    return not abs(ours - theirs) <= case.tolerance.loss(case.step).value * case.replicas
