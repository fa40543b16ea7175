"""Call every layer on padded examples, in every precision, and compare with each example by itself in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong
from suites.subject import value_of, with_mask
from suites.tables.every_layer import ALONG, LAYERS, LEFT_OUT, NONE, Layer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")

ROWS = 4
LENGTHS = (5, 2, 3, 4)
"""Times of the examples of a series. What follows is padding, and nothing may depend on it."""
PADDING = 3.0
POLICIES = ("float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""A number differs from the nearest one of the type by at most this part of it."""
ROUNDINGS = 16
"""Bound of an error in roundings of the largest value: five times of a series, each with three operations in a row."""


def exact(draw: Any, shape: Any, scale: float = 1.0) -> Any:
    """Return numbers that all types hold: eighths below 2, times a power of two."""
    return draw.integers(-15, 16, shape) / 8.0 * scale


def built(layer: Layer, policy: str, x: Any) -> tuple[Any, tuple[int, ...]]:
    """Return a layer with the same weights in all precisions, and the shape of its output."""
    import tensorflow as tf

    from suites.subject import keras

    made, draw = layer.make(keras, policy), np.random.default_rng(1)
    output = layer.call(made, tf.zeros(x.shape, "float64" if policy == "float64" else "float32"))
    for variable in made.weights:
        if "float" in str(variable.dtype):
            variable.assign(exact(draw, variable.shape, 0.5))
    return made, tuple(output.shape)


def broadcast(mask: Any, dimensions: int) -> Any:
    """Return a mask that broadcasts over the further axes of a series."""
    return mask.reshape(*mask.shape, *[1] * (dimensions - mask.ndim))


def masks_of(keras: Any) -> Any:
    """Return the class of a layer that keeps the mask that it gets."""

    class Next(keras.layers.Layer):  # type: ignore[misc]
        supports_masking = True

        def call(self, values: Any, mask: Any = None) -> Any:
            self.got = mask
            return values

    return Next


def called(layer: Layer, made: Any, x: Any, mask: Any, slopes: Any) -> tuple[list[Any], Any]:
    """Return the output, its gradients with these slopes, and new states; and the mask that the next layer gets."""
    import tensorflow as tf

    from suites.subject import keras

    inputs, following = tf.constant(x, made.compute_dtype), masks_of(keras)(dtype=made.compute_dtype)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        given = inputs if mask is None else with_mask(inputs, tf.constant(broadcast(mask, x.ndim - 1)))
        outputs = layer.call(made, given, **({"training": True} if layer.over_batch else {}))
        following(outputs)
        total = tf.reduce_sum(tf.cast(outputs, "float64") * slopes)
    gradients = tape.gradient(
        total, [inputs, *(value_of(one) for one in made.trainable_variables)], unconnected_gradients="zero"
    )
    states = made.non_trainable_variables if layer.over_batch else []
    output, to_inputs, *others = (np.asarray(one, "float64") for one in (outputs, *gradients, *states))
    # A weight without influence, such as the bias of the keys, has rounding errors of the size of the others.
    return [output, to_inputs, np.concatenate([np.zeros(1), *(one.ravel() for one in others)])], following.got


