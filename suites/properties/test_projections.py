"""Multiply inputs by the weights of layers, or look them up there, and compare with NumPy."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.parameters.spaces import Wrong
from suites.properties.test_every_layer import masks_of

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.ddl(strategies=["one_device"], keras="keras")]

ROWS, BOUND = 2, {"rtol": 1e-12, "atol": 1e-12}
BOTH = (False, True)
EQUATIONS: tuple[tuple[str, tuple[int, ...], Any, tuple[str | None, ...]], ...] = (
    ("ab,bc->ac", (4,), 3, (None, "c")),
    ("ab,bcd->acd", (4,), (3, 5), (None, "c", "d", "cd")),
    ("abc,cd->abd", (6, 4), (None, 3), (None, "d")),
    ("abc,cd->abd", (6, 4), (6, 3), ("d", "b", "bd")),
    ("abc,cde->abde", (6, 4), (None, 3, 5), ("d", "e", "de")),
    ("abcd,cde->abe", (6, 3, 4), (None, 5), (None, "e")),
    ("abc,bd->adc", (6, 4), (3, 4), ("d", "c", "dc")),
    ("...x,xy->...y", (6, 4), 3, (None, "y")),
    ("abc...,bd->adc...", (6, 4, 5), (3, 4), ("d", "c", "dc")),
)
"""Equation, shape of an example, shape of an output without its first axis, and axes with a bias."""


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def drawn(layer: Any, shape: tuple[int, ...]) -> list[Any]:
    """Build a layer, give all its weights other numbers, and return these."""
    layer.build(shape)
    generator = np.random.default_rng(3)
    layer.set_weights([generator.normal(size=weights.shape) for weights in layer.get_weights()])
    return list(layer.get_weights())


def check_shapes(make: Any, x: Any, found: Any, *known: tuple[int | None, ...]) -> None:
    """Compare the shape and type that a new layer computes before a call with the real ones."""
    stated = tuple(make().compute_output_shape(x.shape))
    assert all(one in (None, other) for one, other in zip(stated, found.shape, strict=True)), f"states {stated}"
    if subject.name() == subject.KERAS_3:
        from suites.subject import keras

        for shape in (x.shape, (None, *x.shape[1:]), *known):
            told = make()(keras.KerasTensor(shape, dtype=x.dtype.name))
            assert told.dtype == found.dtype.name
            stated = tuple(told.shape)
            pairs = zip(stated, found.shape, strict=True)
            assert all(one in (None, other) for one, other in pairs), f"{shape}: states {stated}"


@pytest.mark.ddl_item("layer.Dense")
def test_features_are_multiplied_by_a_kernel(ddl_strategy):
    from suites.subject import keras

    wrong = Wrong()
    for inner, bias in product([(4,), (6, 4), (5, 6, 4)], BOTH):
        with wrong.of(inner, f"use_bias={bias}"):
            make = lambda bias=bias: keras.layers.Dense(3, use_bias=bias)  # noqa: E731
            layer, x = make(), draw(ROWS, *inner)
            kernel, *others = drawn(layer, x.shape)
            found = layer(x)
            np.testing.assert_allclose(found, x @ kernel + sum(others), **BOUND)
            check_shapes(make, x, found, (*[None] * len(inner), 4))
    wrong.check()


@pytest.mark.ddl_item("layer.Dense")
def test_an_equation_multiplies_and_adds_a_bias(ddl_strategy):
    from suites.subject import keras

    wrong = Wrong()
    for equation, inner, output, each in EQUATIONS:
        for axes in each:
            with wrong.of(equation, f"bias_axes={axes}"):
                make = partial(keras.layers.EinsumDense, equation, output, bias_axes=axes)
                layer, x = make(), draw(ROWS, *inner)
                kernel, *bias = drawn(layer, x.shape)
                expected = np.einsum(equation, x, kernel)
                if axes:
                    after = equation.partition("->")[2]
                    letters = [*after.replace("...", "." * (expected.ndim - len(after.replace("...", ""))))]
                    full = [size if letter in axes else 1 for letter, size in zip(letters, expected.shape, strict=True)]
                    expected = expected + bias[0].reshape(full)
                found = layer(x)
                np.testing.assert_allclose(found, expected, **BOUND)
                check_shapes(make, x, found)
    wrong.check()


@pytest.mark.ddl_item("layer.Embedding")
@pytest.mark.parametrize("kind", ["int32", "int64", "uint8", "float32"])
@pytest.mark.parametrize("name", ["Embedding", "ReversibleEmbedding"])
def test_numbers_have_rows_of_a_table(name, kind, ddl_strategy):
    """A number 0 has no place in a series if its mask says so."""
    from suites.subject import keras

    if not hasattr(keras.layers, name):
        pytest.skip(f"this version has no {name}")
    wrong = Wrong()
    for inner, hides in product([(), (4,), (3, 4), (2, 3, 4)], BOTH):
        with wrong.of(inner, f"mask_zero={hides}"):
            x = (np.arange(np.prod((ROWS, *inner))).reshape(ROWS, *inner) * 3 % 5).astype(kind)
            make = lambda hides=hides: getattr(keras.layers, name)(5, 3, mask_zero=hides)  # noqa: E731
            layer = make()
            table, *_ = drawn(layer, x.shape)
            found = layer(x)
            np.testing.assert_array_equal(found, table[x.astype(int)])
            following = masks_of(keras)()
            following(found)
            assert (following.got is not None) == hides
            if hides:
                np.testing.assert_array_equal(following.got, x != 0)
            check_shapes(make, x, found)
    wrong.check()


@pytest.mark.ddl_item("layer.Embedding")
@pytest.mark.parametrize("tied", [True, False])
def test_a_table_is_read_backwards(tied, ddl_strategy):
    """Features are multiplied by the rows of the table, or by a kernel of their own, and the results may be capped."""
    from suites.subject import keras

    if not hasattr(keras.layers, "ReversibleEmbedding"):
        pytest.skip("this version has no such layer")
    wrong = Wrong()
    for inner, cap in product([(3,), (4, 3)], (None, 0.5)):
        with wrong.of(inner, f"logit_soft_cap={cap}"):
            layer, x = keras.layers.ReversibleEmbedding(5, 3, tie_weights=tied, logit_soft_cap=cap), draw(ROWS, *inner)
            table, *others = drawn(layer, (ROWS, 4))
            expected = x @ (table.T if tied else others[0])
            expected = expected if cap is None else np.tanh(expected / cap) * cap
            np.testing.assert_allclose(layer(x, reverse=True), expected, **BOUND)
            symbol = layer(keras.KerasTensor((None, *inner), dtype="float64"), reverse=True)
            assert tuple(symbol.shape) == (None, *inner[:-1], 5)
    wrong.check()


TIMES = 3


@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking")
def test_a_layer_is_called_for_each_time(ddl_strategy):
    """Times are independent, also of a batch with other numbers of examples than the one before."""
    from suites.subject import keras

    wrong, layers = Wrong(), keras.layers
    inside = {
        "Dense": (lambda: layers.Dense(3), (4,)),
        "Dense of more axes": (lambda: layers.Dense(3), (5, 4)),
        "Flatten": (layers.Flatten, (5, 4)),
        "Conv2D": (lambda: layers.Conv2D(3, 2), (5, 4, 2)),
        "LayerNormalization": (layers.LayerNormalization, (4,)),
        "GRU": (lambda: layers.GRU(3), (5, 4)),
        "Bidirectional": (lambda: layers.Bidirectional(layers.LSTM(2, return_sequences=True)), (5, 4)),
        "TimeDistributed": (lambda: layers.TimeDistributed(layers.Dense(3)), (5, 4)),
    }
    for name, (make, inner) in inside.items():
        with wrong.of(name):
            one = make()
            layer = layers.TimeDistributed(one)
            drawn(layer, (None, TIMES, *inner))
            for rows in (3, 1):
                x = draw(rows, TIMES, *inner)
                found = layer(x)
                expected = np.stack([np.asarray(one(x[:, time])) for time in range(TIMES)], axis=1)
                np.testing.assert_allclose(found, expected, **BOUND)
            check_shapes(lambda make=make: layers.TimeDistributed(make()), x, found)
    wrong.check()
