"""Ask every layer for the shape and dtype of its output before it has run, and compare with what it returns."""

from __future__ import annotations

import inspect
from itertools import product
from typing import Any

import pytest

from suites import subject
from suites.backends.differences import fits
from suites.parameters.spaces import Wrong
from suites.tables.every_layer import LAYERS, Layer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")

ROWS = 4
MORE = (
    Layer("Reshape", {"target_shape": (-1, 2)}),
    Layer("Reshape", {"target_shape": (2, -1, 5)}),
    Layer("Rescaling", {"scale": [0.5, 1.0, 2.0, 4.0]}),
    Layer("Dot", {"axes": 2}, inputs=2, together=True),
    Layer("EinsumDense", {"equation": "abc,cd->abd", "output_shape": (5, 3)}),
    Layer("EinsumDense", {"equation": "...c,cd->...d", "output_shape": 3}),
    *(
        Layer(f"Conv{number}DTranspose", {"filters": 3, "kernel_size": 3, "strides": 3, **given}, shape)
        for number, shape in ((1, (5, 4)), (2, (6, 6, 4)))
        for given in ({"output_padding": 1}, {"padding": "same"})
    ),
    *(
        Layer(f"Conv{number}D", {"filters": 3, "kernel_size": 2, "dilation_rate": 2}, (6,) * number + (2,))
        for number in (1, 2)
    ),
)
"""Layers with options that change the shape."""
CALLS: tuple[dict[str, Any], ...] = ({}, {"return_attention_scores": True})
"""Options of a call, for the layers that know them."""


def shapes_of(value: Any) -> list[tuple[Any, ...]]:
    """Return the shapes of one or several outputs; a shape may be a list."""
    if all(one is None or isinstance(one, int) for one in value):
        return [tuple(value)]
    return [shape for one in value for shape in shapes_of(one)]


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("precision.mixed_float16", shows="behavior")
@pytest.mark.parametrize("layer", [*LAYERS, *MORE], ids=str)
def test_a_layer_tells_the_shape_of_its_output(layer, ddl_strategy):
    """It is asked by ``compute_output_shape``, and by a call with symbols: with a known and an unknown batch."""
    import tensorflow as tf

    from suites.subject import keras

    if subject.name() != subject.KERAS_3:
        pytest.skip("tf_keras has no symbols that are not of a graph")
    wrong = Wrong()
    for policy, rows, options in product(("float32", "mixed_float16"), (ROWS, None), CALLS):
        made, shape = layer.make(keras, policy), (rows, *layer.shape)
        if not options.keys() <= inspect.signature(made.call).parameters.keys():
            continue
        outputs = tf.nest.flatten(layer.call(made, tf.ones((ROWS, *layer.shape)), **options))
        real = [tuple(one.shape) for one in outputs]
        if not options:
            with wrong.of(policy, rows, "compute_output_shape"):
                given = [[shape] * layer.inputs] if layer.together else [shape] * layer.inputs
                stated = shapes_of(layer.make(keras, policy).compute_output_shape(*given))
                assert all(map(fits, stated, real)), (stated, real)
        with wrong.of(policy, rows, "symbols", options):
            symbols = layer.call(layer.make(keras, policy), keras.KerasTensor(shape, dtype="float32"), **options)
            found = keras.tree.flatten(symbols)
            assert all(fits(one.shape, other) for one, other in zip(found, real, strict=True)), (found, real)
            assert [one.dtype for one in found] == [one.dtype.name for one in outputs]
    wrong.check()
