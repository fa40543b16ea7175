"""What the experiment measured: one record per rank and training, plain data that goes to JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_ddl.bench.records import EnergyReading


@dataclass(frozen=True)
class RankTraining:
    """What one rank measured and saw. Seconds are of a monotonic clock, read after all devices had finished."""

    rank: int
    task: str
    epoch_seconds: tuple[float, ...]
    """Training alone: all ranks begin an epoch together, and evaluating is outside of the clock."""
    losses: tuple[float, ...]
    """Mean of the training losses of each epoch's steps."""
    test_losses: tuple[float, ...]
    test_accuracies: tuple[float, ...]
    """On the test set after each epoch, with this rank's weights."""
    steps: int
    build_seconds: float
    """From the call of ``train(run)`` to the first epoch."""
    evaluation_seconds: float
    weights: tuple[str, ...]
    """A digest of the trained weights of each replica on this rank."""
    moved: bool
    """Whether training changed the weights."""
    retraces: int
    """Traces after the first epoch; of a correct program 0."""
    peak_memory_bytes: int
    energy: EnergyReading = field(default_factory=lambda: EnergyReading(None, reason="not asked for"))


@dataclass(frozen=True)
class Training:
    """One training from the first epoch to the last, in fresh processes."""

    strategy: str
    replicas: int
    repeat: int
    """Counted from 1; trainings of one repeat begin with the same seed."""
    seed: int
    global_batch_size: int
    epochs: int
    steps_per_epoch: int
    ranks: tuple[RankTraining, ...]
    wall_seconds: float
    """Everything included, from asking for processes to having their answers."""
    device: str = "cpu"
    pinned: bool = False
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def epoch_seconds(self) -> list[float]:
        """Of the slowest rank, as a synchronous epoch ends with it."""
        return [max(epoch) for epoch in zip(*(rank.epoch_seconds for rank in self.ranks), strict=True)]

    @property
    def total_seconds(self) -> float:
        """All epochs: tracing and compiling, which happen in the first, included. That is what was published."""
        return sum(self.epoch_seconds)

    @property
    def steady_seconds(self) -> float | None:
        """All epochs but the first; ``None`` where there is only one."""
        return sum(self.epoch_seconds[1:]) if self.epochs > 1 else None

    @property
    def median_epoch_seconds(self) -> float:
        """Of the steady epochs, or of the only one."""
        return statistics.median(self.epoch_seconds[1:] or self.epoch_seconds)

    @property
    def accuracy(self) -> float:
        """On the test set after the last epoch."""
        return self.ranks[0].test_accuracies[-1]

    @property
    def examples_per_epoch(self) -> int:
        return self.steps_per_epoch * self.global_batch_size

    @property
    def energy(self) -> EnergyReading:
        """Rank 0 reads it for the machine."""
        return self.ranks[0].energy

    def as_json(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts alone, with what is derived besides."""
        derived = {
            "epoch_seconds": self.epoch_seconds,
            "total_seconds": self.total_seconds,
            "steady_seconds": self.steady_seconds,
            "median_epoch_seconds": self.median_epoch_seconds,
            "accuracy": self.accuracy,
        }
        return {**asdict(self), "derived": derived}


@dataclass(frozen=True)
class Experiment:
    """All trainings, in the order in which they ran, and what they were asked to be."""

    trainings: tuple[Training, ...]
    batch: int
    """Examples per step: per replica, or over all replicas; see ``batch_rule``."""
    batch_rule: str
    """``replica``: the batch per replica is fixed, the global batch grows; ``global``: the global batch is fixed."""
    epochs: int
    data: str
    train_images: int
    test_images: int
    check: str
    """What ``check_training`` said of the same training function, in one line."""
    command: str
    started: str
    """UTC."""
    notes: tuple[str, ...] = ()
    """What keeps this from being a measurement of scaling, or qualifies it."""

    def of(self, single: bool) -> list[Training]:
        """The trainings on one replica, or those on several, by repeat."""
        found = [item for item in self.trainings if (item.replicas == 1) == single]
        return sorted(found, key=lambda item: item.repeat)

    @property
    def single(self) -> Training:
        """The first training on one replica."""
        return self.of(True)[0]

    @property
    def many(self) -> Training:
        """The first training on several replicas."""
        return self.of(False)[0]

    @property
    def replicas(self) -> int:
        return self.many.replicas


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
