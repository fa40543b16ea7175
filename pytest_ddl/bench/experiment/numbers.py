"""Compute scaling and its uncertainty from the published and the measured times, and compare the accuracies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddl.bench.experiment.results import Experiment
from pytest_ddl.bench.metrics import interval
from pytest_ddl.bench.metrics.scaling import karp_flatt_serial_fraction, strong_scaling_efficiency


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


PUBLISHED = Published()
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

    This is the same work, so the rule of strong scaling holds for any batch rule; see
    :mod:`pytest_ddl.bench.metrics.scaling`.
    """

    replicas: int
    single: Number
    """Seconds on 1 replica."""
    many: Number
    """Seconds on N replicas."""
    efficiency: Number
    """Efficiency ``T_1 / (N * T_N)``. It is computed from pairs of one repeat, because a busy machine slows both."""

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
        return karp_flatt_serial_fraction(self.speed_up, self.replicas)


def scaling(seconds_1: Sequence[float], seconds_n: Sequence[float], replicas: int) -> Scaling:
    """Compute the scaling from times of the same work, one pair for each repeat."""
    pairs = zip(seconds_1, seconds_n, strict=True)
    efficiencies = [strong_scaling_efficiency(one, many, replicas) for one, many in pairs]
    return Scaling(replicas, Number.of(seconds_1), Number.of(seconds_n), Number.of(efficiencies))


def published() -> Scaling:
    """Compute the scaling from the published times."""
    return scaling([PUBLISHED.single_seconds], [PUBLISHED.many_seconds], PUBLISHED.replicas)


def all_epochs(experiment: Experiment) -> Scaling:
    """Compute the scaling over all epochs, tracing and compiling included, as published."""
    singles, many = experiment.of(True), experiment.of(False)
    return scaling([t.total_seconds for t in singles], [t.total_seconds for t in many], experiment.replicas)


def steady_epochs(experiment: Experiment) -> Scaling | None:
    """Compute the scaling without the first epoch; ``None`` if there is only one."""
    singles = [t.steady_seconds for t in experiment.of(True)]
    many = [t.steady_seconds for t in experiment.of(False)]
    if experiment.epochs < 2:
        return None
    return scaling([s for s in singles if s is not None], [s for s in many if s is not None], experiment.replicas)


@dataclass(frozen=True)
class Agreement:
    """Comparison of the final accuracies of training on 1 and on N replicas."""

    difference: float
    """Mean accuracy on N replicas minus that on 1."""
    bound: float
    """Largest difference that seeds and the choice of test images explain, at 99 %."""
    settled: bool
    """True if all trainings had settled. Before that, a difference is one of speed."""

    @property
    def passed(self) -> bool | None:
        """True if the accuracies agree; ``None`` if they are not judged."""
        return abs(self.difference) <= self.bound if self.settled else None

    def __str__(self) -> str:
        text = f"accuracies differ by {self.difference:+.4f}; seeds and test images explain up to {self.bound:.4f}"
        if self.passed is None:
            return f"not judged, because the accuracies had not settled ({text})"
        return f"{'agree' if self.passed else 'DO NOT AGREE'}: {text}"


def agreement(experiment: Experiment) -> Agreement:
    """Compare the final accuracies, in both directions.

    The bound is that of a test of two proportions, ``z * sqrt(2 p (1 - p) / n)``, with p the mean accuracy and n the
    number of test images. It is an upper bound, because both accuracies are of the same images. From 3 repeats on, the
    t bound of the pairs' differences is used if it is larger. MLPerf's reference convergence points are similar, but
    they only look for convergence that is too fast (mlcommons/logging, ``rcp_checker``).
    """
    from scipy import stats

    singles, many = experiment.of(True), experiment.of(False)
    differences = [b.accuracy - a.accuracy for a, b in zip(singles, many, strict=True)]
    accuracy = sum(t.accuracy for t in experiment.trainings) / len(experiment.trainings)
    images = experiment.test_images
    # If all images are right (or wrong), the formula gives 0, but the test set cannot resolve less than one image.
    spread = max(math.sqrt(2 * accuracy * (1 - accuracy) / images), 1 / images)
    bound = float(stats.norm.ppf((1 + AGREEMENT) / 2)) * spread
    if len(differences) > 2:
        half = stats.t.ppf((1 + AGREEMENT) / 2, len(differences) - 1) * float(stats.sem(differences))
        bound = max(bound, float(half))
    settled = all(_settled(t.ranks[0].test_accuracies, bound) for t in experiment.trainings)
    return Agreement(sum(differences) / len(differences), bound, settled)


def _settled(accuracies: Sequence[float], bound: float) -> bool:
    """Return whether the accuracy changed in the last third of a training by no more than noise."""
    if len(accuracies) < SETTLING:
        return False
    return abs(accuracies[-1] - accuracies[-1 - len(accuracies) // 3]) <= bound
