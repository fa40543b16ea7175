"""Candidates for layers that change a distributed forward pass. They are only consistent, never recomputed."""

from __future__ import annotations

import numpy as np

from pytest_ddl.equivalence.diagnosis.candidates.shared import plain_normalization, random_sources
from pytest_ddl.equivalence.diagnosis.case import Case, Fit
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
