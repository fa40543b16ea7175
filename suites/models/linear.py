"""NumPy model of SGD on a linear model with the mean squared error, and data for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FEATURES, OUTPUTS = 3, 2
START = np.array([[0.5, -1.0], [0.25, 0.75], [-0.5, 1.5]])
"""First weights."""
BOUND = {"rtol": 1e-12, "atol": 1e-12}
"""Some hundred operations with numbers of about 1, each with an error of 2e-16."""


@dataclass(frozen=True)
class Data:
    """Inputs, labels and weights of examples."""

    x: Array
    y: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Any) -> Data:
        return Data(self.x[rows], self.y[rows], self.weight[rows])

    def batches(self, size: int) -> Iterator[Data]:
        """Yield parts of a size, and the rest."""
        for first in range(0, len(self), size):
            yield self[first : first + size]

    @property
    def unweighted(self) -> Data:
        return Data(self.x, self.y, np.ones(len(self)))


def data(rows: int, seed: int = 0) -> Data:
    """Return examples; those that come later, and so those of later replicas and steps, are larger."""
    draw = np.random.default_rng([seed, rows])
    growth = np.linspace(0.5, 1.5, rows)
    x = draw.normal(size=(rows, FEATURES)) * growth[:, None]
    y = draw.integers(-3, 4, (rows, OUTPUTS)) * growth[:, None]
    return Data(x, y, draw.integers(1, 9, rows) / 4)


def losses(weights: Array, given: Data) -> Array:
    """Return the loss of each example times its weight."""
    return ((given.x @ weights - given.y) ** 2).mean(axis=1) * given.weight


def gradient(weights: Array, given: Data) -> Array:
    """Return the gradient of the mean of the losses. Keras divides by the number of examples, not by their weights."""
    errors = (given.x @ weights - given.y) * given.weight[:, None]
    return 2 / OUTPUTS * given.x.T @ errors / len(given)


@dataclass
class Trained:
    """Results of training, epoch by epoch."""

    weights: Array
    """Weights at the end."""
    after: list[Array] = field(default_factory=list)
    """Weights after each epoch."""
    running: list[list[float]] = field(default_factory=list)
    """Mean loss of all examples of the epoch so far, after each batch."""
    validation: list[float] = field(default_factory=list)
    """Mean loss of the validation data after each epoch."""

    @property
    def loss(self) -> list[float]:
        return [means[-1] for means in self.running]


def train(
    batches: Sequence[Data],
    rates: Sequence[float],
    *,
    start: Array = START,
    validation: Data | None = None,
    gradient: Callable[[Array, Data], Array] = gradient,
) -> Trained:
    """Return what SGD does with these batches in each epoch.

    :param rates: learning rate of each epoch.
    :param gradient: gradient of the loss of a batch.
    """
    found = Trained(start.copy())
    for rate in rates:
        seen: list[Array] = []
        found.running.append([])
        for batch in batches:
            seen.append(losses(found.weights, batch))
            found.running[-1].append(float(np.concatenate(seen).mean()))
            found.weights = found.weights - rate * gradient(found.weights, batch)
        found.after.append(found.weights)
        if validation is not None:
            found.validation.append(float(losses(found.weights, validation).mean()))
    return found
