"""Crop, pad, enlarge, repeat and reshape inputs with every option and order of axes, and compare with NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.backends.differences import fits
from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("layer.Conv", shows="values"),
]

ROWS, LENGTHS, CHANNELS = 2, (6, 5, 7), 3
NUMBERS = (1, 2, 3)
FORMAT = "data_format"
ORDERS = ("channels_last", "channels_first")


def numbers(*shape: int) -> Any:
    """Return numbers of which no two are the same."""
    return np.arange(np.prod(shape)).reshape(shape)


def check(make: Callable[[], Any], x: Any, expected: Any, bound: float = 0.0) -> None:
    """Compare what a layer returns, and its shape, with NumPy; the shape with symbols too, whatever sizes they know."""
    from suites.subject import keras

    for kind in ("float32", "int32"):
        if kind == "int32" and bound:
            continue
        layer = make()
        found = layer(x.astype(kind))
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound, err_msg=kind)
        shape = tuple(found.shape)
        assert shape == np.shape(expected)
        assert tuple(make().compute_output_shape(x.shape)) == shape, "compute_output_shape"
        if subject.name() != subject.KERAS_3:
            continue
        assert found.dtype.name == kind, f"{kind} becomes {found.dtype.name}"
        for known in (x.shape, (None, *x.shape[1:]), (*[None] * (x.ndim - 1), x.shape[-1])):
            stated = tuple(make()(keras.KerasTensor(known, dtype=kind)).shape)
            assert fits(stated, shape), (known, stated)


def orders(kind: Any) -> Iterator[dict[str, str]]:
    """Yield the orders of axes that a layer takes."""
    takes = FORMAT in inspect.signature(kind.__init__).parameters
    yield from ({FORMAT: order} for order in ORDERS) if takes else [{}]


def check_orders(kind: Any, given: Mapping[str, Any], x: Any, expected: Any, bound: float = 0.0) -> None:
    for order in orders(kind):
        first = order.get(FORMAT) == "channels_first"
        one, other = ((np.moveaxis(values, -1, 1) if first else values) for values in (x, expected))
        check(lambda order=order: kind(**given, **order), one, other, bound)


def amounts(number: int) -> Iterator[tuple[Any, list[tuple[int, int]]]]:
    """Yield what a layer takes for the start and end of each axis, and the pairs that it means."""
    pairs = [(1, 2), (0, 1), (2, 0)][:number]
    yield 1, [(1, 1)] * number
    if number == 1:
        yield (2, 1), [(2, 1)]
        yield (0, 2), [(0, 2)]
    else:
        yield (1, 0, 2)[:number], [(one, one) for one in (1, 0, 2)[:number]]
        yield tuple(pairs), pairs
    yield 0 if number == 1 else (0,) * number, [(0, 0)] * number


@pytest.mark.parametrize("number", NUMBERS)
def test_ends_are_cut_off(number, ddl_strategy):
    from suites.subject import keras

    wrong, x = Wrong(), numbers(ROWS, *LENGTHS[:number], CHANNELS)
    for given, pairs in amounts(number):
        with wrong.of(given):
            inner = tuple(slice(one, length - other) for (one, other), length in zip(pairs, LENGTHS, strict=False))
            check_orders(getattr(keras.layers, f"Cropping{number}D"), {"cropping": given}, x, x[(slice(None), *inner)])
    wrong.check()


@pytest.mark.parametrize("number", NUMBERS)
def test_zeros_are_put_at_the_ends(number, ddl_strategy):
    from suites.subject import keras

    wrong, x = Wrong(), numbers(ROWS, *LENGTHS[:number], CHANNELS)
    for given, pairs in amounts(number):
        with wrong.of(given):
            expected = np.pad(x, [(0, 0), *pairs, (0, 0)])
            check_orders(getattr(keras.layers, f"ZeroPadding{number}D"), {"padding": given}, x, expected)
    wrong.check()


@pytest.mark.parametrize("number", NUMBERS)
def test_values_are_repeated_along_axes(number, ddl_strategy):
    from suites.subject import keras

    wrong, x = Wrong(), numbers(ROWS, *LENGTHS[:number], CHANNELS)
    for given in (1, 2, 3, *([(2, 1, 3)[:number]] if number > 1 else [])):
        with wrong.of(given):
            expected = x
            for axis, many in enumerate([given] * number if isinstance(given, int) else given, 1):
                expected = np.repeat(expected, many, axis=axis)
            check_orders(getattr(keras.layers, f"UpSampling{number}D"), {"size": given}, x, expected)
    wrong.check()


def between(length: int, factor: int) -> Any:
    """Return the matrix that makes an axis longer: a mean of the two nearest values, by their distance."""
    at = np.clip((np.arange(length * factor) + 0.5) / factor - 0.5, 0, length - 1)
    return np.maximum(0, 1 - abs(at[:, None] - np.arange(length)))


def test_images_are_enlarged_between_values(ddl_strategy):
    from suites.subject import keras

    wrong, x = Wrong(), numbers(ROWS, *LENGTHS[:2], CHANNELS) % 17
    for size in ((1, 1), (2, 3), (4, 1)):
        with wrong.of(size):
            rows, columns = (between(*one) for one in zip(LENGTHS, size, strict=False))
            expected = np.einsum("nhwc,ih,jw->nijc", x, rows, columns)
            given = {"size": size, "interpolation": "bilinear"}
            check_orders(keras.layers.UpSampling2D, given, x, expected, bound=1e-4)
    wrong.check()


SHAPES = ((4,), (4, 6), (2, 3, 4), (2, 1, 3, 4))
"""Shapes of one example."""


def test_examples_become_vectors(ddl_strategy):
    from suites.subject import keras

    wrong = Wrong()
    for shape, order in product(((), *SHAPES), (None, *ORDERS)):
        with wrong.of(shape, order):
            x = numbers(ROWS, *shape)
            last = np.moveaxis(x, 1, -1) if order == "channels_first" and shape else x
            expected = last.reshape(ROWS, -1)
            check(lambda order=order: keras.layers.Flatten(data_format=order), x, expected)
    wrong.check()


def test_examples_take_another_shape(ddl_strategy):
    from suites.subject import keras

    wrong, targets = (
        Wrong(),
        ((24,), (-1,), (6, 4), (-1, 4), (6, -1), (2, -1, 3), (2, 3, 2, -1), (1, 24, 1), (-1, 1, 8)),
    )
    for shape, target in product(((24,), (4, 6), (2, 3, 4)), targets):
        with wrong.of(shape, target):
            x = numbers(ROWS, *shape)
            check(lambda target=target: keras.layers.Reshape(target), x, x.reshape(ROWS, *target))
    wrong.check()


def test_axes_are_permuted(ddl_strategy):
    from suites.subject import keras

    wrong = Wrong()
    for shape in SHAPES:
        for dims in permutations(range(1, len(shape) + 1)):
            with wrong.of(shape, dims):
                x = numbers(ROWS, *shape)
                check(lambda dims=dims: keras.layers.Permute(dims), x, x.transpose(0, *dims))
    wrong.check()


def test_a_vector_is_repeated(ddl_strategy):
    from suites.subject import keras

    for many in (1, 3):
        x = numbers(ROWS, 4)
        check(lambda many=many: keras.layers.RepeatVector(many), x, np.repeat(x[:, None], many, axis=1))
