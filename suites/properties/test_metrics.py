"""Compare metrics that replicas update with uneven parts with NumPy models on the whole data."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from pytest_ddl.conformance.data import weights as weights_of_examples
from pytest_ddl.conformance.metrics import Updates, after_reset, uneven_parts
from suites import absent, subject
from suites.items import lacking
from suites.known_failures import versions_of
from suites.running import HOW, SIZES, components, each, padded, replicas_of, split, unpadded
from suites.tables.metrics import CASES, DATA, Case

SYNCHRONOUS = ["one_device", "mirrored[replicas=3]", "multi_worker_mirrored"]

pytestmark = pytest.mark.usefixtures("float64")

ONE_OF_EACH = tuple({case.item: case for case in reversed(CASES)}.values())
"""One case of each item, for strategies that cost more."""


def parameters(cases: tuple[Case, ...]) -> list[Any]:
    return [pytest.param(case, id=case.id, marks=pytest.mark.ddl_item(case.item, keras=case.keras)) for case in cases]


def updates_of(case: Case, strategy: Any, how: str, *, weighted: bool) -> Updates:
    from suites.subject import keras

    make = partial(getattr(keras.metrics, case.metric), **case.arguments)
    return Updates(strategy, make, DATA[case.data], how, weighted=weighted)


def updating(metric: Any) -> Any:
    """Return a function of padded parts that updates a metric."""

    def update(*arrays: Any) -> None:
        metric.update_state(*arrays)  # returns an operation in tf_keras

    return unpadded(update)


@pytest.mark.ddl(strategies=SYNCHRONOUS)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("case", parameters(CASES))
def test_metric_of_uneven_parts_is_metric_of_the_whole(case, how, ddl_strategy):
    """Give weights to every class in one of the two modes: both in both would take twice the time."""
    updates = updates_of(case, ddl_strategy, how, weighted=how == "function")
    uneven_parts(updates, case.model, case.rtol)
    after_reset(updates, case.model, case.rtol)


@pytest.mark.ddl(strategies=["parameter_server", "central_storage"])
@pytest.mark.parametrize("how", ["function"])
@pytest.mark.ddl_item(*(case.item for case in ONE_OF_EACH))
def test_metrics_that_share_their_state_between_parts(how, ddl_strategy):
    """Run all classes in one test, because a cluster that has servers, or in which a test failed, costs a new start."""
    wrong = []
    for case in (case for case in ONE_OF_EACH if absent.is_usable(f"metrics.{case.metric}")):
        updates = updates_of(case, ddl_strategy, how, weighted=True)
        for number in range(len(SIZES)):
            updates.step(number)
        try:
            updates.check(case.model, case.rtol, "after all steps")
        except AssertionError as error:
            wrong.append(f"{case.id}: {error}")
    assert not wrong, "\n".join(wrong)


REPLICAS = ["mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"]


@pytest.mark.ddl_item("metric.long")
@pytest.mark.ddl(strategies=REPLICAS)
@pytest.mark.parametrize("how", ["function"])
def test_long_runs_keep_the_result_of_constant_data(how, ddl_strategy):
    """A state that replicas add to each other doubles in each step, and is no number of float32 after 128 of them."""
    from suites.subject import keras

    with ddl_strategy.scope():
        kinds = (keras.metrics.Sum, keras.metrics.Mean, keras.metrics.Recall)
        metrics = [kind(dtype="float32") for kind in kinds]
    # All sums are whole numbers below 2**24, which float32 adds exactly: the only rounding is that of the division.
    values, truth, predicted = np.float32([3, 8, -2, 1]), np.float32([1, 0, 1, 1]), np.float32([0.9, 0.2, 0.1, 0.8])

    def update(values, truth, predicted):
        metrics[0].update_state(values)
        metrics[1].update_state(values)
        metrics[2].update_state(truth, predicted)

    step, replicas = each(ddl_strategy, update, how), replicas_of(ddl_strategy)
    for number in range(1, 301):
        step([(values, truth, predicted)] * replicas)
        if number % 50 == 0:
            found = [float(metric.result()) for metric in metrics]
            np.testing.assert_allclose(found, [10 * replicas * number, 2.5, 2 / 3], rtol=1.2e-7)


@pytest.mark.ddl_item("metric.Custom_Metric")
@pytest.mark.ddl(strategies=SYNCHRONOUS)
@pytest.mark.parametrize("how", HOW)
def test_custom_metric_of_uneven_parts_is_metric_of_the_whole(how, ddl_strategy):
    """Keep a vector and a number in states of its own, one by assign and one by assign_add."""
    from suites.subject import keras, ops

    class Moments(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="moments")
            self.squares = self.add_weight(shape=(3,), initializer="zeros", name="squares")
            self.rows = self.add_weight(shape=(), initializer="zeros", name="rows")

        def update_state(self, values):
            self.squares.assign(self.squares + ops.sum(values**2, axis=0))
            self.rows.assign_add(ops.cast(ops.shape(values)[0], self.rows.dtype))

        def result(self):
            return self.squares / self.rows

        if not absent.is_usable("metrics.Metric.reset_state"):

            def reset_state(self):
                for variable in self.variables:
                    variable.assign(0 * variable)

    with ddl_strategy.scope():
        metric = Moments()
    step = each(ddl_strategy, updating(metric), how)
    seen = []
    for sizes in SIZES:
        sizes = sizes[: replicas_of(ddl_strategy)]
        (values,) = DATA["values"](sum(sizes))
        step(padded(split((values,), sizes)))
        seen.append(values)
        np.testing.assert_allclose(metric.result(), np.mean(np.concatenate(seen) ** 2, axis=0), rtol=1e-12)
    metric.reset_state()
    for variable in metric.variables:
        assert not np.any(components(ddl_strategy, variable)), variable.name


@pytest.mark.ddl_item("metric.contexts")
@pytest.mark.ddl(strategies=SYNCHRONOUS)
@pytest.mark.parametrize("how", HOW)
def test_replicas_see_their_own_state_and_the_caller_sees_the_sum(how, ddl_strategy):
    """Reset in a cross-replica context clears the state of every replica."""
    from suites.subject import keras

    with ddl_strategy.scope():
        metric = keras.metrics.Mean()

    def update(values):
        metric.update_state(values)
        return metric.result()

    step = each(ddl_strategy, unpadded(update), how)
    sizes = SIZES[0][: replicas_of(ddl_strategy)]
    (values,) = DATA["values"](sum(sizes))
    parts = split((values,), sizes)
    for _ in range(2):
        own = sorted(float(result) for (result,) in step(padded(parts)))
        if subject.merges_results():
            np.testing.assert_allclose(own, values.mean(), rtol=1e-12)
        else:
            means = [part.mean() for (part,) in parts]
            assert all(np.isclose(one, means, rtol=1e-12, atol=0).any() for one in own), (own, means)
            assert len(set(own)) == len(own)
        np.testing.assert_allclose(metric.result(), values.mean(), rtol=1e-12)
        metric.reset_state()
        assert float(metric.result()) == 0


@pytest.mark.ddl_item("metric.contexts")
@pytest.mark.ddl(strategies=["mirrored[replicas=3]"])
def test_metric_made_out_of_the_scope_counts_every_replica(ddl_strategy):
    """Such a metric is not refused. In one process it has one state, to which all replicas add."""
    from suites.subject import keras

    metric = keras.metrics.Mean()
    sizes = SIZES[0]
    (values,) = DATA["values"](sum(sizes))
    each(ddl_strategy, updating(metric), "function")(padded(split((values,), sizes)))
    np.testing.assert_allclose(metric.result(), values.mean(), rtol=1e-12)


@pytest.mark.ddl_item("metric.add_metric")
@pytest.mark.ddl(strategies=["one_device", "mirrored[replicas=4]"])
@pytest.mark.parametrize("how", HOW)
def test_compiled_metrics_are_metrics_of_the_whole(how, ddl_strategy):
    """Compare metrics and weighted metrics of evaluate, with weights that differ between the replicas' parts."""
    from suites.subject import keras

    truth, predicted = DATA["real"](24)
    weights = weights_of_examples(24)
    with ddl_strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Rescaling(2.0)])
        model.compile(
            loss="mse",
            metrics=[keras.metrics.MeanAbsoluteError(name="plain")],
            weighted_metrics=[keras.metrics.MeanAbsoluteError(name="weighted")],
            run_eagerly=how == "eager",
        )
    found = model.evaluate(predicted, truth, batch_size=8, sample_weight=weights, return_dict=True, verbose=0)
    errors = np.abs(truth - 2 * predicted).mean(axis=1)
    # The loss of fit and evaluate is divided by the number of examples, and not by the sum of their weights.
    loss = (((truth - 2 * predicted) ** 2).mean(axis=1) * weights).mean()
    expected = {"plain": errors.mean(), "weighted": (errors * weights).sum() / weights.sum(), "loss": loss}
    assert found == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.ddl_item("metric.MeanTensor")
