"""Compare metrics of overlaps of classes, and those with options of whole numbers, with NumPy on the whole data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suites.parameters.replicas import on_replicas
from suites.parameters.spaces import Arguments, Space, Wrong

pytestmark = pytest.mark.usefixtures("float64")

CLASSES, ROWS = 4, 12
BOTH = ("one_device", "mirrored")
_SPARSE: Any = {"sparse_y_true": (True, False), "sparse_y_pred": (True, False)}
_HOT: Any = {"num_classes": (CLASSES, CLASSES + 2), "sparse_y_pred": (True, False)}
_CHOSEN: Any = {"target_class_ids": ([0, 1], [2])}
_OWN: Any = {"name": ("one", "another"), "dtype": ("float32", "float64")}
OVERLAPS = (
    Space("metrics.IoU", {**_SPARSE, **_CHOSEN, **_OWN}, fixed={"num_classes": CLASSES}),
    Space("metrics.MeanIoU", {**_SPARSE, **_OWN}, fixed={"num_classes": CLASSES}),
    Space("metrics.OneHotIoU", {**_HOT, **_CHOSEN, **_OWN}),
    Space("metrics.OneHotMeanIoU", {**_HOT, **_OWN}),
    Space(
        "metrics.BinaryIoU",
        {"target_class_ids": ([0, 1], [1], [0]), "threshold": (0.5, 0.25), **_OWN},
    ),
)
IGNORING = Space("metrics.SparseCategoricalCrossentropy", {"ignore_class": (None, 0, 2), "from_logits": (False, True)})
BEST = Space("metrics.SparseTopKCategoricalAccuracy", {"from_sorted_ids": (False, True), "k": (1, 2)})
SPACES = dict.fromkeys((*OVERLAPS, IGNORING, BEST), BOTH)
"""Spaces of the properties of this file -> their strategies."""


def overlap(truth: Any, predicted: Any, chosen: Any) -> float:
    """Return the mean, over classes that occur, of common examples by examples that have the class in either."""
    found = []
    for one in chosen:
        either = ((truth == one) | (predicted == one)).sum()
        if either:
            found.append(((truth == one) & (predicted == one)).sum() / either)
    return float(np.mean(found))


def given(space: Space, case: Arguments) -> tuple[Any, Any, float]:
    """Return labels, predictions and the result of a case."""
    draw = np.random.default_rng(3)
    classes = case.get("num_classes", CLASSES)
    if space.name == "BinaryIoU":
        truth, shares = draw.integers(0, 2, (ROWS, 5)), draw.random((ROWS, 5))
        return truth, shares, overlap(truth, shares >= case["threshold"], case["target_class_ids"])
    truth, predicted = draw.integers(0, CLASSES, (2, ROWS, 5))
    expected = overlap(truth, predicted, case.get("target_class_ids", range(classes)))
    one = truth if case.get("sparse_y_true") else np.eye(classes)[truth]
    other = predicted if case["sparse_y_pred"] else np.eye(classes)[predicted] * 0.5
    return one, other, expected


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("metric.MeanIoU")
@pytest.mark.parametrize("space", OVERLAPS, ids=lambda space: space.name)
def test_an_overlap_is_that_of_all_examples(space, ddl_strategy):
    """The replicas get a third and two thirds of the examples."""
    from suites.running import replicas_of

    wrong, cases, metrics, calls = Wrong(), space.cases(), [], []
    ends = [ROWS] if replicas_of(ddl_strategy) == 1 else [ROWS // 3, ROWS]
    for case in cases:
        with ddl_strategy.scope():
            metric = space.make(case)
        truth, predicted, _ = given(space, case)

        def update(replica: int, metric: Any = metric, truth: Any = truth, predicted: Any = predicted) -> None:
            rows = slice(ends[replica - 1] if replica else 0, ends[replica])
            metric.update_state(truth[rows], predicted[rows])

        metrics.append(metric)
        calls.append(update)
    for case, metric, results in zip(cases, metrics, on_replicas(ddl_strategy, calls), strict=True):
        with wrong.of(case):
            list(results.items())  # raises what an update has raised
            assert metric.name == case["name"]
            # Keras adds 1e-7 to numbers that it divides by.
            assert float(metric.result()) == pytest.approx(given(space, case)[2], rel=1e-6)
    wrong.check()


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("metric.MeanIoU")
@pytest.mark.parametrize("name", ["IoU", "MeanIoU"])
def test_an_overlap_leaves_out_what_is_no_class(name, ddl_strategy):
    """A number below 0 or above the last class is no class, in the labels and in the predictions."""
    from suites.subject import keras

    draw = np.random.default_rng(7)
    truth, predicted = draw.integers(-2, CLASSES + 2, (2, 20 * ROWS))
    known = np.all([(one >= 0) & (one < CLASSES) for one in (truth, predicted)], axis=0)
    own = {"target_class_ids": list(range(CLASSES))} if name == "IoU" else {}
    with ddl_strategy.scope():
        metric = getattr(keras.metrics, name)(num_classes=CLASSES, dtype="float64", **own)
        metric.update_state(truth, predicted)
    assert float(metric.result()) == pytest.approx(overlap(truth[known], predicted[known], range(CLASSES)), rel=1e-6)


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("metric.Accuracy_family")
@pytest.mark.parametrize("space", [IGNORING, BEST], ids=lambda space: space.name)
def test_classes_that_are_left_out_or_sorted(space, ddl_strategy):
    """Each replica gets all examples, so that the mean is that of one."""
    draw = np.random.default_rng(4)
    truth, logits = draw.integers(0, CLASSES, ROWS), draw.normal(size=(ROWS, CLASSES))
    ranked = np.argsort(-logits, axis=-1)
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    wrong, cases, metrics = Wrong(), space.cases(), []
    for _ in cases:
        with ddl_strategy.scope():
            metrics.append(space.make(cases[len(metrics)]))

    def predicted(case: Arguments) -> Any:
        if case.get("from_sorted_ids"):
            return ranked[:, : case["k"]]
        return logits.astype("float32") if space is BEST or case["from_logits"] else shares

    def expected(case: Arguments) -> float:
        if space is BEST:
            return float((ranked[:, : case["k"]] == truth[:, None]).any(axis=-1).mean())
        kept = np.ones(ROWS, bool) if case.get("ignore_class") is None else truth != case["ignore_class"]
        return float(-np.log(shares[np.arange(ROWS), truth])[kept].sum() / ROWS)

    calls = [
        lambda _replica, one=one, case=case: one.update_state(truth, predicted(case))
        for one, case in zip(metrics, cases, strict=True)
    ]
    for case, metric, results in zip(cases, metrics, on_replicas(ddl_strategy, calls), strict=True):
        with wrong.of(case):
            list(results.items())  # raises what an update has raised
            assert float(metric.result()) == pytest.approx(expected(case), rel=1e-6)
    wrong.check()
