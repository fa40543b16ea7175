"""Update each metric in all forms: parts, masks, weights, lists, symbols of sizes, copies. Compare it with NumPy."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Arguments, Wrong
from suites.subject import with_mask
from suites.tables.loss_values import Array
from suites.tables.metric_values import MEASURES, Measure, data_of, own

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("metric.Mean", "metric.Confusion_counts", "metric.Accuracy_family"),
    pytest.mark.filterwarnings("ignore:.*R2 score:UserWarning"),
]

ROWS, CASES = 6, 3
BOUND = {"rtol": 2e-3, "atol": 2e-3}
"""Metrics are in float32. Two wrong rows of six change each of them by more."""
KEPT = np.array([False, True, False, True, True, True])
TIMES = np.array([1, 2, 1, 3, 2, 1])


@dataclass(frozen=True)
class Update:
    """A metric with its parameters, and the labels and predictions that it gets."""

    measure: Measure
    case: Arguments
    truth: Array
    predicted: Array

    def metric(self) -> Any:
        return self.measure.space.make(self.case)

    def wanted(self, rows: Any = slice(None), weights: Array | None = None, predicted: Array | None = None) -> Any:
        """Return the metric of some rows, from its definition in float64."""
        values = self.predicted if predicted is None else predicted
        truth, values = (
            one[rows].astype("float64") if one.dtype.kind == "f" else one[rows] for one in (self.truth, values)
        )
        return self.measure.model(truth, values, weights, own(self.measure, self.case))

    def of(self, *given: Any, **options: Any) -> Any:
        """Return the result of a new metric after one update."""
        metric = self.metric()
        metric.update_state(*given, **options)
        return metric.result()

    def weighted(self, weights: Any) -> Any:
        return self.of(self.truth, self.predicted, sample_weight=weights)


def _updates(measure: Measure, number: int = CASES) -> Iterator[Update]:
    """Yield some of the cases that have all pairs of parameters."""
    cases = measure.space.cases(weights=["none"])
    for case in cases[:: max(1, -(-len(cases) // number))]:
        case = {**case, "dtype": "float32"}
        truth, predicted, _ = data_of(measure, case, ROWS)
        single = (one.astype("float32") if one.dtype == "float64" else one for one in (truth, predicted))
        yield Update(measure, case, *single)


Pair = tuple[Any, Any]
"""A result of a metric, and the right one."""


def _in_parts(one: Update) -> Iterator[Pair]:
    metric = one.metric()
    for rows in (slice(2), slice(2, 3), slice(3, None)):
        metric.update_state(one.truth[rows], one.predicted[rows])
    yield metric.result(), one.wanted()
    metric.reset_state()
    metric.update_state(one.truth[:4], one.predicted[:4])
    yield metric.result(), one.wanted(slice(4))


def _lists(one: Update) -> Iterator[Pair]:
    if one.measure.space.name != "MeanMetricWrapper":  # its function gets what the user gives
        yield one.of(one.truth.tolist(), one.predicted.tolist()), one.wanted()


def _masked(one: Update) -> Iterator[Pair]:
    import tensorflow as tf

    yield one.of(one.truth, with_mask(tf.constant(one.predicted), tf.constant(KEPT))), one.wanted(KEPT)


def _weights(one: Update) -> Iterator[Pair]:
    """A row of the weight 0 is as none, and one of the weight 2 as two rows."""
    if one.case.get("num_regressors"):
        return  # it counts rows, whatever they weigh
    yield one.weighted(KEPT), one.wanted(KEPT)
    yield one.weighted(TIMES.tolist()), one.wanted(np.repeat(np.arange(ROWS), TIMES))


def _no_examples(one: Update) -> Iterator[Pair]:
    """A metric is finite before its first update, and may be reset."""
    metric = one.metric()
    yield np.isfinite(metric.result()).all(), True
    metric.reset_state()
    metric.update_state(one.truth, one.predicted)
    yield metric.result(), one.wanted()


def _stateless(one: Update) -> Iterator[Pair]:
    metric = one.metric()
    metric.update_state(one.truth[:2], one.predicted[:2])  # some make their variables here
    before = np.asarray(metric.result())
    state = metric.stateless_reset_state()
    for rows in (slice(4), slice(4, None)):
        state = metric.stateless_update_state(state, one.truth[rows], one.predicted[rows])
    yield metric.stateless_result(state), one.wanted()
    yield metric.result(), before


def _in_a_function(one: Update) -> Iterator[Pair]:
    """The sizes of what a step gets may be unknown when it is traced."""
    import tensorflow as tf

    metric = one.metric()
    metric.update_state(one.truth, one.predicted)
    metric.reset_state()
    sizes = [tf.TensorSpec([None] * array.ndim, array.dtype) for array in (one.truth, one.predicted)]

    @tf.function(input_signature=sizes, autograph=False)  # as in fit
    def step(truth: Any, predicted: Any) -> Any:
        metric.update_state(truth, predicted)
        return metric.result()

    yield step(one.truth, one.predicted), one.wanted()


def _half(one: Update) -> Iterator[Pair]:
    import tensorflow as tf

    # A sum of products, and a function of logits, may differ by more.
    if one.predicted.dtype.kind == "f" and not one.case.get("from_logits") and one.measure.data != "real":
        for dtype in ("float16", "bfloat16"):
            rounded = tf.cast(one.predicted, dtype)
            yield one.of(one.truth, rounded), one.wanted(predicted=np.asarray(tf.cast(rounded, "float32")))


NO_COLUMNS = ("CosineSimilarity", "PearsonCorrelation", "ConcordanceCorrelation", "KLDivergence", "CategoricalHinge")


def _columns(one: Update) -> Iterator[Pair]:
    """A column of labels or predictions is as good as a row of them."""
    options, kinds = one.case, ("real", "positive", "signs", "binary", "ids")
    chosen = options.get("class_id") is not None or options.get("top_k") or options.get("multi_label")
    if one.measure.data not in kinds or one.measure.space.name in (*NO_COLUMNS, "MeanMetricWrapper") or chosen:
        return
    truth, predicted = (array.reshape(ROWS, -1)[:, :1] for array in (one.truth, one.predicted))
    column = Update(one.measure, one.case, truth, predicted)
    for labels, values in itertools.product((truth, truth[:, 0]), (predicted, predicted[:, 0])):
        yield column.of(labels, values), column.wanted()


WAYS: Mapping[str, Callable[[Update], Iterator[Pair]]] = {
    "in parts": _in_parts,
    "of lists": _lists,
    "masked": _masked,
    "weights": _weights,
    "no examples": _no_examples,
    "stateless": _stateless,
    "in a function": _in_a_function,
    "half precision": _half,
    "columns": _columns,
}
_CONFUSION = ("TruePositives", "FalsePositives", "TrueNegatives", "FalseNegatives")
_AT_BOUNDS = ("SensitivityAtSpecificity", "SpecificityAtSensitivity", "PrecisionAtRecall", "RecallAtPrecision")
_SCORES = ("F1Score", "FBetaScore", "R2Score")
LEFT: Mapping[str, tuple[str, ...]] = {
    "of lists": ("SparseCategoricalCrossentropy", "AUC"),
    "masked": (
        *("RootMeanSquaredError", "Precision", "Recall", "AUC"),
        *(*_CONFUSION, *_AT_BOUNDS, *_SCORES, "MeanIoU", "OneHotIoU", "OneHotMeanIoU"),
    ),
    "no examples": (*_SCORES, "AUC"),
    "stateless": _CONFUSION,
    "in a function": ("R2Score",),
    "half precision": ("TopKCategoricalAccuracy", "SparseTopKCategoricalAccuracy"),
    "columns": ("Hinge", "SquaredHinge", "Poisson", "BinaryCrossentropy"),
}
"""Metrics that Keras gets wrong in a form. Each has a test of its own, with an entry."""


def _agree(way: str, measure: Measure, wrong: Wrong, cases: int) -> None:
    for one in _updates(measure, cases):
        with wrong.of(measure.space.name, one.case):
            for found, wanted in WAYS[way](one):
                np.testing.assert_allclose(np.asarray(found, "float64"), np.asarray(wanted, "float64"), **BOUND)


@pytest.mark.parametrize("way", WAYS)
def test_a_metric_is_the_same_in_each_form(way, ddl_strategy):
    wrong = Wrong()
    for measure in MEASURES:
        if measure.space.name not in LEFT.get(way, ()):
            _agree(way, measure, wrong, 1 if way == "in a function" else CASES)  # a trace takes long
    wrong.check()


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in LEFT.items() for name in names])
def test_a_metric_that_differs_in_a_form(way, name, ddl_strategy):
    wrong = Wrong()
    (measure,) = (one for one in MEASURES if one.space.name == name)
    if not measure.space.exists():
        pytest.skip(f"this version has no {name}")
    _agree(way, measure, wrong, cases=4 * CASES)
    wrong.check()


COPIES: Mapping[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda metric: pickle.loads(pickle.dumps(metric)),
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_a_metric_has_its_state(way, ddl_strategy):
    """A copy goes on from what the metric has seen, and does not change it."""
    wrong = Wrong()
    for measure in MEASURES:
        for one in itertools.islice(_updates(measure), measure.space.name != "MeanMetricWrapper"):
            with wrong.of(measure.space.name):
                metric = one.metric()
                metric.update_state(one.truth[:3], one.predicted[:3])
                other = COPIES[way](metric)
                other.update_state(one.truth[3:], one.predicted[3:])
                np.testing.assert_allclose(other.result(), one.wanted(), **BOUND)
                np.testing.assert_allclose(metric.result(), one.wanted(slice(3)), **BOUND)
    wrong.check()
