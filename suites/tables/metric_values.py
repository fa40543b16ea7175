"""Metrics of Keras with all of their parameters, and a NumPy model of each from its definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from suites.parameters.spaces import Arguments, Space
from suites.tables import loss_values
from suites.tables.confusion import area, best, counts, f_score, intersections
from suites.tables.loss_values import (
    EPSILON,
    FLAT_WEIGHTS,
    FORMS,
    LOSSES,
    OF_ROWS,
    SMOOTHING,
    broadcast,
    examples,
    is_flat,
    weights_of,
)

Array = np.ndarray[Any, Any]
Values = Callable[..., Any]
"""Takes labels and predictions, and the parameters of the metric. It returns the value of each element."""
Whole = Callable[[Array, Array, Array, Arguments], Any]
"""Takes labels, predictions, weights of examples or elements, and parameters. It returns the metric."""

COMMON: Mapping[str, Any] = {"name": ("one", "another"), "dtype": ("float64", "float32")}
EVERY_FORM = (*FORMS, FLAT_WEIGHTS)


@dataclass(frozen=True)
class Measure:
    """A metric with the values of its parameters, its model, the data and the forms of weights that it takes."""

    space: Space
    model: Whole
    data: str
    forms: Sequence[str] = EVERY_FORM
    rtol: float = 1e-12
    flat: bool = False
    """True if its data never have an axis beside those of examples and classes."""
    single: bool = False
    """True if predictions are in float32, because TensorFlow ranks no others."""


def _mean(values: Values, finish: Callable[[Any], Any] = lambda mean: mean) -> Whole:
    """Return the model of a metric that is the mean of the values of elements, with weights that broadcast."""

    def model(truth: Array, predicted: Array, weights: Array | None, case: Arguments) -> Any:
        found = np.asarray(values(truth, predicted, **case))
        every = broadcast(weights, found)
        return finish((found * every).sum() / every.sum())

    return model


_MODELS = {loss.space.name: loss for loss in LOSSES}


def _of_loss(name: str, loss: str = "", finish: Callable[[Any], Any] = lambda mean: mean, **own: Any) -> Measure:
    """Return a metric that is the mean of a loss, with those of the loss' parameters that it has."""
    of = _MODELS[loss or name]
    space = Space(f"metrics.{name}", {**own, **COMMON}, allowed=of.space.allowed)
    return Measure(space, _mean(of.model, finish), of.data, rtol=of.rtol)


def _values(name: str, values: Values, data: str, *, rtol: float = 1e-12, **own: Any) -> Measure:
    further = {key: own.pop(key) for key in ("flat", "single", "fixed") if key in own}
    fixed = further.pop("fixed", {})
    forms = OF_ROWS if further.get("flat") else EVERY_FORM
    return Measure(Space(f"metrics.{name}", {**own, **COMMON}, fixed), _mean(values), data, forms, rtol, **further)


def _unit(values: Array, axis: int) -> Array:
    return values / np.sqrt((values**2).sum(axis=axis, keepdims=True))


def _pearson(truth: Array, predicted: Array, axis: int = -1) -> Any:
    truth, predicted = (one - one.mean(axis=axis, keepdims=True) for one in (truth, predicted))
    return (_unit(truth, axis) * _unit(predicted, axis)).sum(axis=axis)


def _concordance(truth: Array, predicted: Array, axis: int = -1) -> Any:
    means = truth.mean(axis=axis, keepdims=True), predicted.mean(axis=axis, keepdims=True)
    covariance = ((truth - means[0]) * (predicted - means[1])).mean(axis=axis)
    distance = ((means[0] - means[1]) ** 2).mean(axis=axis)
    return 2 * covariance / (truth.var(axis=axis) + predicted.var(axis=axis) + distance)


def _in_top(truth: Array, predicted: Array, k: int = 5) -> Any:
    index = truth.argmax(axis=-1) if truth.ndim == predicted.ndim else truth
    return (np.argsort(-predicted, axis=-1)[..., :k] == index[..., None]).any(axis=-1)


