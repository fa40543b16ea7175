"""Pairs of options that the tests of parameters leave out, because they are wrong today: each test has an entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suites.linear import COPY_WARNING
from suites.parameters.spaces import find
from suites.properties.test_hooks_and_logs import one_training
from suites.tables.loss_values import broadcast, examples, weights_of
from suites.tables.metric_values import MEASURES

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(COPY_WARNING)]

PLAIN = {
    "outputs": "one",
    "loss_weights": "no",
    "weights": "no",
    "metrics": "no",
    "steps_per_execution": "1",
    "batches": "3",
    "rest": "0",
    "validation": "no",
    "epochs": "1",
    "run_eagerly": "False",
    "then": "evaluate",
}
"""The training of ``test_hooks_and_logs``, from which each test here takes one or two choices."""
SMOOTHED = ("losses.CategoricalCrossentropy", "losses.CategoricalFocalCrossentropy", "metrics.CategoricalCrossentropy")


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("loss.reductions", "metric.KLDivergence")
@pytest.mark.parametrize("api", SMOOTHED)
def test_labels_are_smoothed_over_the_classes_of_an_axis(api, ddl_strategy):
    """Give the same examples with the classes on the last axis and on another one."""
    truth, predicted = examples("classes", 6)
    found, given = [], {"reduction": "sum"} if api.startswith("losses") else {}
    for axis in (-1, 1):
        with ddl_strategy.scope():
            made = find(api)(label_smoothing=0.25, axis=axis, **given)
            found.append(float(made(np.moveaxis(truth, -1, axis), np.moveaxis(predicted, -1, axis))))
    assert found[1] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("metric.Precision_Recall")
@pytest.mark.parametrize("name", ["Precision", "Recall"])
def test_one_class_takes_weights_of_elements(name, ddl_strategy):
    measure = next(one for one in MEASURES if one.space.name == name)
    truth, predicted = examples("binary", 12, flat=True)
    weights = np.linspace(0.25, 3, truth.size).reshape(truth.shape)
    with ddl_strategy.scope():
        metric = find(f"metrics.{name}")(class_id=1)
        metric.update_state(truth, predicted, sample_weight=weights)
    expected = measure.model(truth, predicted, weights, {"class_id": 1})
    np.testing.assert_allclose(metric.result(), expected, rtol=2e-7)


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("metric.Confusion_counts", shows="behavior")
def test_thresholds_may_be_a_tuple(ddl_strategy):
    with ddl_strategy.scope():
        metric = find("metrics.TruePositives")(thresholds=(0.25, 0.75))
        metric.update_state([1.0, 1.0], [0.5, 0.9])
    np.testing.assert_array_equal(metric.result(), [2, 1])


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("metric.R2")
def test_an_adjusted_score_counts_examples(ddl_strategy):
    """The examples are as many with one output as with four."""
    measure = next(one for one in MEASURES if one.space.name == "R2Score")
    truth, predicted = examples("real", 12, flat=True)
    with ddl_strategy.scope():
        metric = find("metrics.R2Score")(num_regressors=2)
        metric.update_state(truth, predicted)
    case = {"class_aggregation": "uniform_average", "num_regressors": 2}
    np.testing.assert_allclose(metric.result(), measure.model(truth, predicted, None, case), rtol=1e-9)


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("fit.multi_output", "fit.fit.history")
def test_the_loss_of_an_output_counts_the_examples_of_a_last_batch(ddl_strategy):
    one_training(ddl_strategy, {**PLAIN, "outputs": "dict", "rest": "2"})


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("callback.call_counts_and_order_of_all_hooks", shows="behavior")
@pytest.mark.parametrize("run_eagerly", ["False", "True"])
def test_an_execution_with_fewer_steps_ends_at_the_last_batch(run_eagerly, ddl_strategy):
    one_training(ddl_strategy, {**PLAIN, "steps_per_execution": "3", "batches": "5", "run_eagerly": run_eagerly})


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.Dense", shows="behavior")
def test_a_penalty_of_angles_takes_float64(ddl_strategy):
    """Orthogonal rows have no penalty."""
    with ddl_strategy.scope():
        found = find("regularizers.OrthogonalRegularizer")()(np.eye(3))
    assert float(found) == pytest.approx(0, abs=1e-6)


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza")
@pytest.mark.parametrize("name", ["StringLookup", "IntegerLookup", "TextVectorization"])
def test_weights_of_words_may_be_sparse(name, ddl_strategy):
    """Each row counts the words of an example, times their weights; the first column is for unknown words."""
    import tensorflow as tf

    words: list[list[Any]] = [[5, 7], [7, 7]] if name == "IntegerLookup" else [["one", "two"], ["two", "two"]]
    given = tf.constant([" ".join(row) for row in words] if name == "TextVectorization" else words)
    with ddl_strategy.scope():
        layer = find(f"layers.{name}")(
            vocabulary=sorted({*words[0]}), idf_weights=[0.5, 2.0], output_mode="tf_idf", sparse=True
        )
        found = tf.sparse.to_dense(layer(given))
    np.testing.assert_allclose(found, [[0, 0.5, 2], [0, 0, 4]])


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("layer.LayerNorm_GroupNorm_RMSNorm", keras=">=3.9")
def test_a_scale_belongs_to_the_axis_that_is_normalized(ddl_strategy):
    """Give the same examples with the features on the last axis and on the one before."""
    x, found = np.linspace(-1, 2, 36).reshape(4, 3, 3), []
    for axis in (-1, 1):
        with ddl_strategy.scope():
            layer = find("layers.RMSNormalization")(axis=axis)
            layer.build(x.shape)
            layer.set_weights([np.array([1.0, 2.0, 4.0])])
        found.append(np.moveaxis(np.asarray(layer(np.moveaxis(x, -1, axis))), axis, -1))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("metric.MeanIoU")
@pytest.mark.parametrize("name", ["IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU"])
def test_classes_of_an_overlap_are_on_an_axis(name, ddl_strategy):
    """Give the same examples with the classes on the last axis and on the one before."""
    truth, predicted = np.eye(3)[[[0, 1, 2, 1]]], np.eye(3)[[[0, 1, 1, 1]]]
    own = {} if "Mean" in name else {"target_class_ids": [0, 1]}
    own |= {"sparse_y_pred": False} | ({} if "Hot" in name else {"sparse_y_true": False})
    found = []
    for axis in (-1, 1):
        with ddl_strategy.scope():
            metric = find(f"metrics.{name}")(num_classes=3, axis=axis, **own)
            metric.update_state(np.moveaxis(truth, -1, axis), np.moveaxis(predicted, -1, axis))
            found.append(float(metric.result()))
    assert found[1] == pytest.approx(found[0], rel=1e-6)


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("loss.reductions")
def test_two_kinds_of_mistakes_have_their_own_weights(ddl_strategy):
    """Alpha weighs what is predicted and is no label, beta what is a label and is not predicted."""
    truth, predicted = np.array([[1.0, 1.0, 1.0, 0.0]]), np.array([[1.0, 0.0, 0.0, 1.0]])
    with ddl_strategy.scope():
        found = find("losses.Tversky")(alpha=0.25, beta=0.75)(truth, predicted)
    assert float(found) == pytest.approx(1 - 1 / (1 + 0.25 * 1 + 0.75 * 2), rel=1e-6)


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("metric.F1_FBeta")
@pytest.mark.parametrize("form", ["one", "of rows, as a column", "of elements"])
@pytest.mark.parametrize("name", ["F1Score", "FBetaScore"])
def test_a_score_takes_weights_of_any_shape(name, form, ddl_strategy):
    truth, predicted = examples("classes", 12, flat=True)
    weights = weights_of(form, truth.shape)
    given = {"beta": 0.5} if name == "FBetaScore" else {}
    with ddl_strategy.scope():
        metric = find(f"metrics.{name}")(**given)
        metric.update_state(truth, predicted, sample_weight=weights)
    each, chosen = broadcast(weights, truth), np.eye(truth.shape[1])[predicted.argmax(axis=1)]
    right = (each * truth * chosen).sum(axis=0)
    wrong, missed = ((each * one).sum(axis=0) for one in ((1 - truth) * chosen, truth * (1 - chosen)))
    square = given.get("beta", 1.0) ** 2
    expected = (1 + square) * right / ((1 + square) * right + square * missed + wrong)
    np.testing.assert_allclose(metric.result(), expected, rtol=1e-6)


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("fit.fit.class_sample_weight")
@pytest.mark.parametrize("given", [{}, {0: 2.0}, {1: 3.0}], ids=["none", "first", "middle"])
def test_a_class_without_a_weight_has_the_weight_one(given, ddl_strategy):
    """Train on a dataset. On a GPU the gather of a class after the last weight returns 0, and no error."""
    import tensorflow as tf

    from suites.subject import keras

    truth, inputs = np.array([0, 1, 2, 2]), np.linspace(-1, 1, 8).reshape(4, 2)
    with ddl_strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    found = model.fit(
        tf.data.Dataset.from_tensor_slices((inputs, truth)).batch(4), shuffle=False, class_weight=given, verbose=0
    )
    # The three logits are equal, so that each example has the loss log(3).
    expected = np.log(3) * np.mean([given.get(one, 1.0) for one in truth.tolist()])
    assert found.history["loss"][0] == pytest.approx(expected, rel=1e-6)
