"""Compute what metrics of Keras show from the counts and sums that they keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pytest_ddl.equivalence.evidence.arrays import Float

_POSITIVES = frozenset({"true_positives", "true_negatives", "false_positives", "false_negatives"})
_SCORES = frozenset({"true_positives", "false_positives", "false_negatives", "intermediate_weights"})
_R2 = frozenset({"num_samples", "squared_sum", "sum", "residual", "count"})
_EPSILON = 1e-7
"""What Keras adds to the denominators of a score."""


def shown(states: Mapping[str, Float]) -> Iterator[Float]:
    """Yield each number that a metric with these states may show.

    Metrics with the same states differ by their arguments, which no record has, such as the curve of an area.

    :param states: name of a variable, without that of its metric -> its value.
    """
    yield from (np.asarray(number, np.float64) for number in _numbers(states))


def _numbers(states: Mapping[str, Float]) -> Iterator[Any]:
    names = set(states)
    if names == {"total", "count"} and states["total"].shape == states["count"].shape == () and states["count"]:
        mean = states["total"] / states["count"]
        yield mean
        yield np.sqrt(np.maximum(mean, 0.0))  # RootMeanSquaredError
    elif names in ({"accumulator"}, {"total"}):  # counts of positives, and Sum
        yield from np.ravel(next(iter(states.values())))
    elif names == {"total_confusion_matrix"}:
        yield from _overlaps(states["total_confusion_matrix"])
    elif names == _R2:
        yield from _coefficients(states)
    elif names == _SCORES:
        yield from _scores(states)
    elif len(names) == 2 and names <= _POSITIVES:
        first, second = (states[name] for name in sorted(names, reverse=True))
        yield from np.ravel(_share(first, second))
    elif names == _POSITIVES and states["true_positives"].ndim in (1, 2):
        yield from _areas(states)
        yield from _best(states)


def _share(part: Float, rest: Float) -> Float:
    whole = part + rest
    return np.divide(part, whole, out=np.zeros_like(whole), where=whole != 0)


def _areas(states: Mapping[str, Float]) -> Iterator[Any]:
    """Yield the areas under the curves that ``AUC`` knows; of several labels, their mean."""
    tp, tn, fp, fn = (
        states[name] for name in ("true_positives", "true_negatives", "false_positives", "false_negatives")
    )
    recall, precision, fall_out = _share(tp, fn), _share(tp, fp), _share(fp, tn)
    ratio = np.divide(tp + fn, tn + fp, out=np.zeros_like(tp), where=tn + fp != 0)
    recall_gain, precision_gain = (
        np.where(tp == 0, at_zero, 1.0 - ratio * np.divide(wrong, tp, out=np.zeros_like(tp), where=tp != 0))
        for wrong, at_zero in ((fn, 0.0), (fp, 1.0))
    )
    curves = ((fall_out, recall), (recall, precision), (np.maximum(recall_gain, 0.0), precision_gain))
    for x, y in curves:
        for heights in ((y[:-1] + y[1:]) / 2.0, np.minimum(y[:-1], y[1:]), np.maximum(y[:-1], y[1:])):
            yield np.mean(np.sum((x[:-1] - x[1:]) * heights, axis=0))
    yield _interpolated(tp, fp, fn)


def _interpolated(tp: Float, fp: Float, fn: Float) -> Float:
    """Return the area under the curve of precision and recall, interpolated as Davis and Goadrich (2006) do."""
    predicted = tp + fp
    gained, more = tp[:-1] - tp[1:], np.maximum(predicted[:-1] - predicted[1:], 0.0)
    slope = np.divide(gained, more, out=np.zeros_like(more), where=more != 0)
    intercept = tp[1:] - slope * predicted[1:]
    both = (predicted[:-1] > 0) & (predicted[1:] > 0)
    ratio = np.divide(predicted[:-1], predicted[1:], out=np.ones_like(more), where=both)
    positives = tp[1:] + fn[1:]
    added = slope * (gained + intercept * np.log(ratio))
    return np.asarray(
        np.mean(np.sum(np.divide(added, positives, out=np.zeros_like(added), where=positives != 0), axis=0))
    )


def _best(states: Mapping[str, Float]) -> Iterator[Any]:
    """Yield the largest value of one rate for each lower limit of another, as ``PrecisionAtRecall`` shows."""
    tp, tn, fp, fn = (
        states[name] for name in ("true_positives", "true_negatives", "false_positives", "false_negatives")
    )
    recall, precision, specificity = _share(tp, fn), _share(tp, fp), _share(tn, fp)
    for limited, rate in ((specificity, recall), (recall, specificity), (recall, precision), (precision, recall)):
        if limited.ndim == 1:
            yield from {np.max(rate[limited >= limit]) for limit in set(limited)}


def _scores(states: Mapping[str, Float]) -> Iterator[Any]:
    """Yield what ``F1Score`` shows: a number for each label, their mean, and their mean weighted by examples."""
    tp, weights = states["true_positives"], states["intermediate_weights"]
    precision = tp / (tp + states["false_positives"] + _EPSILON)
    recall = tp / (tp + states["false_negatives"] + _EPSILON)
    scores = 2.0 * precision * recall / (precision + recall + _EPSILON)
    yield from np.ravel(scores)
    yield np.mean(scores)
    yield np.sum(scores * weights / (np.sum(weights) + _EPSILON))


def _overlaps(matrix: Float) -> Iterator[Any]:
    """Yield what ``IoU`` shows: the share of a class in the union of its labels and predictions, and their mean."""
    both = np.diag(matrix)
    union = matrix.sum(axis=0) + matrix.sum(axis=1) - both
    shares = _share(both, union - both)[union > 0]
    yield from shares
    if len(shares):
        yield np.mean(shares)


def _coefficients(states: Mapping[str, Float]) -> Iterator[Any]:
    """Yield what ``R2Score`` shows: a coefficient for each output, their mean, and their mean weighted by variance."""
    total = states["squared_sum"] - states["sum"] * np.divide(states["sum"], np.maximum(states["count"], _EPSILON))
    residual = states["residual"]
    scores = 1.0 - np.divide(residual, total, out=np.ones_like(total), where=total != 0)
    yield from np.ravel(scores)
    yield np.mean(scores)
    if np.sum(total):
        yield np.sum(total * scores) / np.sum(total)
