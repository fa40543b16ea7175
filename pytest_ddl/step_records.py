"""Records of one training step on one rank, and of what its replicas consume: part of :mod:`pytest_ddl.records`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from numpy.typing import NDArray


class BatchOrigin(str, Enum):
    """Relation between what a replica function got and the elements that iterators gave."""

    ELEMENT = "element"
    """They are parts of an element."""
    SELECTED = "selected"
    """They are rows or other pieces of an element, which the program moved and did not compute with."""
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

    @property
    def examples(self) -> tuple[int | str, ...]:
        """The contents of the examples, or else their ids; empty if neither was observed."""
        return self.fingerprints or self.example_ids or ()

    def names(self, by: str) -> tuple[int | str, ...] | None:
        """Return the ids of the examples if ``by`` is ``"ids"``, and otherwise their contents."""
        return self.example_ids if by == "ids" else self.fingerprints


Array = NDArray[Any]


Snapshot = Mapping[int, tuple[Array, ...]]
"""Variable index -> the components on this rank's replicas, in order; one if it is not distributed or is sharded."""


class GradientStage(str, Enum):
    """Stage at which a gradient was seen, between the loss and the variable."""

    COMPUTED = "computed"
    """Gradient that ``GradientTape.gradient`` returned on a replica."""
    APPLIED = "applied"
    """Gradient that a replica passed to the optimizer, before the optimizer clips or aggregates."""


class GradientSum(str, Enum):
    """Use of the gradients that the replicas pass to an optimizer."""

    ADDED = "added"
    """It adds them up over the replicas, as the optimizers of TensorFlow and Keras do."""
    TAKEN = "taken"
    """Each replica uses its own: the program asked the optimizer not to add them up."""
    UNKNOWN = "unknown"
    """A class of the program decides, or the gradients are multiplied by a loss scale."""


@dataclass(frozen=True)
class GradientRecord:
    """Gradients of one call on one replica in one step."""

    replica: int
    stage: GradientStage
    call: int
    """0 for the first call of this stage on this replica in this step."""
    values: Mapping[int, Array | None]
    """Variable index -> the dense gradient, or ``None`` if the tape returned none."""
    sparse: frozenset[int] = frozenset()
    """Indices of variables whose gradient was a ``tf.IndexedSlices``."""
    summed: GradientSum = GradientSum.UNKNOWN  # only for the stage APPLIED


@dataclass(frozen=True)
class DrawRecord:
    """Numbers that one random operation of a replica function drew in one step."""

    replica: int
    position: int
    """Index among the random operations of the replica function; it is the same on all replicas."""
    op: str
    """Type of the operation, for example ``StatelessRandomUniformV2``."""
    name: str
    digest: int
    """64-bit hash of the numbers that were drawn."""
    size: int
    """Count of hashed numbers, over all executions of the operation in the step."""
    shape: tuple[int, ...] = ()  # of the result of the first execution
    dtype: str = ""
    distinct: float = 0
    """Effective count of different numbers among the first 256. If it is small, digests may be equal by chance."""
    seeded: bool = False
    """True if the program had changed TensorFlow's global seed from the seed of its run."""
    nested: bool = False
    """True inside a loop, branch or function: TensorFlow counts operations there from 0 to derive their seeds."""
    generator: str = ""
    """Name of Keras' ``SeedGenerator`` that seeded a random function of Keras; empty for any other seed."""
    seeds: int | None = None
    """64-bit hash of the seeds, or keys and counters, given to a stateless operation; ``None`` for any other."""


@dataclass(frozen=True)
class ReductionRecord:
    """One all-reduce of a step: the input of a replica and the result that it received."""

    replica: int
    position: int
    """Index among the all-reduces of the replica function; it is the same on all replicas."""
    op: str
    """``SUM`` or ``MEAN``."""
    dtype: str
    given: Array
    received: Array


@dataclass(frozen=True)
class StepRecord:
    """State after one global step, as one rank saw it."""

    index: int
    """Index of the step; 1 for the first step."""
    loss: float | None
    """Loss that the program reported for this step."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Further values that the program recorded by name, and metrics that ``fit`` reports."""
    batches: tuple[BatchRecord, ...] = ()
    """One per local replica and call of ``strategy.run``; empty if batches were not observed."""
    snapshot: Snapshot = field(default_factory=dict)
    own: Snapshot | None = None
    """Values that the step itself left behind, if the snapshot may hold later changes."""
    traces: int | None = None
    """Number of traces of the step function so far."""
    gradients: tuple[GradientRecord, ...] = ()
    """One per local replica, stage and call; empty if gradients were not observed."""
    draws: tuple[DrawRecord, ...] = ()
    reductions: tuple[ReductionRecord, ...] = ()
    eager: bool | None = None
    """True if ``strategy.run`` was called outside any ``tf.function``; ``None`` if it was not called."""
