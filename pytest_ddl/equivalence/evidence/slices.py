"""Reference runs on only a part of one global batch, with which a supposed cause is recomputed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pytest_ddl.records import TrainingRecord


@dataclass(frozen=True)
class Slices:
    """Reference runs that get only some examples of the global batch of one step."""

    step: int
    replicas: Mapping[int, TrainingRecord] = field(default_factory=dict)
    """Replica -> a run on only this replica's examples."""
    examples: Mapping[int, Mapping[int, TrainingRecord]] = field(default_factory=dict)
    """Replica -> position in the global batch -> a run on only this example, for replicas that compute something else
    than one device does for their examples."""

    halves: Mapping[int, tuple[TrainingRecord, ...]] = field(default_factory=dict)
    """Replica -> a run on each half of its examples, if one device computes the replica's gradient from all of them."""

    def each(self, change: Callable[[TrainingRecord], TrainingRecord]) -> Slices:
        """Return the slices with every run changed."""
        return Slices(
            self.step,
            {replica: change(run) for replica, run in self.replicas.items()},
            {replica: {row: change(run) for row, run in runs.items()} for replica, runs in self.examples.items()},
            {replica: tuple(map(change, runs)) for replica, runs in self.halves.items()},
        )