def _product(truth: Array, predicted: Array) -> Any:
    return (truth * predicted).mean(axis=-1)


def _mean_of_product(truth: Any, predicted: Any) -> Any:
    from suites.subject import ops

    return ops.mean(truth * predicted, axis=-1)


def _each(weights: Array | None, rows: int) -> Array:
    """Return weights of examples or elements, which are 1 without any."""
    return np.ones(rows) if weights is None else np.broadcast_to(weights, (rows,)) if weights.ndim == 0 else weights


def _counted(statistic: str) -> Whole:
    """Return the model of a statistic of hits and misses, of one class, of the largest, or above thresholds."""

    def model(truth: Array, predicted: Array, weights: Array | None, case: Arguments) -> Any:
        every = _each(weights, len(truth))
        every = np.broadcast_to(every[:, None] if every.ndim == 1 else every, truth.shape)
        thresholds = case.get("thresholds")
        if case.get("top_k") is not None:
            least = np.sort(predicted, axis=-1)[..., -case["top_k"], None]
            predicted = np.where(predicted >= least, predicted, -1.0)
            thresholds = -0.5 if thresholds is None else thresholds
        if case.get("class_id") is not None:
            one = slice(case["class_id"], case["class_id"] + 1)
            truth, predicted, every = truth[:, one], predicted[:, one], every[:, one]
        levels = [0.5] if thresholds is None else np.atleast_1d(thresholds)
        found = [getattr(counts(truth, predicted, every, level), statistic) for level in levels]
        return np.array(found) if len(found) > 1 else found[0]

    return model


def _confusion(name: str, statistic: str, **own: Any) -> Measure:
    forms = OF_ROWS if "class_id" in own else (*OF_ROWS, "of elements")
    space = Space(f"metrics.{name}", {"thresholds": (None, 0.25, [0.25, 0.75]), **own, **COMMON})
    return Measure(space, _counted(statistic), "binary", forms, rtol=2e-7, flat=True)


def _constrained(name: str, wanted: str, constrained: str, parameter: str) -> Measure:
    def model(truth: Array, predicted: Array, weights: Array | None, case: Arguments) -> Any:
        every = _each(weights, len(truth))
        every = np.broadcast_to(every[:, None] if every.ndim == 1 else every, truth.shape)
        if case["class_id"] is not None:
            one = slice(case["class_id"], case["class_id"] + 1)
            truth, predicted, every = truth[:, one], predicted[:, one], every[:, one]
        return best(wanted, constrained, case[parameter], case["num_thresholds"])(truth, predicted, every)

    # The bounds are no ratios of the weights, so that rounding never decides whether a threshold meets them.
    values = {parameter: (0.6123, 0.3871), "num_thresholds": (200, 20), "class_id": (None, 1), **COMMON}
    return Measure(Space(f"metrics.{name}", values), model, "binary", OF_ROWS, rtol=2e-7, flat=True)


def _area(truth: Array, predicted: Array, weights: Array | None, case: Arguments) -> Any:
    def below(columns: slice) -> Any:
        every = _each(weights, len(truth))
        every = every[:, None] if every.ndim == 1 else every
        thresholds = case["thresholds"]
        model = area(case["curve"], case["num_thresholds"], case["summation_method"], thresholds)
        shares = 1 / (1 + np.exp(-predicted)) if case["from_logits"] else predicted
        return model(truth[:, columns], shares[:, columns], every)

    if not case["multi_label"]:
        return below(slice(None))
    areas = [below(slice(one, one + 1)) for one in range(truth.shape[1])]
    return np.average(areas, weights=case["label_weights"])


def _areas_go_together(case: Arguments) -> bool:
    multi = case.get("multi_label")
    return multi is not False or (case.get("num_labels") is None and case.get("label_weights") is None)


