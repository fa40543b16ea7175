"""Give the helpers of ``keras.tree`` and ``keras.utils`` structures and arrays, and compute the results by hand."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong

pytestmark = [pytest.mark.ddl(strategies=["one_device"], keras="keras")]

Pair = namedtuple("Pair", "one other")
STRUCTURES = (
    *(1, None, (), [], {}, [1], (1, [2, (3,)]), {"b": 1, "a": [2, 3]}, [None, 1], {"a": {}, "b": ()}),
    *(Pair(1, [2, 3]), {"c": Pair(1, {"b": 2, "a": 3})}, [[[1]], [], {"a": (None,)}]),
)


def children(tree: Any) -> list[tuple[Any, Any]] | None:
    """Return the parts of a structure with their keys in order, or ``None`` if it is a leaf."""
    if isinstance(tree, Mapping):
        return [(key, tree[key]) for key in sorted(tree)]
    return [*enumerate(tree)] if isinstance(tree, (list, tuple)) else None


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    parts = children(tree)
    if parts is None:
        yield path, tree
    for key, part in parts or ():
        yield from leaves(part, (*path, key))


def rebuilt(tree: Any, function: Callable[[Any], Any]) -> Any:
    parts = children(tree)
    if parts is None:
        return function(tree)
    new = {key: rebuilt(part, function) for key, part in parts}
    if isinstance(tree, Mapping):
        return type(tree)((key, new[key]) for key in tree)
    return type(tree)(*new.values()) if isinstance(tree, Pair) else type(tree)(new.values())


def counted() -> Callable[[Any], int]:
    numbers = iter(range(9))
    return lambda _leaf: next(numbers)


def alike(found: Any, wanted: Any) -> None:
    """Compare structures with their types, also those inside."""
    assert repr(found) == repr(wanted), f"{found!r} instead of {wanted!r}"


@pytest.mark.ddl_item("fit.subclass", shows="values")
def test_structures_are_treated_as_defined(ddl_strategy):
    from suites.subject import keras

    tree, wrong = keras.tree, Wrong()
    for one in STRUCTURES:
        flat = [leaf for _, leaf in leaves(one)]
        with wrong.of("flatten", one):
            alike(tree.flatten(one), flat)
        with wrong.of("pack_sequence_as", one):
            alike(tree.pack_sequence_as(one, [*range(len(flat))]), rebuilt(one, counted()))
        with wrong.of("map_structure", one):
            alike(tree.map_structure(lambda leaf: (leaf, "new"), one), rebuilt(one, lambda leaf: (leaf, "new")))
            alike(tree.map_structure(lambda *two: str(two), one, one), rebuilt(one, lambda leaf: str((leaf, leaf))))
        with wrong.of("is_nested", one):
            assert tree.is_nested(one) == (children(one) is not None)
        with wrong.of("traverse", one):
            alike(tree.traverse(lambda part: None, one), one)
        for other in STRUCTURES:
            with wrong.of("assert_same_structure", one, other):
                differ = repr(rebuilt(one, lambda leaf: 0)) != repr(rebuilt(other, lambda leaf: 0))
                if differ:
                    with pytest.raises((ValueError, TypeError)):
                        tree.assert_same_structure(one, other)
                elif not differ:
                    tree.assert_same_structure(one, other)
    if hasattr(tree, "flatten_with_path"):
        for one in STRUCTURES:
            with wrong.of("flatten_with_path", one):
                alike(tree.flatten_with_path(one), [*leaves(one)])
    wrong.check()


def padded(rows: Any, maxlen: Any, padding: str, truncating: str, value: float) -> Any:
    length = max(map(len, rows)) if maxlen is None else maxlen
    found = np.full((len(rows), length), value)
    for number, row in enumerate(rows):
        kept = row[max(len(row) - length, 0) :] if truncating == "pre" else row[:length]
        place = slice(length - len(kept), length) if padding == "pre" else slice(0, len(kept))
        found[number, place] = kept
    return found


def windows(x: Any, length: int, stride: int, rate: int, start: int, end: int | None) -> Any:
    x = x[start:end]
    starts = range(0, len(x) - (length - 1) * rate, stride)
    return np.array([x[begin : begin + length * rate : rate] for begin in starts])


@pytest.mark.ddl_item("fit.fit.numpy", shows="values")
def test_arrays_are_prepared_as_defined(ddl_strategy):
    from suites.subject import keras

    utils, wrong, rows = keras.utils, Wrong(), [[1, 2, 3], [4], [], [5, 6, 7, 8]]
    for given in product((None, 2, 6), ("pre", "post"), ("pre", "post"), (0.0, -1.0)):
        maxlen, padding, truncating, value = given
        with wrong.of("pad_sequences", *given):
            found = utils.pad_sequences(rows, maxlen=maxlen, padding=padding, truncating=truncating, value=value)
            assert found.dtype == np.int32
            np.testing.assert_array_equal(found, padded(rows, maxlen, padding, truncating, value))
    for shape, classes, kind in product(((), (4,), (4, 1), (2, 3), (0,)), (None, 5), (np.array, np.ndarray.tolist)):
        labels = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 4)
        if labels.size or classes:
            with wrong.of("to_categorical", shape, classes, kind.__name__):
                kept = shape[:-1] if shape[-1:] == (1,) and len(shape) > 1 else shape
                wanted = np.eye(classes or labels.max() + 1)[labels.reshape(kept)]
                np.testing.assert_array_equal(utils.to_categorical(kind(labels), classes), wanted)
    series = np.arange(12.0)
    for given in product((1, 3), (1, 2), (1, 2), (0, 2), (None, 11)):
        length, stride, rate, start, end = given
        with wrong.of("timeseries_dataset_from_array", *given):
            options = {"sequence_stride": stride, "sampling_rate": rate, "start_index": start, "end_index": end}
            batches = utils.timeseries_dataset_from_array(series, None, length, batch_size=2, **options)
            np.testing.assert_array_equal(np.concatenate([*batches]), windows(series, *given))
    image = np.arange(24.0).reshape(2, 4, 3)
    with wrong.of("array_to_img, img_to_array"):
        np.testing.assert_array_equal(utils.img_to_array(utils.array_to_img(image, scale=False)), image)
        first = utils.img_to_array(utils.array_to_img(image, scale=False), data_format="channels_first")
        np.testing.assert_array_equal(first, image.transpose(2, 0, 1))
    for given in ((1,), (1, 2), (1, 2, 3)):
        with wrong.of("pack_x_y_sample_weight", given):
            assert utils.unpack_x_y_sample_weight(given) == (*given, None, None)[:3]
            packed = utils.pack_x_y_sample_weight(*given)
            assert packed == (given[0] if len(given) == 1 else given)
    wrong.check()


@pytest.mark.ddl_item("fit.fit.numpy", shows="values")
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_an_axis_is_normalized(axis, ddl_strategy):
    from suites.subject import keras

    x, wrong = np.arange(1.0, 17.0).reshape(4, 4), Wrong()
    for order in (1, 2, 3):
        with wrong.of(order):
            norm = (x**order).sum(axis, keepdims=True) ** (1 / order)
            np.testing.assert_allclose(keras.utils.normalize(x, axis, order), x / norm, rtol=1e-6)
    wrong.check()
