"""Save layers that look things up in a file: the layer that is read gives the same numbers for the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Arguments, Space, Wrong
from suites.properties.test_lookup_parameters import (
    INTEGERS,
    LOOKED_UP,
    NUMBERS,
    RANGES,
    STRINGS,
    TEXT,
    TEXTS,
    WORDS,
    called,
    made,
)

# tf_keras saves vocabularies in its own way, and nobody has written its entries yet.
pytestmark = [pytest.mark.ddl(strategies=["one_device"], keras="keras"), pytest.mark.usefixtures("float64")]

LEARNED = {STRINGS: [*WORDS, [""] * 3], INTEGERS: [*NUMBERS, [0] * 3], TEXT: TEXTS}
"""What layers learn their vocabulary from. The word that stands for none is not the last one of it."""
SEPARATORS = ("\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028")
"""What Python takes for the end of a line."""


def read_again(layer: Any, dtype: str, shape: tuple[int, ...], folder: Path) -> Any:
    """Return the layer of a model that was saved in a file and read."""
    from suites.subject import keras

    keras.Sequential([keras.Input(shape, dtype=dtype), layer]).save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras").layers[-1]


def input_of(space: Space, case: Arguments) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and the shape of an example of ``called``."""
    if case.get("invert"):
        return "int64", (2,)
    if space is RANGES:
        return "float32", (3,)
    if space is INTEGERS:
        return case.get("vocabulary_dtype", "int64"), (3,)
    return "string", () if space is TEXT else (3,)


def learning(space: Space, case: Arguments) -> Any:
    """Return a layer with the parameters of a case and a vocabulary that it has learned, or ``None`` if it cannot."""
    import tensorflow as tf

    if space is RANGES or case.get("encoding") == "utf-16":  # the words of the test are UTF-8
        return None
    layer = made(space, {**case, "vocabulary": None, "idf_weights": None})
    layer.adapt(tf.constant(LEARNED[space]))
    return layer


@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza", "saving.keras_file", keras=">=3.15")
@pytest.mark.parametrize("space", LOOKED_UP, ids=lambda space: space.name)
def test_a_layer_that_is_saved_looks_up_the_same(space, ddl_strategy, tmp_path):
    """It has a vocabulary of the user, or has learned one."""
    wrong = Wrong()
    for case in space.cases():
        for source, make in (("given", made), ("learned", learning)):
            layer = make(space, case)
            if layer is None:
                continue
            with wrong.of(source, case):
                expected = np.asarray(called(layer, space, case))
                again = read_again(layer, *input_of(space, case), tmp_path)
                np.testing.assert_array_equal(called(again, space, case), expected)
    wrong.check()


def check_words(words: list[str], folder: Path) -> None:
    """Let a layer learn words, of which the first is the most frequent one, and read it from a file."""
    import tensorflow as tf

    from suites.subject import keras

    layer = keras.layers.StringLookup()
    layer.adapt(tf.constant([word for count, word in enumerate(reversed(words), start=1) for _ in range(count)]))
    again = read_again(layer, "string", (1,), folder)
    given = tf.constant(words)[:, None]
    np.testing.assert_array_equal(layer(given)[:, 0], np.arange(len(words)) + 1)
    np.testing.assert_array_equal(again(given), layer(given))


@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza", "saving.keras_file", keras=">=3.15")
@pytest.mark.parametrize("word", ["with separators", "of no letters"])
def test_any_words_are_read_again(word, ddl_strategy, tmp_path):
    """A word may have the end of a line in it, or be the empty one."""
    wrong = Wrong()
    for words in [["a", f"b{one}c", "d"] for one in SEPARATORS] if word == "with separators" else [["a", "b", ""]]:
        with wrong.of(words):
            check_words(words, tmp_path)
    wrong.check()


@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza", "saving.keras_file", keras=">=3.15")
def test_words_of_any_letters_are_read_again(ddl_strategy, tmp_path):
    check_words(["", "a b", "ü", "字", " c", "d ", "#", '"', "\t", "[UNK]!"], tmp_path)
