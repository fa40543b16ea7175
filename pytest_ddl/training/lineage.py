"""Find the step of an uninterrupted run after which a restored program continues, from the values of its variables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from pytest_ddl.records import RankRecord, Snapshot, VariableKind, VariableRecord

Lineage = tuple[tuple[int, frozenset[str]], ...]
"""Step -> digests of the variables after it, in the order of the steps."""
_RESTORED = (VariableKind.TRAINABLE, VariableKind.FROZEN, VariableKind.STATE, VariableKind.SLOT)


def digests(pairs: Iterable[tuple[VariableRecord, Snapshot]]) -> frozenset[str]:
    """Return a digest for each variable of a snapshot.

    Only the first replica counts, so that the digests of runs with different numbers of replicas can be compared. Names
    do not count, because a program may build its variables in another order, or load a model, when it continues.
    Digests of trainable variables begin with ``t``, of others with ``o``.
    """
    found = set()
    for variable, snapshot in pairs:
        parts = snapshot.get(variable.index)
        if parts and variable.kind in _RESTORED:
            value = np.ascontiguousarray(parts[0])
            kind = "t" if variable.kind is VariableKind.TRAINABLE else "o"
            text = f"{variable.kind.value} {value.dtype} {value.shape} ".encode()
            found.add(kind + hashlib.sha256(text + value.tobytes()).hexdigest())
    return frozenset(found)


def lineage_of(rank: RankRecord) -> Lineage:
    """Return the digests of a rank's variables at the start and after each step of an uninterrupted run."""
    snapshots = [(0, rank.initial), *((step.index, step.snapshot) for step in rank.steps)]
    return tuple((step, digests((item, values) for item in rank.variables)) for step, values in snapshots)


def step_of(found: frozenset[str], lineage: Sequence[tuple[int, frozenset[str]]]) -> int | None:
    """Return the step after which a program has these values, or ``None`` if it never had these trainable variables.

    If several steps have them, the one with the most equal other variables counts, and then the latest.
    """
    trainable = frozenset(item for item in found if item[0] == "t")
    if not trainable:
        return None
    equal = [(len(found & values), step) for step, values in lineage if trainable <= values]
    return max(equal)[1] if equal else None
