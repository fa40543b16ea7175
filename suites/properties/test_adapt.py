"""Let layers learn from data of any form, and compare what they learned with the whole data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong

BATCH = 3
"""The last batch of the data is smaller."""
NUMBERS = np.random.default_rng(4).normal(2, 3, (8, 4, 2)).astype("float32")
WORDS = np.array([["ant", "bee"], ["ant", "cat"], ["ant", "bee"], ["dog", "ant"], ["bee", "cat"]])
"""In the order of their counts: 4, 3, 2 and 1."""
IDS = np.array([[50, 40], [50, 30], [50, 40], [20, 50], [40, 30]])


def forms(data: Any) -> Mapping[str, Callable[[], Any]]:
    """Return the ways to give the data. Only the first part of an element is learned from."""
    import tensorflow as tf

    def dataset(*given: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices(given if len(given) > 1 else given[0])

    zeros = np.zeros(len(data))
    return {
        "array": lambda: data,
        "tensor": lambda: tf.constant(data),
        "batches": lambda: dataset(data).batch(BATCH),
        "batches of a known size": lambda: dataset(data[:6]).batch(BATCH, drop_remainder=True),
        "with labels": lambda: dataset(data, zeros).batch(BATCH),
        "with labels and weights": lambda: dataset(data, zeros, zeros).batch(BATCH),
    }


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza")
@pytest.mark.parametrize("axis", [-1, 1, None, (1, 2), (2, 1)], ids=str)
def test_statistics_are_those_of_the_whole_data(axis, ddl_strategy):
    """The data have large means and batches of two sizes, and may come with labels."""
    from suites.subject import keras

    wrong = Wrong()
    kept = () if axis is None else np.atleast_1d(axis) % NUMBERS.ndim
    others = tuple(one for one in range(NUMBERS.ndim) if one not in kept)
    for form, make in reversed([*forms(NUMBERS).items()]):  # the last one has the whole data
        seen = NUMBERS[:6] if "known" in form else NUMBERS
        mean, variance = seen.mean(axis=others, keepdims=True), seen.var(axis=others, keepdims=True)
        # Some dozen roundings of 6e-8, and the difference of two squares that are ten times as large.
        expected = (NUMBERS - mean) / np.sqrt(variance)
        for times in (1, 2):
            with wrong.of(form, f"{times} times"), ddl_strategy.scope():
                layer = keras.layers.Normalization(axis=axis)
                for _ in range(times):
                    layer.adapt(make())
                np.testing.assert_allclose(layer(NUMBERS), expected, rtol=2e-5, atol=2e-5)
    with wrong.of("as parameters"), ddl_strategy.scope():
        given = {"mean": mean.squeeze(), "variance": variance.squeeze()}
        layer = keras.layers.Normalization(axis=None if axis is None else tuple(sorted(kept)), **given)
        np.testing.assert_allclose(layer(NUMBERS), expected, rtol=2e-5, atol=2e-5)
    wrong.check()


LOOKUPS: Mapping[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "StringLookup": (
        WORDS,
        lambda keras: keras.layers.StringLookup(),
        lambda layer: (list(layer.get_vocabulary()), ["[UNK]", "ant", "bee", "cat", "dog"]),
    ),
    "IntegerLookup": (
        IDS,
        lambda keras: keras.layers.IntegerLookup(),
        lambda layer: ([int(one) for one in layer.get_vocabulary()], [-1, 50, 40, 30, 20]),
    ),
    "TextVectorization": (
        np.array([" ".join(row) for row in WORDS]),
        lambda keras: keras.layers.TextVectorization(),
        lambda layer: (list(layer.get_vocabulary()), ["", "[UNK]", "ant", "bee", "cat", "dog"]),
    ),
}


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza")
@pytest.mark.parametrize("name", LOOKUPS)
def test_a_vocabulary_is_that_of_the_whole_data(name, ddl_strategy):
    """It is in the order of the counts, and a second adapt begins anew. Lookups take no labels."""
    from suites.subject import keras

    wrong = Wrong()
    data, make_layer, words = LOOKUPS[name]
    for form, make in forms(data).items():
        if "labels" in form or "known" in form:
            continue
        for times in (1, 2):
            with wrong.of(form, f"{times} times"), ddl_strategy.scope():
                layer = make_layer(keras)
                for _ in range(times):
                    layer.adapt(make())
                found, expected = words(layer)
                assert found == expected
    wrong.check()