def _union(classes: Callable[[Arguments], Sequence[int] | range]) -> Whole:
    def model(truth: Array, predicted: Array, weights: Array | None, case: Arguments) -> Any:
        every = _each(weights, len(truth))
        every = every[:, 0] if every.ndim == 2 else every
        ids = [
            one.argmax(axis=-1)[:, None] if one.ndim == 2 and one.shape[1] > 1 else one for one in (truth, predicted)
        ]
        ignored = case.get("ignore_class")
        kept = np.ones(len(truth), bool) if ignored is None else ids[0].reshape(len(truth)) != ignored
        flat = [one.reshape(len(truth), 1)[kept] for one in ids]
        return intersections(classes(case))(*flat, every[kept])

    return model


def _f(truth: Array, predicted: Array, weights: Array | None, case: Arguments) -> Any:
    every = _each(weights, len(truth))
    return f_score(case.get("beta", 1.0), case["average"], case["threshold"])(truth, predicted, every)


def _score(truth: Array, predicted: Array, weights: Array | None, case: Arguments) -> Any:
    """Return the coefficient of determination, which is adjusted for a number of regressors."""
    every = _each(weights, len(truth))
    every = every[:, None] if every.ndim == 1 else every
    center = (every * truth).sum(axis=0) / every.sum()
    total = (every * (truth - center) ** 2).sum(axis=0)
    scores = 1 - (every * (truth - predicted) ** 2).sum(axis=0) / total
    aggregation, number = case["class_aggregation"], case["num_regressors"]
    if aggregation is not None:
        scores = np.average(scores, weights=total if aggregation.startswith("variance") else None)
    rows = len(truth)
    return 1 - (1 - scores) * (rows - 1) / (rows - number - 1) if number else scores


AXES = loss_values.AXES
_FIRST_LAST = {"target_class_ids": ((0, 3), (1,))}
_IGNORED = {"ignore_class": (None, 1)}

