"""Metrics of Keras, with the data that they take and a NumPy model of each from its definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from suites.tables.confusion import area, at_threshold, best, counts, f_score, intersections

Array = np.ndarray[Any, Any]
Model = Callable[..., Any]
"""Takes labels, predictions and weights, and returns the metric of these examples."""

EXACT = 1e-12
"""Relative bound in float64: some hundred operations, each with an error of 2e-16."""
EPSILON = 3e-6
"""Relative bound if Keras adds 1e-7, which is not in the definition, to a denominator or a logarithm."""
SINGLE = 1e-6
"""Relative bound if Keras computes in float32 (eps 1.2e-7), with fewer than eight roundings."""


@dataclass(frozen=True)
class Case:
    """A metric that is to be compared with its model."""

    metric: str
    """Name of the class."""
    item: str
    data: str
    """Key of ``DATA``."""
    model: Model
    arguments: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = EXACT
    keras: str = ""
    """Versions that have the class; empty for all."""

    @property
    def id(self) -> str:
        given = (f"{name}={value}" for name, value in self.arguments.items() if name not in ("fn", "dtype"))
        return "-".join([self.metric, *given]).replace(" ", "")


def _examples(rows: int) -> np.random.Generator:
    return np.random.default_rng(rows)


def _values(rows: int) -> tuple[Array, ...]:
    return (_examples(rows).normal(2, 3, (rows, 3)),)


def _real(rows: int) -> tuple[Array, ...]:
    # More of the variance is in later rows, so that a mean of the replicas' results is another number.
    scale = np.linspace(0.5, 3, rows)[:, None]
    draw = _examples(rows)
    return draw.normal(1, 2, (rows, 3)) * scale, draw.normal(0, 1, (rows, 3))


def _positive(rows: int) -> tuple[Array, ...]:
    return tuple(np.abs(one) + 0.1 for one in _real(rows))


def _signs(rows: int) -> tuple[Array, ...]:
    draw = _examples(rows)
    return draw.choice([-1.0, 1.0], (rows, 3)), draw.normal(0, 1.5, (rows, 3))


def _binary(rows: int) -> tuple[Array, ...]:
    draw = _examples(rows)
    truth = (draw.random((rows, 1)) < np.linspace(0.2, 0.8, rows)[:, None]).astype("float64")
    return truth, np.clip(0.3 + 0.3 * truth + 0.3 * draw.normal(size=(rows, 1)), 0.01, 0.99)


def _several(rows: int) -> tuple[Array, ...]:
    draw = _examples(rows)
    return (draw.random((rows, 4)) < 0.4).astype("float64"), draw.uniform(0.01, 0.99, (rows, 4))


def _classes(rows: int) -> tuple[Array, ...]:
    draw = _examples(rows)
    chosen = draw.integers(0, 4, rows)
    scores = np.exp(draw.normal(size=(rows, 4)) + np.eye(4)[chosen])
    return np.eye(4)[chosen], scores / scores.sum(axis=1, keepdims=True)


def _sparse(rows: int) -> tuple[Array, ...]:
    truth, predicted = _classes(rows)
    return truth.argmax(axis=1), predicted


def _single(data: Callable[[int], tuple[Array, ...]]) -> Callable[[int], tuple[Array, ...]]:
    """Return predictions in float32: TensorFlow ranks no others."""

    def found(rows: int) -> tuple[Array, ...]:
        truth, predicted = data(rows)
        return truth, predicted.astype("float32")

    return found


def _labels(rows: int) -> tuple[Array, ...]:
    truth, predicted = _classes(rows)
    return truth.argmax(axis=1)[:, None], predicted.argmax(axis=1)[:, None]


DATA: Mapping[str, Callable[[int], tuple[Array, ...]]] = {
    "values": _values,
    "real": _real,
    "positive": _positive,
    "signs": _signs,
    "binary": _binary,
    "several": _several,
    "classes": _classes,
    "sparse": _sparse,
    "labels": _labels,
    "classes32": _single(_classes),
    "sparse32": _single(_sparse),
}
"""Kind of data -> function of the number of examples."""


def weighted_mean(values: Array, weights: Array) -> Any:
    """Return the mean over examples, after the mean over the other axes."""
    return (values.reshape(len(values), -1).mean(axis=1) * weights).sum() / weights.sum()


def mean_of(function: Callable[[Array, Array], Array]) -> Model:
    """Return the model of a metric that is the mean of a function of each example."""
    return lambda truth, predicted, weights: weighted_mean(function(truth, predicted), weights)


def _unit(rows: Array) -> Array:
    return rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))


def _centred(rows: Array) -> Array:
    return rows - rows.mean(axis=1, keepdims=True)


def _pearson(truth: Array, predicted: Array) -> Array:
    return (_unit(_centred(truth)) * _unit(_centred(predicted))).sum(axis=1)


def _concordance(truth: Array, predicted: Array) -> Array:
    covariance = (_centred(truth) * _centred(predicted)).mean(axis=1)
    distance = (truth.mean(axis=1) - predicted.mean(axis=1)) ** 2
    return 2 * covariance / (truth.var(axis=1) + predicted.var(axis=1) + distance)


def _entropy(truth: Array, predicted: Array) -> Array:
    return -(truth * np.log(predicted) + (1 - truth) * np.log(1 - predicted))


def _categorical_hinge(truth: Array, predicted: Array) -> Array:
    return np.maximum(0, ((1 - truth) * predicted).max(axis=1) - (truth * predicted).sum(axis=1) + 1)


def _in_top(number: int) -> Callable[[Array, Array], Array]:
    def hit(truth: Array, predicted: Array) -> Array:
        chosen = np.argsort(-predicted, axis=1)[:, :number]
        return (chosen == _index(truth)[:, None]).any(axis=1)

    return hit


def _index(truth: Array) -> Array:
    return truth.argmax(axis=1) if truth.ndim == 2 else truth


def _hit(truth: Array, predicted: Array) -> Array:
    return _index(truth) == predicted.argmax(axis=1)


def _surprise(truth: Array, predicted: Array) -> Array:
    return -np.log(predicted[np.arange(len(truth)), _index(truth)])


def _score(aggregation: str | None) -> Model:
    """Return the coefficient of determination, with weights for examples."""

    def model(truth: Array, predicted: Array, weights: Array) -> Any:
        weighted = weights[:, None]
        center = (weighted * truth).sum(axis=0) / weights.sum()
        total = (weighted * (truth - center) ** 2).sum(axis=0)
        scores = 1 - (weighted * (truth - predicted) ** 2).sum(axis=0) / total
        if aggregation is None:
            return scores
        return np.average(scores, weights=total if aggregation.startswith("variance") else None)

    return model


def _mse(truth: Array, predicted: Array) -> Array:
    return (truth - predicted) ** 2


REDUCTIONS = (
    Case("Mean", "metric.Mean", "values", lambda values, weights: weighted_mean(values, weights)),
    Case("Sum", "metric.Sum", "values", lambda values, weights: (values.sum(axis=1) * weights).sum()),
)

_REGRESSION = "metric.MSE_RMSE_MAE"
_ACCURACY = "metric.Accuracy_family"
_LIKELIHOOD = "metric.KLDivergence"

MEANS = (
    Case("MeanMetricWrapper", "metric.Mean", "real", mean_of(lambda t, p: t * p), {"fn": lambda t, p: t * p}),
    Case("MeanSquaredError", _REGRESSION, "real", mean_of(_mse)),
    Case("RootMeanSquaredError", _REGRESSION, "real", lambda *a: np.sqrt(mean_of(_mse)(*a))),
    Case("MeanAbsoluteError", _REGRESSION, "real", mean_of(lambda t, p: np.abs(t - p))),
    Case(
        "MeanRelativeError",
        _REGRESSION,
        "real",
        mean_of(lambda t, p: (np.abs(t - p) / [0.5, 2.0, 4.0]).mean(axis=1)),
        {"normalizer": [0.5, 2.0, 4.0]},
    ),
    Case("MeanAbsolutePercentageError", _REGRESSION, "positive", mean_of(lambda t, p: 100 * np.abs(t - p) / t)),
    Case("MeanSquaredLogarithmicError", _REGRESSION, "positive", mean_of(lambda t, p: np.log((1 + t) / (1 + p)) ** 2)),
    Case("LogCoshError", _REGRESSION, "real", mean_of(lambda t, p: np.log(np.cosh(p - t))), rtol=SINGLE),
    Case("Hinge", _REGRESSION, "signs", mean_of(lambda t, p: np.maximum(0, 1 - t * p))),
    Case("SquaredHinge", _REGRESSION, "signs", mean_of(lambda t, p: np.maximum(0, 1 - t * p) ** 2)),
    Case("CategoricalHinge", _REGRESSION, "classes", mean_of(_categorical_hinge)),
    Case(
        "CosineSimilarity", "metric.CosineSimilarity", "real", mean_of(lambda t, p: (_unit(t) * _unit(p)).sum(axis=1))
    ),
    Case("PearsonCorrelation", _REGRESSION, "real", mean_of(_pearson), keras=">=3.7"),
    Case("ConcordanceCorrelation", _REGRESSION, "real", mean_of(_concordance), rtol=EPSILON, keras=">=3.7"),
    Case("KLDivergence", _LIKELIHOOD, "positive", mean_of(lambda t, p: _divergence(t, p)), rtol=EPSILON),
    Case("Poisson", _LIKELIHOOD, "positive", mean_of(lambda t, p: p - t * np.log(p)), rtol=EPSILON),
    Case("BinaryCrossentropy", _LIKELIHOOD, "several", mean_of(_entropy), rtol=EPSILON),
    Case("CategoricalCrossentropy", _LIKELIHOOD, "classes", mean_of(_surprise), rtol=EPSILON),
    Case("SparseCategoricalCrossentropy", _LIKELIHOOD, "sparse", mean_of(_surprise), rtol=EPSILON),
    Case("Accuracy", _ACCURACY, "labels", mean_of(lambda t, p: t == p)),
    Case("BinaryAccuracy", _ACCURACY, "several", mean_of(lambda t, p: t == (p > 0.5))),
    Case("CategoricalAccuracy", _ACCURACY, "classes", mean_of(_hit)),
    Case("SparseCategoricalAccuracy", _ACCURACY, "sparse", mean_of(_hit)),
    Case("TopKCategoricalAccuracy", "metric.TopK", "classes32", mean_of(_in_top(2)), {"k": 2}),
    Case("SparseTopKCategoricalAccuracy", "metric.TopK", "sparse32", mean_of(_in_top(2)), {"k": 2}),
)


def _divergence(truth: Array, predicted: Array) -> Array:
    """Return the divergence after Keras' documented clipping of both arguments to at most 1."""
    truth, predicted = np.minimum(truth, 1), np.minimum(predicted, 1)
    return (truth * np.log(truth / predicted)).sum(axis=1)


