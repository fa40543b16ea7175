"""Records of what replica functions consume: part of :mod:`pytest_ddl.records`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class BatchOrigin(str, Enum):
    """Relation between what a replica function got and the elements that iterators gave."""

    ELEMENT = "element"
    """They are parts of an element."""
    DERIVED = "derived"
    """They were computed from an element, between the iterator and ``strategy.run``."""
    ARGUMENT = "argument"
    """No relation is known: the program made them in another way, or TensorFlow does not show it."""


@dataclass(frozen=True)
class InputRecord:
    """One tensor that a replica function got and that may contain examples."""

    shape: tuple[int, ...]
    """Its first dimensions, two at most."""
    hashes: tuple[int, ...] | None = None
    """64-bit hash of each row; ``None`` if they were not observed."""

    @property
    def rows(self) -> int:
        return self.shape[0]


@dataclass(frozen=True)
class BatchRecord:
    """Batch that one replica consumed in one step."""

    replica: int
    size: int
    """Number of examples (leading dimension of the first tensor); 0 for an empty replica."""
    fingerprints: tuple[int, ...] | None = None
    """64-bit hash of the content of each example, in order; ``None`` if it was not observed."""
    example_ids: tuple[int | str, ...] | None = None
    """Ids given to ``run.examples`` or found under ``"example_id"`` in the batch."""
    loss: float | None = None
    """Result of the replica function, if it is a floating scalar."""
    columns: tuple[tuple[int, ...], ...] = ()
    """64-bit hashes as above for each tensor of the examples, if there are several."""
    inputs: tuple[InputRecord, ...] = ()
    """All tensors of which the examples may consist, in the order of the arguments."""
    origin: BatchOrigin = BatchOrigin.ELEMENT
    numbers: int = 0
    """Count of numbers in the largest tensor of the examples; 0 if it was not observed."""