@pytest.mark.ddl(strategies=SYNCHRONOUS, keras="tf_keras")
def test_mean_tensor_of_uneven_parts_is_that_of_the_whole(ddl_strategy):
    """Only tf_keras has this class: each element has its own weight, so that the parts may have unequal weights."""
    from suites.subject import keras

    replicas = replicas_of(ddl_strategy)
    with ddl_strategy.scope():
        metric = keras.metrics.MeanTensor(shape=(2, 3), dtype="float64")
    values, weights = np.random.default_rng(5).random((2, 3, replicas, 2, 3))
    step = each(ddl_strategy, lambda value, weight: metric.update_state(value, sample_weight=weight), "eager")
    for number in range(3):
        step(list(zip(values[number % 2], weights[number % 2], strict=True)))
        chosen = [one % 2 for one in range(number + 1)]
        expected = (values[chosen] * weights[chosen]).sum(axis=(0, 1)) / weights[chosen].sum(axis=(0, 1))
        np.testing.assert_allclose(metric.result(), expected, rtol=1e-12)


@pytest.mark.ddl_item("metric.Mean", shows="behavior")
@pytest.mark.ddl(strategies=["one_device"])
def test_every_class_of_keras_has_a_case(ddl_strategy):
    from suites.subject import keras

    classes = {
        one.__name__
        for one in vars(keras.metrics).values()
        if isinstance(one, type) and issubclass(one, keras.metrics.Metric) and one is not keras.metrics.Metric
    }
    # A test of its own has the class that gets no parts of examples.
    versions = versions_of(subject.name())
    cases = {case.metric for case in CASES if not lacking({"keras": case.keras}, versions)} | {"MeanTensor"}
    assert classes == {name for name in cases if absent.has(f"metrics.{name}")}
