"""Merge inputs of all shapes that broadcast, and their masks, and compare with NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.parameters.spaces import Wrong
from suites.properties.test_every_layer import masks_of
from suites.subject import with_mask

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("layer.Dense"),
]

ROWS = 2
BOUND = {"rtol": 1e-12, "atol": 1e-12}
INNER = [shape for rank in range(1, 4) for shape in product((1, 3), repeat=rank)]
"""Shapes of one example. Two axes of one length show whether values go to the right one."""
MERGED: Mapping[str, Callable[..., Any]] = {
    "Add": lambda *each: sum(each),
    "Average": lambda *each: sum(each) / len(each),
    "Multiply": lambda one, *others: one * (others[0] if len(others) == 1 else others[0] * others[1]),
    "Subtract": lambda one, other: one - other,
    "Maximum": lambda *each: np.maximum.reduce(np.broadcast_arrays(*each)),
    "Minimum": lambda *each: np.minimum.reduce(np.broadcast_arrays(*each)),
}
FURTHER = ("Concatenate", "Dot")


def draw(place: int, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(10 * len(shape) + place).normal(size=shape)


def symbols(layer: Any, given: list[Any], rows: int | None = None) -> Any:
    """Return what a layer of Keras 3 says of inputs, of which the number of examples may not be known."""
    from suites.subject import keras

    return layer([keras.KerasTensor((rows, *one.shape[1:]), dtype="float64") for one in given])


def check_shape(make: Callable[[], Any], given: list[Any], real: tuple[int, ...]) -> None:
    shapes = [tuple(one.shape) for one in given]
    assert tuple(make().compute_output_shape(shapes)) == real
    if subject.name() == subject.KERAS_3:
        for rows in (ROWS, None):
            assert tuple(symbols(make(), given, rows).shape) == (rows, *real[1:])


def test_each_layer_that_merges_is_tested(ddl_strategy):
    from suites.subject import keras

    base = keras.layers.Add.__mro__[1]
    kinds = {one.__name__ for one in vars(keras.layers).values() if inspect.isclass(one) and issubclass(one, base)}
    assert kinds == {*MERGED, *FURTHER}


@pytest.mark.parametrize("name", MERGED)
def test_inputs_are_merged_where_they_broadcast(name, ddl_strategy):
    """An input with fewer axes gets further ones after that of the examples."""
    from suites.subject import keras

    wrong, make = Wrong(), getattr(keras.layers, name)
    lists = [[*pair] for pair in product(INNER, INNER)]
    if name != "Subtract":
        lists += [[(3, 1), (1, 3), (1, 1)], [(3,), (1, 3), (3, 1, 1)]]
    for inner in lists:
        with wrong.of(*inner):
            given = [draw(place, (ROWS, *shape)) for place, shape in enumerate(inner)]
            rank = max(one.ndim for one in given)
            full = [one.reshape(ROWS, *[1] * (rank - one.ndim), *one.shape[1:]) for one in given]
            expected = MERGED[name](*full)
            np.testing.assert_allclose(make()(given), expected, **BOUND)
            check_shape(make, given, expected.shape)
    wrong.check()


def test_inputs_are_joined_along_each_axis(ddl_strategy):
    from suites.subject import keras

    wrong = Wrong()
    for rank in (2, 3, 4):
        for axis in (*range(1, rank), *range(1 - rank, 0)):
            with wrong.of(f"rank {rank}", f"axis={axis}"):
                shapes = [[ROWS, 3, 4, 5][:rank] for _ in range(3)]
                for number, shape in enumerate(shapes):
                    shape[axis] = number + 1
                given = [draw(place, tuple(shape)) for place, shape in enumerate(shapes)]
                expected = np.concatenate(given, axis=axis)
                np.testing.assert_array_equal(keras.layers.Concatenate(axis)(given), expected)
                check_shape(lambda axis=axis: keras.layers.Concatenate(axis), given, expected.shape)
    wrong.check()


@pytest.mark.parametrize("normalize", [False, True])
def test_products_are_added_along_axes(normalize, ddl_strategy):
    from suites.subject import keras

    wrong = Wrong()
    for first, second in product([(4,), (3, 4), (5, 3, 4)], [(4,), (4, 2), (2, 6, 4)]):
        one, other = draw(1, (ROWS, *first)), draw(2, (ROWS, *second))
        for axes in product(range(1, one.ndim), range(1, other.ndim)):
            if one.shape[axes[0]] != other.shape[axes[1]]:
                continue
            for given in (axes, (axes[0] - one.ndim, axes[1] - other.ndim)):
                with wrong.of(first, second, f"axes={given}"):
                    make = lambda given=given: keras.layers.Dot(given, normalize=normalize)  # noqa: E731
                    sides = [np.moveaxis(x, axis, -1) for x, axis in zip((one, other), axes, strict=True)]
                    if normalize:
                        sides = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in sides]
                    rows = [np.tensordot(x, y, (-1, -1)) for x, y in zip(*sides, strict=True)]
                    expected = np.stack(rows)
                    expected = expected[:, None] if expected.ndim == 1 else expected
                    np.testing.assert_allclose(make()([one, other]), expected, **BOUND)
                    check_shape(make, [one, other], expected.shape)
    wrong.check()


@pytest.mark.ddl_item("layer.TimeDistributed_Bidirectional_Masking")
@pytest.mark.parametrize("inner", [(4,), (4, 5)], ids=["series", "images"])
def test_what_is_joined_counts_where_its_parts_count(inner, ddl_strategy):
    """An input without a mask counts everywhere. Joined features count if any of them does."""
    import tensorflow as tf

    from suites.subject import keras

    wrong, mask = Wrong(), np.array([[True, True, False], [True, False, False]])
    for masks, axis in product([(mask, ~mask), (mask, None)], (1, 2, -1)):
        with wrong.of(f"axis={axis}", "one mask" if masks[1] is None else "two masks"):
            given = [draw(place, (*mask.shape, *inner)) for place in range(2)]
            tensors = [
                tf.constant(x) if one is None else with_mask(tf.constant(x), tf.constant(one))
                for x, one in zip(given, masks, strict=True)
            ]
            each = [
                np.ones(x.shape, bool) if one is None else one.reshape(*one.shape, *[1] * len(inner)) & (x == x)
                for x, one in zip(given, masks, strict=True)
            ]
            expected = np.concatenate(each, axis=axis).any(axis=-1)
            following = masks_of(keras)()
            following(keras.layers.Concatenate(axis)(tensors))
            found = np.asarray(following.got)
            found = found.reshape(*found.shape, *[1] * (expected.ndim - found.ndim))
            np.testing.assert_array_equal(np.broadcast_to(found, expected.shape), expected)
    wrong.check()
