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
"""Words in the order of their counts: 4, 3, 2 and 1."""
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


def statistics(axis: Any, data: Any) -> tuple[Any, Any]:
    """Return mean and variance by the axes that are kept, so that they broadcast over the data."""
    kept = () if axis is None else np.atleast_1d(axis) % data.ndim
    others = tuple(one for one in range(data.ndim) if one not in kept)
    return data.mean(axis=others, keepdims=True), data.var(axis=others, keepdims=True)


BOUND = {"rtol": 2e-5, "atol": 2e-5}
"""Some dozen roundings of 6e-8, and the difference of two squares that are ten times as large."""
AXES = (-1, 1, None, (1, 2), (2, 1))


def learns(strategy: Any, axis: Any, made: Mapping[str, Callable[[], Any]]) -> None:
    """Let a layer learn from data, once and twice, and compare with arithmetic."""
    from suites.subject import keras

    wrong = Wrong()
    for form, make in made.items():
        mean, variance = statistics(axis, NUMBERS[:6] if "known" in form else NUMBERS)
        for times in (1, 2):
            with wrong.of(form, f"{times} times"), strategy.scope():
                layer = keras.layers.Normalization(axis=axis)
                for _ in range(times):
                    layer.adapt(make())
                np.testing.assert_allclose(layer(NUMBERS), (NUMBERS - mean) / np.sqrt(variance), **BOUND)
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza")
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_statistics_are_those_of_the_whole_data(axis, ddl_strategy):
    """The data have large means and batches of two sizes."""
    learns(ddl_strategy, axis, {form: make for form, make in forms(NUMBERS).items() if "labels" not in form})


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza")
def test_labels_are_not_learned_from(ddl_strategy):
    learns(ddl_strategy, -1, {form: make for form, make in forms(NUMBERS).items() if "labels" in form})


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza")
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_statistics_that_are_given_are_of_the_last_axes_that_are_kept(axis, ddl_strategy):
    """They may be one number for all, or of fewer axes than are kept. The layer may do the opposite, or be saved."""
    from suites.subject import keras

    wrong, kept = Wrong(), () if axis is None else tuple(sorted(np.atleast_1d(axis) % NUMBERS.ndim))
    mean, variance = (one[0] for one in statistics(axis, NUMBERS))  # the first axis is that of the examples
    for number in range(len(kept) + 1):
        shape = tuple(NUMBERS.shape[one] for one in kept[len(kept) - number :])
        given = [one.squeeze()[(0,) * (len(kept) - number)].reshape(shape) for one in (mean, variance)]
        broad = [1 if one not in kept[len(kept) - number :] else NUMBERS.shape[one] for one in range(1, NUMBERS.ndim)]
        its_mean, its_variance = (one.reshape(broad) for one in given)
        for invert in (False, True):
            with wrong.of(f"shape {shape}, invert {invert}"), ddl_strategy.scope():
                options = {"axis": None if axis is None else kept, "mean": given[0], "variance": given[1]}
                layer = keras.layers.Normalization(**options, invert=invert)
                deviation = np.sqrt(its_variance)
                expected = NUMBERS * deviation + its_mean if invert else (NUMBERS - its_mean) / deviation
                for one in (layer, keras.layers.Normalization.from_config(layer.get_config())):
                    np.testing.assert_allclose(one(NUMBERS), expected, **BOUND)
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
    """The vocabulary is in the order of the counts, and a second adapt begins anew. Lookups take no labels."""
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
