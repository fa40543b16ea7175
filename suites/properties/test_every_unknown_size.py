"""Call every layer, loss and metric in a function that knows no size, and compare with a call that knows them all."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.parameters.spaces import Wrong
from suites.properties.test_metric_parameters import data_of
from suites.tables.every_layer import LAYERS, NONE, SERIES, UNITS, Layer
from suites.tables.loss_values import LOSSES, examples, labels_of
from suites.tables.metric_values import MEASURES, Measure

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"]),
    pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning"),
    pytest.mark.filterwarnings("ignore:You are casting:UserWarning"),
]

ROWS = 4
MORE = (*(Layer(kind, {**UNITS, "stateful": True}, SERIES) for kind in ("SimpleRNN", "LSTM", "GRU")),)
FEW = 3
"""Number of cases of a metric or loss."""


@pytest.fixture(autouse=True)
def keras_3():
    if subject.name() != subject.KERAS_3:
        pytest.skip("nobody has written the entries of tf_keras yet")


def few(cases: list[Any]) -> list[Any]:
    """Return the first, a middle and a last case."""
    return cases[:: max(1, len(cases) // FEW)]


def unknown(value: Any) -> Any:
    """Return the specification of a tensor of the same rank with unknown sizes, but for the last one."""
    import tensorflow as tf

    value = tf.convert_to_tensor(value)
    sizes: list[Any] = [None] * value.shape.rank
    return tf.TensorSpec([*sizes[:-1], value.shape[-1]] if len(sizes) > 1 else sizes, value.dtype)


def of_function(call: Any, given: list[Any], specifications: list[Any]) -> Any:
    import tensorflow as tf

    return tf.function(call, specifications)(*map(tf.convert_to_tensor, given))


def check_layer(layer: Layer, shape: tuple[int | None, ...]) -> None:
    """Compare a call that knows all sizes with one that knows this shape; weights and states are the same before."""
    import tensorflow as tf

    from suites.subject import keras

    x = np.random.default_rng(3).integers(-15, 16, (ROWS, *layer.shape)).astype("float32") / 8 * layer.scale
    made, results = layer.make(keras, "float32"), []
    layer.call(made, tf.constant(x))
    before = made.get_weights()
    call = partial(layer.call, made, **({"training": True} if layer.over_batch else {}))
    for one in (call, tf.function(call, [tf.TensorSpec(shape)])):
        made.set_weights(before)
        if layer in MORE:
            made.reset_state()
        results.append(tf.nest.flatten(one(tf.constant(x))))
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.ddl_item("fit.fit.numpy", shows="parity")
@pytest.mark.parametrize("layer", [*LAYERS, *MORE], ids=str)
def test_a_layer_that_does_not_know_the_batch_gives_the_same(layer, ddl_strategy):
    check_layer(layer, (None, *layer.shape))


SERIES_OF_ANY_LENGTH = [
    layer for layer in LAYERS if layer.mask != NONE and len(layer.shape) == 2 and not layer.options.get("unroll")
]


@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking", shows="parity")
@pytest.mark.parametrize("layer", SERIES_OF_ANY_LENGTH, ids=str)
def test_a_layer_that_does_not_know_the_length_gives_the_same(layer, ddl_strategy):
    check_layer(layer, (None, None, layer.shape[-1]))


@pytest.mark.ddl_item("metric.Mean", "metric.Confusion_counts", "metric.Accuracy_family", shows="parity")
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.space.name)
def test_a_metric_that_knows_no_size_gives_the_same(measure, ddl_strategy):
    wrong = Wrong()
    for case in few(measure.space.cases(weights=measure.forms, labels=labels_of(measure.data))):
        with wrong.of(case):
            check_metric(measure, case)
    wrong.check()


def check_metric(measure: Measure, case: dict[str, Any]) -> None:
    truth, predicted, weights = data_of(measure, case, 6)
    given = [truth.astype(case["labels"]), predicted, *([] if weights is None else [weights])]
    found, expected = (measure.space.make(case) for _ in range(2))
    expected.update_state(*given)

    def update(*given: Any) -> None:
        found.update_state(*given)

    of_function(update, given, [unknown(one) for one in given])
    np.testing.assert_allclose(found.result(), expected.result(), rtol=1e-5, atol=1e-6)


@pytest.mark.ddl_item("loss.reductions", shows="parity")
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.space.name)
def test_a_loss_that_knows_no_size_gives_the_same(loss, ddl_strategy):
    wrong = Wrong()
    for case in few(loss.space.cases()):
        with wrong.of(case):
            logits = case.get("from_logits", False)
            given = [*examples(loss.data, 6, logits=logits, axis=case.get("axis", -1))]
            made = loss.space.make(case)
            found = of_function(made, given, [unknown(one) for one in given])
            np.testing.assert_allclose(found, made(*given), rtol=1e-5, atol=1e-6)
    wrong.check()