_COUNTS = "metric.Confusion_counts"
_RATIOS = "metric.Precision_Recall"
_CONSTRAINED = "metric.SensitivityAtSpecificity_family"
"""The bound of these metrics is not a ratio of the weights, so rounding never decides whether a threshold meets it."""

CONFUSIONS = (
    Case("TruePositives", _COUNTS, "binary", at_threshold(lambda c: c.tp)),
    Case("FalsePositives", _COUNTS, "binary", at_threshold(lambda c: c.fp)),
    Case("TrueNegatives", _COUNTS, "binary", at_threshold(lambda c: c.tn)),
    Case("FalseNegatives", _COUNTS, "binary", at_threshold(lambda c: c.fn)),
    Case("FalseNegatives", _COUNTS, "binary", at_threshold(lambda c: c.fn, 0.3, 0.7), {"thresholds": [0.3, 0.7]}),
    Case("Precision", _RATIOS, "binary", at_threshold(lambda c: c.precision)),
    Case("Recall", _RATIOS, "binary", at_threshold(lambda c: c.recall)),
    Case("Recall", _RATIOS, "several", lambda t, p, w: counts(t[:, 1:2], p[:, 1:2], w, 0.5).recall, {"class_id": 1}),
    Case("AUC", "metric.AUC", "binary", area("ROC", 200)),
    Case("AUC", "metric.AUC", "binary", area("PR", 50), {"curve": "PR", "num_thresholds": 50}),
    Case(
        "SensitivityAtSpecificity", _CONSTRAINED, "binary", best("recall", "specificity", 0.61), {"specificity": 0.61}
    ),
    Case(
        "SpecificityAtSensitivity", _CONSTRAINED, "binary", best("specificity", "recall", 0.61), {"sensitivity": 0.61}
    ),
    Case("PrecisionAtRecall", _CONSTRAINED, "binary", best("precision", "recall", 0.61), {"recall": 0.61}),
    Case("RecallAtPrecision", _CONSTRAINED, "binary", best("recall", "precision", 0.61), {"precision": 0.61}),
)

