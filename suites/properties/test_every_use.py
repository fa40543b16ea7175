"""Use every layer in ways that all layers share: with no examples, in the model of a user, and with a mask by hand."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.parameters.spaces import Wrong
from suites.subject import with_mask
from suites.tables.every_layer import ALONG, LAYERS, NONE, Layer

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"]),
    pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning"),
]

ROWS = 4
MORE = (
    Layer("Embedding", {"input_dim": 7, "output_dim": 3}, (5,)),
    Layer("Embedding", {"input_dim": 7, "output_dim": 3, "mask_zero": True}, (5,)),
    Layer("ReversibleEmbedding", {"input_dim": 7, "output_dim": 3}, (5,)),
    Layer("ReversibleEmbedding", {"input_dim": 7, "output_dim": 3, "mask_zero": True}, (5,)),
)
MASKED = [layer for layer in LAYERS if layer.mask != NONE and layer.inputs == 1 and layer.scale == 1]


@pytest.fixture(autouse=True)
def keras_3():
    if subject.name() != subject.KERAS_3:
        pytest.skip("nobody has written the entries of tf_keras yet")


def numbers(layer: Layer) -> Any:
    return np.random.default_rng(3).integers(0, 7, (ROWS, *layer.shape)).astype("float32")


@pytest.mark.ddl_item("fit.fit.numpy", shows="behavior")
@pytest.mark.parametrize("layer", [*LAYERS, *MORE], ids=str)
def test_a_layer_takes_a_batch_without_examples(layer, ddl_strategy):
    """A replica gets one at the end of its data. It has the shape of the examples of another batch."""
    import tensorflow as tf

    from suites.subject import keras

    made, x = layer.make(keras, "float32"), numbers(layer)
    some = tf.nest.flatten(layer.call(made, tf.constant(x)))
    none = tf.nest.flatten(layer.call(made, tf.constant(x[:0])))
    rows = [0 if len(one.shape) and one.shape[0] == ROWS else one.shape[0] for one in some]
    assert [tuple(one.shape) for one in none] == [(row, *one.shape[1:]) for row, one in zip(rows, some, strict=True)]
    assert [one.dtype for one in none] == [one.dtype for one in some]


@pytest.mark.ddl_item("fit.subclass", shows="behavior")
@pytest.mark.parametrize("layer", [*LAYERS, *MORE], ids=str)
def test_a_summary_shows_a_layer_that_a_user_calls(layer, ddl_strategy):
    """Such a model has no symbols, so the layer is asked for its shape by what it was built with."""
    from suites.subject import keras

    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = layer.make(keras, "float32")

        def call(self, inputs: Any) -> Any:
            return layer.call(self.inner, inputs)

    model, lines = Model(), []
    model(numbers(layer))
    model.summary(print_fn=lambda line, **_: lines.append(line))
    assert f"({type(model.inner).__name__}"[:12] in "".join(lines)


@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking", shows="parity")
@pytest.mark.parametrize("layer", MASKED, ids=str)
def test_a_mask_by_hand_is_the_mask_of_the_input(layer, ddl_strategy):
    """The layer gives the same, and the next layer gets the same mask."""
    import tensorflow as tf

    from suites.subject import keras

    x, wrong = numbers(layer), Wrong()
    made = layer.make(keras, "float32")
    layer.call(made, tf.constant(x))
    if "mask" not in inspect.signature(made.call).parameters:
        pytest.skip("the layer needs no mask itself")
    before, results = made.get_weights(), []
    mask = tf.sequence_mask([1, layer.shape[0], 2, 1], layer.shape[0])
    if len(layer.shape) > 2:
        mask = tf.broadcast_to(mask[..., None], (ROWS, *layer.shape[:-1]))
    for given, options in ((with_mask(tf.constant(x), mask), {}), (tf.constant(x), {"mask": mask})):
        made.set_weights(before)
        output = layer.call(made, given, **options, **({"training": True} if layer.over_batch else {}))
        results.append((output, getattr(output, "_keras_mask", None)))
    (own, own_mask), (handed, handed_mask) = results
    np.testing.assert_allclose(handed, own, rtol=1e-6, atol=1e-6)
    with wrong.of("mask of the output"):
        assert (own_mask is None) == (handed_mask is None)
        if layer.mask == ALONG and own_mask is not None:
            np.testing.assert_array_equal(handed_mask, own_mask)
    wrong.check()
