"""Compare each metric, with all of its parameters, ranks of weights and dtypes, with NumPy on the whole data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suites.parameters.replicas import on_replicas
from suites.parameters.spaces import Wrong, find
from suites.running import SIZES, components, replicas_of
from suites.tables.loss_values import labels_of
from suites.tables.metric_values import MEASURES, data_of, own

pytestmark = [
    pytest.mark.usefixtures("float64"),
    # Metrics that count, and whose dtype is an integer, warn of weights that are not whole numbers.
    pytest.mark.filterwarnings("ignore:You are casting:UserWarning"),
]

SINGLE = {"float64": 0.0, "float32": 2e-5}
"""Relative bound by dtype, beside that of the metric: some ten roundings of 6e-8, and differences of near numbers."""
SPACES = dict.fromkeys((measure.space for measure in MEASURES), ("one_device", "mirrored"))
"""Spaces of the properties of this file -> their strategies."""


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("metric.Mean", "metric.Confusion_counts", "metric.Accuracy_family")
@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.space.name)
def test_a_metric_is_its_definition(measure, ddl_strategy):
    """Update with uneven parts, begin again, and update with other parts: a state that is left would show."""
    wrong, replicas = Wrong(), replicas_of(ddl_strategy)
    # A mean takes each update with one weight for all as one value, whatever number of examples it has.
    forms = [form for form in measure.forms if replicas == 1 or form != "one"]
    cases = measure.space.cases(weights=forms, labels=labels_of(measure.data))
    made: list[Any] = []
    for case in cases:
        metric = None
        with wrong.of(case), ddl_strategy.scope():
            metric = measure.space.make(case)
            assert metric.name == case.get("name", metric.name)
        made.append(metric)
    for number in range(2):
        ends = np.cumsum([3 * size for size in SIZES[number][:replicas]])
        given = [data_of(measure, case, int(ends[-1])) for case in cases]
        calls = [
            lambda replica, metric=metric, given=one, case=case, ends=ends: update(metric, given, case, replica, ends)
            for metric, one, case in zip(made, given, cases, strict=True)
        ]
        for metric, case, (truth, predicted, weights), results in zip(
            made, cases, given, on_replicas(ddl_strategy, calls), strict=True
        ):
            if metric is None:
                continue
            with wrong.of(f"after {number} resets", case):
                list(results.items())  # raises what an update has raised
                expected = measure.model(truth, predicted, weights, own(measure, case))
                bound = measure.rtol + SINGLE[case.get("dtype", "float64")]
                np.testing.assert_allclose(metric.result(), expected, rtol=bound, atol=bound)
                metric.reset_state()
                for variable in metric.variables:
                    assert not np.any(components(ddl_strategy, variable)), f"{variable.name} after a reset"
    wrong.check()
    assert cases or not measure.space.exists()


def update(metric: Any, given: Any, case: dict[str, Any], replica: int, ends: Any) -> None:
    """Give a replica its rows. Weights of one row, or one for all, are given to each."""
    truth, predicted, weights = given
    rows = slice(ends[replica - 1] if replica else 0, ends[replica])
    if weights is not None and weights.shape[:1] == truth.shape[:1]:
        weights = weights[rows]
    metric.update_state(truth[rows].astype(case["labels"]), predicted[rows], sample_weight=weights)


DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
REQUIRED = {"normalizer": [1.0], "num_classes": 4, "target_class_ids": [0, 1], "fn": abs}
BOUNDS = ("specificity", "sensitivity", "recall", "precision")


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("metric.Mean", "metric.MeanIoU", shows="behavior")
def test_a_metric_of_any_dtype_begins_again(ddl_strategy):
    """After a reset its variables have the values, and the dtypes, that they had at first."""
    import inspect

    from suites.subject import keras

    wrong = Wrong()
    for name, kind in vars(keras.metrics).items():
        if not (isinstance(kind, type) and issubclass(kind, keras.metrics.Metric)) or kind is keras.metrics.Metric:
            continue
        wanted = inspect.signature(kind).parameters.values()
        given = {
            one.name: REQUIRED.get(one.name, 0.5)
            for one in wanted
            if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
        }
        for dtype in DTYPES:
            with wrong.of(name, dtype), ddl_strategy.scope():
                metric = kind(**given, dtype=dtype)
                first = [components(ddl_strategy, variable) for variable in metric.variables]
                for variable in metric.variables:
                    variable.assign(np.ones(variable.shape))
                metric.reset_state()
                again = [components(ddl_strategy, variable) for variable in metric.variables]
                for before, after in zip(first, again, strict=True):
                    for one, other in zip(before, after, strict=True):
                        assert one.dtype == other.dtype
                        np.testing.assert_array_equal(other, one)
    wrong.check()
    assert find("metrics.Mean") is not None
