"""Find the step of an uninterrupted run after which a restored program continues, from the values of its variables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddl.records import RankRecord, Snapshot, VariableKind, VariableRecord

Lineage = tuple[tuple[int, frozenset[str]], ...]
"""Step -> digests of the variables after it, in the order of the steps."""
_RESTORED = (
    VariableKind.TRAINABLE,
    VariableKind.FROZEN,
    VariableKind.STATE,
    VariableKind.SLOT,
    VariableKind.ITERATIONS,
)


def digests(pairs: Iterable[tuple[VariableRecord, Snapshot]]) -> frozenset[str]:
    """Return a digest for each variable of a snapshot.

    Only the first replica counts, so that the digests of runs with different numbers of replicas can be compared. Names
    do not count, because a program may build its variables in another order, or load a model, when it continues.
    Digests of trainable variables begin with ``t``, of others with ``o``.
    """
    hashes = set()
    for variable, snapshot in pairs:
        parts = snapshot.get(variable.index)
        if parts and variable.kind in _RESTORED:
            value = np.ascontiguousarray(parts[0])
            kind = "t" if variable.kind is VariableKind.TRAINABLE else "o"
            text = f"{variable.kind.value} {value.dtype} {value.shape} ".encode()
            hashes.add(kind + hashlib.sha256(text + value.tobytes()).hexdigest())
    return frozenset(hashes)


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


@dataclass
class ResumedPlace:
    """Place of a program that was started again among the steps of the uninterrupted run, found by its values."""

    lineage: Lineage
    start: int | None = None
    """Number of steps of the uninterrupted run before the first one of this attempt; negative if steps of this attempt
    were replaced by a later restore. ``None`` if no values were recognized yet."""
    late: bool = False
    """True if the values were recognized only after a step, because they were restored or created late."""
    replaced: int = 0
    """Number of steps of this attempt whose result a later restore replaced."""
    starts: frozenset[int] = frozenset()
    """Possible values of ``start``. There are several if a step changes no trainable variable."""

    def see(self, own: int, found: frozenset[str]) -> None:
        """Recognize values.

        :param own: number of steps that this attempt has made before it has these values.
        """
        trainable = frozenset(item for item in found if item[0] == "t")
        expected = None if self.start is None else self.start + own
        if any(step == expected and trainable <= values for step, values in self.lineage):
            return
        at = step_of(found, self.lineage)
        if at is None or (own and not at):
            return
        starts = frozenset(step - own for step, values in self.lineage if trainable <= values)
        if at - own in self.starts and not self.late:
            # The program began with these weights. A further step shows which of several steps they belong to.
            self.start, self.starts = at - own, self.starts & starts
            return
        self.start, self.late, self.replaced = at - own, own > 0, max(0, own - 1)
        self.starts = starts


def place_of(rank: RankRecord, lineage: Lineage) -> ResumedPlace:
    """Return the place of a rank's last attempt."""
    place = ResumedPlace(lineage)
    resumed: Snapshot = next(iter(rank.resumed.values()), {})
    for own, values in enumerate([resumed, *(step.snapshot for step in rank.steps)]):
        place.see(own, digests((variable, values) for variable in rank.variables))
    return place
