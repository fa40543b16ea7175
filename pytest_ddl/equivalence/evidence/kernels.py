"""Find in records whether other kernels made the values of one run, and whether a run was not deterministic."""

from __future__ import annotations

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import same
from pytest_ddl.records import TrainingRecord


def made_apart(reference: TrainingRecord, distributed: TrainingRecord) -> bool:
    """Return whether a GPU was used, and initial values differ.

    Some strategies make initial values on the CPU, and one device makes them on the GPU. The kernels of both round
    differently: an orthogonal initializer needs a QR decomposition, and a normal one logarithms and cosines.
    """
    if not any(rank.facts.get("device") for record in (reference, distributed) for rank in record.ranks):
        return False
    pairs = (
        (reference.value(variable.index, 0), value)
        for variable in distributed.variables
        for _rank, _replica, value in distributed.components(variable.index, 0)
    )
    return any(ours is not None and not same(ours, np.asarray(theirs)) for ours, theirs in pairs)


def not_deterministic(record: TrainingRecord) -> str:
    """Return the error of an operation that has no deterministic kernel there; empty if all operations have one."""
    return next((str(found) for rank in record.ranks if (found := rank.facts.get("not_deterministic"))), "")
