"""Examples that checks give to objects: each function returns arrays with a given number of rows, always the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Data = Callable[[int], tuple[Any, ...]]


def _draw(rows: int) -> tuple[np.random.Generator, Array]:
    """Return a generator, and factors that make later examples larger, so that a mean of replicas' means differs."""
    return np.random.default_rng(rows), np.linspace(0.5, 2, rows)


def _floats(*shape: int) -> Data:
    return _Floats(shape)


class _Floats:
    """Real numbers with a shape per example."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __call__(self, rows: int) -> tuple[Array]:
        draw, growth = _draw(rows)
        return (draw.normal(size=(rows, *self.shape)) * growth.reshape(-1, *[1] * len(self.shape)),)


def ids(rows: int) -> tuple[Array]:
    """Return sequences of small whole numbers."""
    return (_draw(rows)[0].integers(0, 7, (rows, 5)).astype("int32"),)


def classes(rows: int) -> tuple[Array, Array]:
    """Return one of four classes per example as a vector, and probabilities of the classes."""
    draw, growth = _draw(rows)
    scores = draw.random((rows, 4)) ** (2 * growth[:, None]) + 0.05
    return np.eye(4)[draw.integers(0, 4, rows)], scores / scores.sum(axis=1, keepdims=True)


def sparse(rows: int) -> tuple[Array, Array]:
    """Return the number of one of four classes per example, and probabilities of the classes."""
    truth, predicted = classes(rows)
    return truth.argmax(axis=1).astype("int32"), predicted


def labels(rows: int) -> tuple[Array, Array]:
    """Return the numbers of a true and of a predicted class per example."""
    truth, predicted = classes(rows)
    return truth.argmax(axis=1).astype("int32"), predicted.argmax(axis=1).astype("int32")


def binary(rows: int) -> tuple[Array, Array]:
    """Return zeros and ones, and probabilities."""
    draw, growth = _draw(rows)
    return (draw.random((rows, 1)) < growth[:, None] / 2.5).astype("float64"), draw.uniform(0.05, 0.95, (rows, 1))


def real(rows: int) -> tuple[Array, Array]:
    """Return real labels and predictions."""
    draw, growth = _draw(rows)
    return draw.normal(1, 2, (rows, 3)) * growth[:, None], draw.normal(size=(rows, 3))


INPUTS: Sequence[Data] = (_floats(6), _floats(5, 4), _floats(6, 6, 3), _floats(4, 4, 4, 2), ids)
"""Inputs of layers, in the order in which they are tried."""
VALUES: Sequence[Data] = (_floats(3), _floats())
"""Values of metrics that take no labels."""
PAIRS: Sequence[Data] = (classes, sparse, labels, binary, real)
"""Labels with predictions."""


def weights(rows: int) -> Array:
    """Return weights of examples: quarters, which every dtype adds exactly."""
    return np.random.default_rng(rows + 1).integers(1, 9, rows) / 4


def cast(arrays: Sequence[Any], precision: str) -> tuple[Any, ...]:
    """Return arrays with their real numbers in a precision."""
    return tuple(one.astype(precision) if np.asarray(one).dtype.kind == "f" else one for one in arrays)
