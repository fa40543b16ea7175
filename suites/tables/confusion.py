"""NumPy models of metrics that count hits and misses, from their definitions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Model = Callable[[Array, Array, Array], Any]


@dataclass(frozen=True)
class Counts:
    """Sums of the weights of hits and misses, for one threshold."""

    tp: float
    fp: float
    tn: float
    fn: float

    @property
    def precision(self) -> float:
        return ratio(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        return ratio(self.tp, self.tp + self.fn)

    @property
    def specificity(self) -> float:
        return ratio(self.tn, self.tn + self.fp)


def ratio(part: float, whole: float) -> float:
    """Return part / whole, or 0 if the whole is 0."""
    return part / whole if whole else 0.0


def counts(truth: Array, predicted: Array, weights: Array, threshold: float) -> Counts:
    """Count predictions above a threshold."""
    positive, above = truth.astype(bool), predicted > threshold
    every = np.broadcast_to(weights[:, None] if weights.ndim == 1 else weights, truth.shape)

    def number(chosen: Array) -> float:
        return float(every[chosen].sum())

    return Counts(
        number(positive & above), number(~positive & above), number(~positive & ~above), number(positive & ~above)
    )


def at_threshold(statistic: Callable[[Counts], float], *thresholds: float) -> Model:
    """Return the model of a statistic at given thresholds, or at 0.5."""

    def model(truth: Array, predicted: Array, weights: Array) -> Any:
        found = [statistic(counts(truth, predicted, weights, threshold)) for threshold in thresholds or (0.5,)]
        return np.array(found) if len(found) > 1 else found[0]

    return model


def _grid(number: int) -> list[float]:
    """Return equidistant thresholds, below and above every prediction at the ends."""
    return [-1e-7, *(step / (number - 1) for step in range(1, number - 1)), 1 + 1e-7]


def best(wanted: str, constrained: str, bound: float, number: int = 200) -> Model:
    """Return the model of the best value of one statistic, over thresholds at which another one is at least a bound."""

    def model(truth: Array, predicted: Array, weights: Array) -> Any:
        every = [counts(truth, predicted, weights, threshold) for threshold in _grid(number)]
        return max((getattr(one, wanted) for one in every if getattr(one, constrained) >= bound), default=0.0)

    return model


HEIGHTS: Mapping[str, Callable[[float, float], float]] = {
    "interpolation": lambda low, high: (low + high) / 2,
    "minoring": min,
    "majoring": max,
}
"""Height of a strip of an area between two thresholds."""


def area(curve: str, number: int, summation: str = "interpolation", thresholds: Sequence[float] | None = None) -> Model:
    """Return the area below the ROC curve in strips, or below the PR curve as Davis and Goadrich interpolate it."""

    def model(truth: Array, predicted: Array, weights: Array) -> Any:
        grid = _grid(number) if thresholds is None else [-1e-7, *thresholds, 1 + 1e-7]
        every = [counts(truth, predicted, weights, threshold) for threshold in grid]
        pairs, height = list(itertools.pairwise(every)), HEIGHTS[summation]
        if curve == "PR" and summation == "interpolation":
            return sum(_precision_between(low, high) for low, high in pairs)
        if curve == "PR":
            return sum(height(low.precision, high.precision) * (low.recall - high.recall) for low, high in pairs)
        return sum(height(low.recall, high.recall) * (high.specificity - low.specificity) for low, high in pairs)

    return model


def _precision_between(low: Counts, high: Counts) -> float:
    """Integrate precision over recall; true and false positives change linearly between two thresholds.

    With TP = a + s P (P all positives predicted), precision is s + a / P, and recall TP / (TP + FN).
    """
    begin, end = high.tp + high.fp, low.tp + low.fp
    slope = ratio(low.tp - high.tp, end - begin)
    intercept = high.tp - slope * begin
    logarithm = np.log(end / begin) if begin > 0 and end > 0 else 0.0
    return ratio(slope * (low.tp - high.tp + intercept * logarithm), high.tp + high.fn)


def intersections(chosen: Sequence[int] | range) -> Model:
    """Return the mean over classes of the intersection of truth and prediction, divided by their union."""

    def model(truth: Array, predicted: Array, weights: Array) -> Any:
        found = []
        for one in chosen:
            is_true, is_predicted = _is_class(truth, one), _is_class(predicted, one)
            union = weights[is_true | is_predicted].sum()
            if union > 0:
                found.append(weights[is_true & is_predicted].sum() / union)
        return np.mean(found) if found else 0.0

    return model


def _is_class(labels: Array, one: int) -> Array:
    if labels.shape[1] > 1:
        return np.asarray(labels.argmax(axis=1) == one)
    return np.asarray((labels[:, 0] > 0.5) == bool(one)) if labels.dtype.kind == "f" else labels[:, 0] == one


def f_score(beta: float, average: str | None, threshold: float | None = None) -> Model:
    """Return the F score of the class with the largest prediction, or of the classes above a threshold."""

    def model(truth: Array, predicted: Array, weights: Array) -> Any:
        above = predicted == predicted.max(axis=1, keepdims=True) if threshold is None else predicted > threshold
        chosen = above.astype(float)
        axis = None if average == "micro" else 0
        hits = (weights[:, None] * truth * chosen).sum(axis=axis)
        predictions = (weights[:, None] * chosen).sum(axis=axis)
        labels = (weights[:, None] * truth).sum(axis=axis)
        precision, recall = _ratios(hits, predictions), _ratios(hits, labels)
        scores = _ratios((1 + beta**2) * precision * recall, beta**2 * precision + recall)
        if average == "weighted":
            return np.average(scores, weights=labels)
        return scores if average is None else np.mean(scores)

    return model


def _ratios(parts: Any, wholes: Any) -> Any:
    """Return parts / wholes, with 0 for each whole of 0, such as a class that nobody predicts."""
    return np.divide(parts, wholes, out=np.zeros_like(wholes), where=wholes > 0)
