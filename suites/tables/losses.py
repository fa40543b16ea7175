"""Losses of Keras, with the derivative of each example's loss, and what the reductions make of the examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
OUTPUTS = 2


def _softmax(predicted: Array) -> Array:
    shifted = np.exp(predicted - predicted.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def _one_hot(truth: Array) -> Array:
    return np.stack([1 - truth[..., 0] % 2, truth[..., 0] % 2], axis=-1)


DERIVATIVES: Mapping[str, Callable[[Array, Array], Array]] = {
    "MeanSquaredError": lambda truth, predicted: 2 * (predicted - truth) / OUTPUTS,
    "MeanAbsoluteError": lambda truth, predicted: np.sign(predicted - truth) / OUTPUTS,
    "Huber": lambda truth, predicted: np.clip(predicted - truth, -1, 1) / OUTPUTS,
    "LogCosh": lambda truth, predicted: np.tanh(predicted - truth) / OUTPUTS,
    "BinaryCrossentropy": lambda truth, predicted: (1 / (1 + np.exp(-predicted)) - truth % 2) / OUTPUTS,
    "CategoricalCrossentropy": lambda truth, predicted: _softmax(predicted) - _one_hot(truth),
}
"""Class -> derivative of the loss of each example with respect to its prediction."""


def labels_for(loss: str, truth: Array) -> Array:
    """Return the labels that a loss takes, made of small whole numbers."""
    return {"BinaryCrossentropy": truth % 2, "CategoricalCrossentropy": _one_hot(truth)}.get(loss, truth)


def mean(weights: Array) -> Array:
    """Return the factor of each example in the mean over examples."""
    return weights / len(weights)


def total(weights: Array) -> Array:
    """Return the factor of each example in the sum."""
    return weights


def weighted_mean(weights: Array) -> Array:
    """Return the factor of each example in the sum that is divided by the sum of the weights."""
    return weights / weights.sum()


REDUCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "sum_over_batch_size": mean,
    "mean": mean,
    "sum": total,
    "none": total,
    "mean_with_sample_weight": weighted_mean,
}
"""Reduction -> factors. The gradient of a loss that is not reduced is that of its sum."""


def gradient(inputs: Array, derivatives: Array, factors: Array) -> Array:
    """Return the gradient of a linear model's weights."""
    return np.asarray(inputs.T @ (derivatives * factors[:, None]))
