"""Reference runs on only a part of one global batch, with which a supposed cause is recomputed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pytest_ddl.records import TrainingRecord


@dataclass(frozen=True)
class Pairing:
    """Examples of one replica, of which one tensor is in another order than the others."""

    replica: int
    tensor: int
    """Index among the tensors of an example."""
    order: str
    """Order of the rows of this tensor."""
    rows: tuple[int, ...]
    """Positions in the global batch of the rows of this tensor."""


@dataclass(frozen=True)
class Slices:
    """Reference runs that get only some examples of the global batch of one step."""

    step: int
    replicas: Mapping[int, TrainingRecord] = field(default_factory=dict)
    """Replica -> a run on only this replica's examples."""
    examples: Mapping[int, Mapping[int, TrainingRecord]] = field(default_factory=dict)
    """Replica -> position in the global batch -> a run on only copies of this example, for replicas that may count
    examples another number of times."""

    parts: Mapping[int, tuple[TrainingRecord, ...]] = field(default_factory=dict)
    """Replica -> a run on each of some equal parts of its examples, if one device computes the replica's gradient from
    all of them."""

    told: Mapping[int, tuple[TrainingRecord, ...]] = field(default_factory=dict)
    """Replica -> a run on its examples, and one on each of some equal parts of them. The device of these runs reads the
    number of replicas from its strategy, as a replica does."""
    told_twice: Mapping[int, TrainingRecord] = field(default_factory=dict)
    """Replica -> a run on its examples whose device reads twice the number of replicas."""
    smaller: TrainingRecord | None = None
    """A run whose global batches have as many examples as the first replica's part."""
    uneven: Mapping[int, TrainingRecord] = field(default_factory=dict)
    """Replica -> a run on only this replica's examples in every step with an uneven batch."""
    equal: TrainingRecord | None = None
    """A run on copies of the examples, so that all replicas count equally in every step with an uneven batch."""
    pairings: Mapping[Pairing, TrainingRecord] = field(default_factory=dict)
    """A run on a replica's examples, of which one tensor is in another order."""
    terms: tuple[TrainingRecord, ...] = ()
    """Runs on only copies of one example each, which show the terms of a sum over the batch that cancels."""
    far: tuple[TrainingRecord, ...] = ()
    """Runs on all examples, with weights and data moved as far as rounding may move them at most."""
    shared: TrainingRecord | None = None
    """A run on all examples whose metrics are multiplied before each batch, as state that replicas share is."""
    reordered: tuple[TrainingRecord, ...] = ()
    """Runs on the same batches in another order, which draw the rounding of a sum that cancels anew."""

    @property
    def unended(self) -> bool:
        """True if the deadline ended a run that could have shown that a difference is rounding or known."""
        runs = (*self.terms, *self.far, *self.reordered, *self.uneven.values(), self.equal, self.shared)
        return any(error.type == "deadline" for run in runs if run is not None for _rank, error in run.errors)

    def each(self, change: Callable[[TrainingRecord], TrainingRecord]) -> Slices:
        """Return the slices with every run changed."""
        return replace(
            self,
            replicas={replica: change(run) for replica, run in self.replicas.items()},
            examples={
                replica: {row: change(run) for row, run in runs.items()} for replica, runs in self.examples.items()
            },
            parts={replica: tuple(map(change, runs)) for replica, runs in self.parts.items()},
            told={replica: tuple(map(change, runs)) for replica, runs in self.told.items()},
            told_twice={replica: change(run) for replica, run in self.told_twice.items()},
            smaller=self.smaller and change(self.smaller),
            uneven={replica: change(run) for replica, run in self.uneven.items()},
            equal=self.equal and change(self.equal),
            pairings={pairing: change(run) for pairing, run in self.pairings.items()},
            terms=tuple(map(change, self.terms)),
            far=tuple(map(change, self.far)),
            shared=self.shared and change(self.shared),
            reordered=tuple(map(change, self.reordered)),
        )
