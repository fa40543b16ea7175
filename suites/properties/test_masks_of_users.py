"""Let layers of users keep, drop, set and ask for masks, and compare what the next layer gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from suites.pairwise import pairwise
from suites.parameters.spaces import Wrong
from suites.subject import with_mask

pytestmark = pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")

ROWS, TIMES = 2, 3
MASK, OTHER = np.array([[True, True, False], [True, False, False]]), np.array([[True] * 3, [False, True, True]])


def kinds(keras: Any) -> Mapping[str, tuple[Callable[[], Any], Any, Any]]:
    """Return the layers of users, the mask that each must get, and the one that the next layer must get."""

    class Layer(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, keeps: bool = True) -> None:
            super().__init__()
            self.supports_masking = keeps

    class Asks(Layer):
        def call(self, values: Any, mask: Any = None) -> Any:
            return shown(keras, values, mask)

    class Plain(Layer):
        def call(self, values: Any) -> Any:
            return values + 0

    class Unsets(Layer):
        def call(self, values: Any, mask: Any = None) -> Any:
            values._keras_mask = None
            return shown(keras, values, mask)

    class Computes(Asks):
        def compute_mask(self, _inputs: Any, previous_mask: Any = None) -> Any:
            return None if previous_mask is None else ~previous_mask

    class Ends(Asks):
        def compute_mask(self, _inputs: Any, _previous_mask: Any = None) -> Any:
            return None

    return {
        "asks": (Asks, MASK, MASK),
        "asks and drops": (lambda: Asks(keeps=False), MASK, None),
        "plain": (Plain, None, MASK),
        "plain and drops": (lambda: Plain(keeps=False), None, None),
        "unsets": (Unsets, MASK, MASK),
        "computes": (Computes, MASK, ~MASK),
        "ends": (Ends, MASK, None),
    }


def shown(keras: Any, values: Any, mask: Any) -> Any:
    """Return values that show the mask: 0 for no mask, 1 for false and 2 for true."""
    import tensorflow as tf

    return values * 0 if mask is None else values * 0 + tf.cast(mask, values.dtype)[..., None] + 1


def read(values: Any) -> Any:
    """Return the mask that ``shown`` has put into values."""
    found = np.asarray(values)[..., 0]
    return None if (found == 0).all() else found == 2


KINDS = ("asks", "asks and drops", "plain", "plain and drops", "unsets", "computes", "ends")
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "how": ("eager", "function"),
    "given": ("of the tensor", "as an argument", "both", "not"),
}
"""Ways to call the layer, and sources of its mask. An argument goes before the tensor."""


def calling(layer: Any, last: Any, own: Any, *, masked: bool) -> Callable[[Any], Any]:
    """Return a function that calls both layers. A tensor that has a mask keeps it, so each call has its own."""
    import tensorflow as tf

    def call(values: Any) -> Any:
        inputs = with_mask(tf.identity(values), tf.constant(MASK)) if masked else tf.identity(values)
        found = layer(inputs, **({} if own is None else {"mask": tf.constant(own)}))
        return found, last(found)

    return call


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking")
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_of_a_user_gets_and_gives_masks_as_it_says(kind, ddl_strategy):
    import tensorflow as tf

    from suites.subject import keras

    wrong, (make, gets, gives) = Wrong(), kinds(keras)[kind]
    takes = kind not in ("plain", "plain and drops")
    for case in pairwise(DIMENSIONS, lambda case: takes or case.get("given") in ("of the tensor", "not", None)):
        with wrong.of(case):
            layer, last = make(), kinds(keras)["asks"][0]()
            own = OTHER if case["given"] in ("as an argument", "both") else None

            call = calling(layer, last, own, masked=case["given"] in ("of the tensor", "both"))
            found = (tf.function(call, autograph=False) if case["how"] == "function" else call)(
                tf.ones((ROWS, TIMES, 1))
            )
            expected = [None if case["given"] == "not" else _turned(one, own) for one in (gets, gives)]
            for one, mask in [*zip(found, expected, strict=True)][0 if takes else 1 :]:
                np.testing.assert_array_equal(read(one), mask)
    wrong.check()


def _turned(mask: Any, own: Any) -> Any:
    """Return the mask that counts: an argument counts in place of that of the tensor."""
    if mask is None or own is None:
        return mask
    return own if mask is MASK else ~own


@pytest.mark.ddl(strategies=["one_device"], keras="keras")
@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking", shows="behavior")
@pytest.mark.parametrize("how", ["eager", "symbols"])
def test_a_layer_of_a_user_is_built_for_all_its_inputs(how, ddl_strategy):
    """Only an argument with the name of the mask has no shape: all others are inputs, whatever their names."""
    import tensorflow as tf

    from suites.subject import keras

    class Layer(keras.layers.Layer):  # type: ignore[misc]
        def build(self, values_shape: Any, own_mask_shape: Any, masked_shape: Any) -> None:
            self.shapes = [tuple(one) for one in (values_shape, own_mask_shape, masked_shape)]

        def call(self, values: Any, own_mask: Any, masked: Any, mask: Any = None) -> Any:
            return values * own_mask[..., None] + masked

    layer, shapes = Layer(), [(ROWS, TIMES, 1), (ROWS, TIMES), (ROWS, 1, 1)]
    make = tf.ones if how == "eager" else keras.KerasTensor
    values, own_mask, masked = (make(shape) for shape in shapes)
    layer(values, own_mask=own_mask, masked=masked, **({"mask": tf.constant(MASK)} if how == "eager" else {}))
    assert layer.shapes == shapes
