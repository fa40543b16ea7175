"""Numbers that are computed from the state of a metric are those that Keras computes."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest

from pytest_ddl.equivalence.known.shared_metrics import numbers_of
from pytest_ddl.equivalence.known.shown_metrics import shown

METRICS = keras.metrics
LABELS = {"multi_label": True, "num_labels": 3}


@pytest.mark.parametrize(
    "make",
    [
        *(
            lambda curve=curve, method=method, labels=labels: METRICS.AUC(9, curve, method, **labels)
            for curve in ("ROC", "PR")
            for method in ("interpolation", "minoring", "majoring")
            for labels in ({}, LABELS)
        ),
        METRICS.Precision,
        lambda: METRICS.Precision(thresholds=[0.2, 0.7]),
        lambda: METRICS.Recall(thresholds=[0.2, 0.7]),
        lambda: METRICS.FalsePositives(thresholds=[0.2, 0.7]),
        METRICS.TrueNegatives,
        lambda: METRICS.SensitivityAtSpecificity(0.5),
        lambda: METRICS.SpecificityAtSensitivity(0.6),
        lambda: METRICS.PrecisionAtRecall(0.5),
        lambda: METRICS.RecallAtPrecision(0.5),
        METRICS.RootMeanSquaredError,
        METRICS.MeanAbsoluteError,
        METRICS.CosineSimilarity,
        METRICS.BinaryIoU,
        lambda: METRICS.IoU(num_classes=2, target_class_ids=[1]),
        *(
            lambda mean=mean: METRICS.R2Score(class_aggregation=mean)
            for mean in (None, "uniform_average", "variance_weighted_average")
        ),
        *(lambda average=average: METRICS.F1Score(average=average) for average in (None, "macro", "micro", "weighted")),
    ],
)
def test_the_number_is_that_of_keras(make: Callable[[], keras.Metric]) -> None:
    random, metric = np.random.default_rng(0), make()
    labels = 3 if getattr(metric, "multi_label", False) or isinstance(metric, METRICS.F1Score) else 1
    for _update in range(3):
        truth = (random.random((16, labels)) > 0.4).astype("float32")
        metric.update_state(truth, np.clip(0.3 * truth + 0.8 * random.random((16, labels)), 0, 1).astype("float32"))
        states = {one.path.rpartition("/")[2]: np.asarray(one.value, np.float64) for one in metric.variables}
        possible = np.array([float(number) for number in shown(states)])
        for number in np.ravel(np.asarray(metric.result(), np.float64)):
            assert np.min(np.abs(possible - number)) <= 1e-6


@pytest.mark.parametrize(
    ("shown_as", "numbers"),
    [
        ("auc", [1]),
        ("val_auc", [1]),
        ("evaluate/auc", [1]),
        ("first_auc", [1]),
        ("wrong", [2]),
        ("accuracy", [1, 2, 3]),
        ("", [1, 2, 3]),
    ],
)
def test_a_number_is_looked_for_in_its_own_metric(shown_as: str, numbers: list[int]) -> None:
    assert numbers_of([("auc", 1), ("wrong", 2), ("", 3)], shown_as) == numbers
