"""Results of the experiment: a record of each rank and training, their scaling, and whether the accuracies agree."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_ddl.bench.launching.records import EnergyReading
from pytest_ddl.bench.metrics import interval
from pytest_ddl.bench.metrics.of_pair import serial_fraction

BATCH_PER_REPLICA = 64
"""Batch size per replica in TensorFlow's guides, which train such a network; the publication does not give one."""
LEVEL = 0.95
AGREEMENT = 0.99
"""Confidence from which two accuracies count as different."""
SETTLING = 6
"""Minimum number of epochs of a training that can count as settled."""


@dataclass(frozen=True)
class Number:
    """Mean over repeats, with a 95 % t interval if there are at least 2 of them."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, samples: Sequence[float]) -> Number:
        """Return the geometric mean of independent samples on a ratio scale."""
        return cls(*interval(list(samples), level=LEVEL))


@dataclass(frozen=True)
class Scaling:
    """Comparison of 1 replica with N, over the same number of epochs of the same images.

    This is the same work, so the formula of strong scaling holds for any batch rule; see
    :mod:`pytest_ddl.bench.metrics.of_pair`.
    """

    replicas: int
    single: Number
    """Seconds on 1 replica."""
    many: Number
    """Seconds on N replicas."""
    efficiency: Number
    """Efficiency ``T_1 / (N * T_N)``. It is computed from pairs of one repeat, because a busy machine slows both."""

    @classmethod
    def of(cls, seconds_1: Sequence[float], seconds_n: Sequence[float], replicas: int) -> Scaling:
        """Compute the scaling from times of the same work, one pair for each repeat."""
        efficiencies = [one / (replicas * many) for one, many in zip(seconds_1, seconds_n, strict=True)]
        return cls(replicas, Number.of(seconds_1), Number.of(seconds_n), Number.of(efficiencies))

    @property
    def speed_up(self) -> float:
        return self.efficiency.value * self.replicas

    @property
    def overhead(self) -> float:
        """Overhead ``N * T_N / T_1``."""
        return 1.0 / self.efficiency.value

    @property
    def serial_fraction(self) -> float:
        """Serial fraction ``(1/S - 1/N) / (1 - 1/N)`` of Karp and Flatt."""
        return serial_fraction(self.speed_up, self.replicas)

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON, with the derived numbers in addition."""
        return {**asdict(self), **{name: getattr(self, name) for name in ("speed_up", "overhead", "serial_fraction")}}


@dataclass(frozen=True)
class Published:
    """Times of 30 epochs, rounded as printed. Everything else follows from them."""

    epochs: int = 30
    replicas: int = 2
    single_seconds: float = 109.5
    many_seconds: float = 78.6
    accuracy: float = 0.9948
    printed_efficiency: float = 0.6963
    """Efficiency as printed. It was computed from unrounded times; the rounded ones give 0.6966."""

    @property
    def scaling(self) -> Scaling:
        return Scaling.of([self.single_seconds], [self.many_seconds], self.replicas)


PUBLISHED = Published()


@dataclass(frozen=True)
class Agreement:
    """Comparison of the final accuracies of training on 1 and on N replicas."""

    difference: float
    """Mean accuracy on N replicas minus that on 1."""
    bound: float
    """Largest difference that seeds and the choice of test images explain, at 99 %."""
    settled: bool
    """True if the accuracies of all trainings had stopped changing. Before that, they may only differ in speed."""

    @property
    def passed(self) -> bool | None:
        """True if the accuracies agree; ``None`` if they are not judged."""
        return abs(self.difference) <= self.bound if self.settled else None

    def __str__(self) -> str:
        text = f"accuracies differ by {self.difference:+.4f}; seeds and test images explain up to {self.bound:.4f}"
        if self.passed is None:
            return f"not judged, because the accuracies had not settled ({text})"
        return f"{'agree' if self.passed else 'DO NOT AGREE'}: {text}"


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
        """Seconds of all epochs, as in the published time. The first epoch includes tracing and compiling."""
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

    @property
    def all_epochs(self) -> Scaling:
        """Scaling over all epochs, tracing and compiling included, as published."""
        return self._scaling("total_seconds")

    @property
    def steady_epochs(self) -> Scaling | None:
        """Scaling without the first epoch; ``None`` if there is only one."""
        return self._scaling("steady_seconds") if self.epochs > 1 else None

    def _scaling(self, seconds: str) -> Scaling:
        one, many = ([getattr(training, seconds) for training in self.of(single)] for single in (True, False))
        return Scaling.of(one, many, self.replicas)

    @property
    def scalings(self) -> dict[str, Scaling | None]:
        """Published and measured scalings, by their names in the plots."""
        return {
            "published": PUBLISHED.scaling,
            "all epochs": self.all_epochs,
            "without the first": self.steady_epochs,
        }

    def as_json(self) -> dict[str, Any]:
        """Return all measurements, including every epoch of every rank, and the numbers derived from them."""
        derived = {
            "scaling": {name: item and item.as_json() for name, item in self.scalings.items()},
            "agreement": {**asdict(self.agreement), "passed": self.agreement.passed},
        }
        plain = {name: value for name, value in asdict(self).items() if name != "notes"}
        return {**plain, "trainings": [training.as_json() for training in self.trainings], "derived": derived}

    @property
    def agreement(self) -> Agreement:
        """Comparison of the final accuracies, in both directions.

        The bound is that of a test of two proportions, ``z * sqrt(2 p (1 - p) / n)``. Here p is the mean accuracy and
        n the number of test images. It is an upper bound, because both accuracies are of the same images. For 3 or
        more repeats, the t bound of the pairs' differences is used if it is larger. MLPerf's reference convergence
        points are similar, but they only detect convergence that is too fast (mlcommons/logging, ``rcp_checker``).
        """
        from scipy import stats

        pairs = zip(self.of(True), self.of(False), strict=True)
        differences = [many.accuracy - one.accuracy for one, many in pairs]
        accuracy = statistics.fmean(training.accuracy for training in self.trainings)
        # If all images are right (or wrong), the formula gives 0, but the test set cannot resolve less than one image.
        spread = max(math.sqrt(2 * accuracy * (1 - accuracy) / self.test_images), 1 / self.test_images)
        bound = float(stats.norm.ppf((1 + AGREEMENT) / 2)) * spread
        if len(differences) > 2:
            half = stats.t.ppf((1 + AGREEMENT) / 2, len(differences) - 1) * stats.sem(differences)
            bound = max(bound, float(half))
        settled = all(_settled(training.ranks[0].test_accuracies, bound) for training in self.trainings)
        return Agreement(statistics.fmean(differences), bound, settled)


def _settled(accuracies: Sequence[float], bound: float) -> bool:
    """Return whether the accuracy changed in the last third of a training by no more than noise."""
    if len(accuracies) < SETTLING:
        return False
    return abs(accuracies[-1] - accuracies[-1 - len(accuracies) // 3]) <= bound