def alone(layer: Layer, made: Any, x: Any, mask: Any, slopes: Any) -> list[Any]:
    """Return what a layer makes of each example without its padding, at the places of the padded batch."""
    if mask is None:
        return called(layer, made, x, None, slopes)[0]
    outputs, gradient, others = np.zeros(slopes.shape), np.zeros(x.shape), 0.0
    rows = np.arange(ROWS)[:, None]
    for piece in [mask] if layer.over_batch else [mask & (rows == row) for row in range(ROWS)]:
        where = piece if layer.mask == ALONG else piece.any(axis=1)
        own = slopes[where][None] if layer.mask == ALONG else slopes[where]
        (output, to_inputs, rest), _ = called(layer, made, x[piece][None], None, own)
        outputs[where], gradient[piece] = output if layer.mask != ALONG else output[0], to_inputs[0]
        others = others + rest
    return [outputs, gradient, others]


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("precision.mixed_float16", "precision.mixed_bfloat16")
@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking")
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_layer_gives_what_the_examples_give_alone_in_float64(layer, ddl_strategy):
    """Output, mask, gradients and states agree to a few roundings; layers that normalize also get large inputs.

    No strategy changes how a replica calls a layer, so one device stands for all.
    """
    wrong, mask = Wrong(), None
    x = exact(np.random.default_rng(3), (ROWS, *layer.shape), layer.scale)
    if layer.mask != NONE:
        mask = np.arange(layer.shape[0]) < np.array(LENGTHS)[:, None]
        x[~mask] = PADDING * layer.scale
    reference, shape = built(layer, "float64", x)
    slopes = np.cos(np.arange(np.prod(shape)) + 1.0).reshape(shape)
    if layer.mask == ALONG:
        slopes *= broadcast(mask, slopes.ndim)
    expected = alone(layer, reference, x, mask, slopes)
    # A gradient of 0 has rounding errors of the size of the terms that cancel.
    least = (0.0, max(np.abs(expected[0]).max() / np.abs(x).max(), layer.cancels), 0.0)
    for policy in POLICIES:
        with wrong.of(policy):
            found, next_mask = called(layer, built(layer, policy, x)[0], x, mask, slopes)
            if layer.mask == ALONG:
                np.testing.assert_array_equal(next_mask, broadcast(mask, x.ndim - 1), err_msg="mask for the next layer")
                found[0][~mask] = 0
            for what, one, other, size in zip(("output", "inputs", "weights"), found, expected, least, strict=True):
                bound = ROUNDINGS * ROUNDING[policy.removeprefix("mixed_")] * max(np.abs(other).max(), size)
                np.testing.assert_allclose(one, other, rtol=0, atol=bound, err_msg=what)
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("precision.mixed_float16", "precision.mixed_bfloat16", shows="behavior")
def test_a_mask_stays_where_a_layer_casts_its_inputs(ddl_strategy):
    import tensorflow as tf

    from suites.subject import keras

    wrong, mask = Wrong(), np.array([[True, False]])
    for policy in (*POLICIES, "float64"):
        for dtype in (*ROUNDING, "float64"):
            with wrong.of(policy, dtype):
                following = masks_of(keras)(dtype=policy)
                following(with_mask(tf.ones((1, 2, 1), dtype), tf.constant(mask)))
                np.testing.assert_array_equal(following.got, mask)
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking", shows="parity")
@pytest.mark.parametrize("layer", [one for one in LAYERS if one.mask != NONE and len(one.shape) == 2], ids=str)
def test_a_layer_of_a_model_gets_the_mask_of_any_batch(layer, ddl_strategy):
    """A model is made of symbols, whose number of examples is not known. Its layers give what they give in a call."""
    import tensorflow as tf

    from suites.subject import keras

    mask = np.arange(LENGTHS[0]) < np.array(LENGTHS)[:, None]
    x = exact(np.random.default_rng(3), (ROWS, *layer.shape), layer.scale)
    x[~mask] = PADDING * layer.scale
    made, inputs = layer.make(keras, "float32"), keras.Input(layer.shape)
    masking = keras.layers.Masking(PADDING * layer.scale)
    model = keras.Model(inputs, masks_of(keras)()(layer.call(made, masking(inputs))))
    # Masking writes 0 at each masked step.
    given = with_mask(tf.constant(x * mask[..., None], "float32"), tf.constant(mask))
    expected = layer.call(made, given)
    np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("precision.mixed_float16", shows="behavior")
def test_every_layer_of_keras_is_in_the_table(ddl_strategy):
    from suites.subject import keras

    known = [getattr(keras.layers, name, None) for name in (*LEFT_OUT, *(layer.name for layer in LAYERS))]
    classes = {name: one for name, one in vars(keras.layers).items() if isinstance(one, type)}
    new = {name for name, one in classes.items() if issubclass(one, keras.layers.Layer) and one not in known}
    assert not {name for name in new if not name.startswith("Random")}