MEASURES = (
    _of_loss("MeanSquaredError"),
    _of_loss("RootMeanSquaredError", "MeanSquaredError", np.sqrt),
    _of_loss("MeanAbsoluteError"),
    _of_loss("MeanAbsolutePercentageError"),
    _of_loss("MeanSquaredLogarithmicError"),
    _of_loss("LogCoshError", "LogCosh"),
    _of_loss("Hinge"),
    _of_loss("SquaredHinge"),
    _of_loss("CategoricalHinge"),
    _of_loss("KLDivergence"),
    _of_loss("Poisson"),
    _of_loss("CosineSimilarity", finish=lambda mean: -mean, axis=AXES),
    _of_loss("BinaryCrossentropy", **SMOOTHING),
    _of_loss("CategoricalCrossentropy", axis=AXES, **SMOOTHING),
    _of_loss("SparseCategoricalCrossentropy", from_logits=(False, True)),
    _values("PearsonCorrelation", _pearson, "real", axis=AXES),
    _values("ConcordanceCorrelation", _concordance, "real", rtol=EPSILON, axis=AXES),
    _values(
        "BinaryAccuracy",
        lambda truth, predicted, threshold=0.5: ((predicted > threshold) == truth).mean(axis=-1),
        "binary",
        threshold=(0.5, 0.25),
    ),
    _values("CategoricalAccuracy", lambda t, p: t.argmax(axis=-1) == p.argmax(axis=-1), "classes"),
    _values("SparseCategoricalAccuracy", lambda t, p: t == p.argmax(axis=-1), "sparse"),
    _values("TopKCategoricalAccuracy", _in_top, "classes", k=(2, 3), flat=True, single=True),
    _values("SparseTopKCategoricalAccuracy", _in_top, "sparse", k=(2, 3), flat=True, single=True),
    _values("MeanMetricWrapper", _product, "real", fixed={"fn": _mean_of_product}),
    _confusion("TruePositives", "tp"),
    _confusion("FalsePositives", "fp"),
    _confusion("TrueNegatives", "tn"),
    _confusion("FalseNegatives", "fn"),
    _confusion("Precision", "precision", top_k=(None, 2), class_id=(None, 1)),
    _confusion("Recall", "recall", top_k=(None, 2), class_id=(None, 1)),
    _constrained("SensitivityAtSpecificity", "recall", "specificity", "specificity"),
    _constrained("SpecificityAtSensitivity", "specificity", "recall", "sensitivity"),
    _constrained("PrecisionAtRecall", "precision", "recall", "recall"),
    _constrained("RecallAtPrecision", "recall", "precision", "precision"),
    Measure(
        Space(
            "metrics.AUC",
            {
                "num_thresholds": (200, 20),
                "curve": ("ROC", "PR"),
                "summation_method": ("interpolation", "minoring", "majoring"),
                "thresholds": (None, [0.25, 0.5, 0.75]),
                "multi_label": (False, True),
                "num_labels": (None, loss_values.CLASSES),
                "label_weights": (None, (1.0, 2.0, 0.5, 4.0)),
                "from_logits": (False, True),
                **COMMON,
            },
            allowed=_areas_go_together,
        ),
        _area,
        "binary",
        OF_ROWS,
        2e-6,
        flat=True,
    ),
    Measure(
        Space("metrics.MeanIoU", {"num_classes": (4, 5), **_IGNORED, **COMMON}),
        _union(lambda _case: range(4)),
        "ids",
        OF_ROWS,
        1e-6,
        flat=True,
    ),
    Measure(
        Space("metrics.IoU", {"num_classes": (4, 5), **_FIRST_LAST, **_IGNORED, **COMMON}),
        _union(lambda case: case["target_class_ids"]),
        "ids",
        OF_ROWS,
        1e-6,
        flat=True,
    ),
    Measure(
        Space("metrics.OneHotIoU", {"num_classes": (4,), **_FIRST_LAST, **_IGNORED, **COMMON}),
        _union(lambda case: case["target_class_ids"]),
        "classes",
        OF_ROWS,
        1e-6,
        flat=True,
    ),
    Measure(
        Space("metrics.OneHotMeanIoU", {"num_classes": (4,), **_IGNORED, **COMMON}),
        _union(lambda _case: range(4)),
        "classes",
        OF_ROWS,
        1e-6,
        flat=True,
    ),
    Measure(
        Space("metrics.F1Score", {"average": (None, "micro", "macro", "weighted"), "threshold": (None, 0.5), **COMMON}),
        _f,
        "classes",
        ("none", "of rows"),
        EPSILON,
        flat=True,
    ),
    Measure(
        Space(
            "metrics.FBetaScore",
            {"average": (None, "micro", "macro", "weighted"), "beta": (2.0, 0.5), "threshold": (None, 0.5), **COMMON},
        ),
        _f,
        "classes",
        ("none", "of rows"),
        EPSILON,
        flat=True,
    ),
    Measure(
        Space(
            "metrics.R2Score",
            {
                "class_aggregation": ("uniform_average", "variance_weighted_average", None),
                "num_regressors": (0, 2),  # with one output: a test of its own has several, with an entry
                **COMMON,
            },
        ),
        _score,
        "one_output",
        OF_ROWS[:3],
        flat=True,
    ),
)
"""All metrics of labels and predictions, except those whose parameters have no model here."""


def data_of(measure: Measure, case: dict[str, Any], rows: int) -> tuple[Array, Array, Array | None]:
    """Return labels, predictions and weights for a case."""
    flat = measure.flat or is_flat(case["weights"])
    if measure.data == "ids":
        truth, scores = examples("sparse", rows, flat=True)
        predicted = scores.argmax(axis=-1)
    elif measure.data == "one_output":
        truth, predicted = (one[:, :1] for one in examples("real", rows, flat=True))
    else:
        logits, axis = case.get("from_logits", False), case.get("axis", -1)
        truth, predicted = examples(measure.data, rows, logits=logits, axis=axis, flat=flat)
    elements = predicted.shape if flat else np.delete(predicted.shape, case.get("axis", -1))
    weights = weights_of(case["weights"], tuple(elements))
    return truth, predicted.astype("float32") if measure.single else predicted, weights


def own(measure: Measure, case: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that the model needs, also those that the installed version lacks, as their defaults."""
    first = {name: values[0] for name, values in measure.space.values.items()}
    return {name: case.get(name, value) for name, value in first.items() if name not in COMMON}