_UNION = "metric.MeanIoU"
_F = "metric.F1_FBeta"
_DTYPE = {"dtype": "float64"}
"""These classes otherwise count in whole numbers, and warn of weights that are not."""
_FOUR = {"num_classes": 4, **_DTYPE}
_FIRST_LAST = {**_FOUR, "target_class_ids": [0, 3]}

SCORES = (
    Case("MeanIoU", _UNION, "labels", intersections(range(4)), _FOUR, SINGLE),
    Case("IoU", _UNION, "labels", intersections([0, 3]), _FIRST_LAST, SINGLE),
    Case("BinaryIoU", _UNION, "binary", intersections([0, 1]), {"threshold": 0.5, **_DTYPE}, SINGLE),
    Case("OneHotIoU", _UNION, "classes", intersections([0, 3]), _FIRST_LAST, SINGLE),
    Case("OneHotMeanIoU", _UNION, "classes", intersections(range(4)), _FOUR, SINGLE),
    Case("F1Score", _F, "classes", f_score(1, None), {"average": None}, EPSILON),
    Case("F1Score", _F, "classes", f_score(1, "micro"), {"average": "micro"}, EPSILON),
    Case("FBetaScore", _F, "classes", f_score(2, "macro"), {"average": "macro", "beta": 2.0}, EPSILON),
    Case("FBetaScore", _F, "classes", f_score(0.5, "weighted"), {"average": "weighted", "beta": 0.5}, EPSILON),
    Case("R2Score", "metric.R2", "real", _score("uniform_average")),
    Case("R2Score", "metric.R2", "real", _score(None), {"class_aggregation": None}),
)

CASES = (*REDUCTIONS, *MEANS, *CONFUSIONS, *SCORES)
"""All cases. Every class of ``keras.metrics`` has at least one."""
