"""Results of the experiment: one record per rank and training, as plain data for JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_ddl.bench.records import EnergyReading


@dataclass(frozen=True)
class RankTraining:
    """Measurements of one rank. Seconds are of a monotonic clock, read after all devices had finished."""

    rank: int
    task: str
    epoch_seconds: tuple[float, ...]
    """Seconds of training in each epoch, without evaluation. All ranks begin an epoch together."""
    losses: tuple[float, ...]
    """Mean of the training losses of each epoch's steps."""
    test_losses: tuple[float, ...]
    test_accuracies: tuple[float, ...]
    """Accuracy on the test set after each epoch, with this rank's weights."""
    steps: int
    build_seconds: float
    """Seconds from the call of ``train(run)`` to the first epoch."""
    evaluation_seconds: float
    weights: tuple[str, ...]
    """Digests of the trained weights, one for each replica on this rank."""
    moved: bool
    retraces: int
    """Number of traces after the first epoch; 0 for a correct program."""
    peak_memory_bytes: int
    energy: EnergyReading = field(default_factory=lambda: EnergyReading(None, reason="not asked for"))


@dataclass(frozen=True)
class Training:
    """One training from the first epoch to the last, in fresh processes."""

    strategy: str
    replicas: int
    repeat: int
    """Number of the repeat, from 1. Trainings of one repeat begin with the same seed."""
    seed: int
    global_batch_size: int
    epochs: int
    steps_per_epoch: int
    ranks: tuple[RankTraining, ...]
    wall_seconds: float
    """Seconds from the request for processes to their answers, everything included."""
    device: str = "cpu"
    pinned: bool = False
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def epoch_seconds(self) -> list[float]:
        """Seconds of each epoch on the slowest rank, because a synchronous epoch ends with it."""
        return [max(epoch) for epoch in zip(*(rank.epoch_seconds for rank in self.ranks), strict=True)]

    @property
    def total_seconds(self) -> float:
        """Seconds of all epochs, as published. The first epoch includes tracing and compiling."""
        return sum(self.epoch_seconds)

    @property
    def steady_seconds(self) -> float | None:
        """Seconds of all epochs but the first; ``None`` if there is only one."""
        return sum(self.epoch_seconds[1:]) if self.epochs > 1 else None

    @property
    def median_epoch_seconds(self) -> float:
        """Median seconds of the epochs after the first, or the seconds of the only one."""
        return statistics.median(self.epoch_seconds[1:] or self.epoch_seconds)

    @property
    def accuracy(self) -> float:
        """Accuracy on the test set after the last epoch."""
        return self.ranks[0].test_accuracies[-1]

    @property
    def examples_per_epoch(self) -> int:
        return self.steps_per_epoch * self.global_batch_size

    @property
    def energy(self) -> EnergyReading:
        """Energy of the machine, which rank 0 reads."""
        return self.ranks[0].energy

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON, with the derived numbers in addition."""
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
    """All trainings in the order in which they ran, and their settings."""

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
    """Result of ``check_training`` for the same training function, in one line."""
    command: str
    started: str
    """Time of the start, in UTC."""
    notes: tuple[str, ...] = ()
    """Reasons why this is no measurement of scaling, or only a limited one."""

    def of(self, single: bool) -> list[Training]:
        """Return the trainings on one replica, or those on several, in the order of repeats."""
        found = [item for item in self.trainings if (item.replicas == 1) == single]
        return sorted(found, key=lambda item: item.repeat)

    @property
    def single(self) -> Training:
        """First training on one replica."""
        return self.of(True)[0]

    @property
    def many(self) -> Training:
        """First training on several replicas."""
        return self.of(False)[0]

    @property
    def replicas(self) -> int:
        return self.many.replicas
