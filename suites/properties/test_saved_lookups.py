"""Give words to layers in every form, and save the layers: the same words have the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suites.backends.differences import fits
from suites.parameters.spaces import Arguments, Space, Wrong, find
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
"""Data from which layers learn their vocabulary. The word that stands for none is not the last one of it."""
SEPARATORS = ("\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028")
"""Characters that Python takes for the end of a line."""


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


@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza", "saving.keras_file")
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


@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza", "saving.keras_file")
@pytest.mark.parametrize("word", ["with separators", "of no letters"])
def test_any_words_are_read_again(word, ddl_strategy, tmp_path):
    """A word may have the end of a line in it, or be the empty one."""
    wrong = Wrong()
    for words in [["a", f"b{one}c", "d"] for one in SEPARATORS] if word == "with separators" else [["a", "b", ""]]:
        with wrong.of(words):
            check_words(words, tmp_path)
    wrong.check()


@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza", "saving.keras_file")
def test_words_of_any_letters_are_read_again(ddl_strategy, tmp_path):
    check_words(["", "a b", "ü", "字", " c", "d ", "#", '"', "\t", "[UNK]!"], tmp_path)


VOCABULARIES = {"StringLookup": ["one", "two", "of"], "IntegerLookup": [5, 2, 9], "TextVectorization": ["one", "two"]}
FORMS = ("tuple", "array", "tensor", "file")


def in_form(form: str, words: list[Any], file: Path) -> Any:
    import tensorflow as tf

    file.write_text("\n".join(map(str, words)), encoding="utf-8")
    return {"tuple": tuple, "array": np.array, "tensor": tf.constant, "file": lambda _words: str(file)}[form](words)


@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza")
@pytest.mark.parametrize("form", FORMS)
def test_a_vocabulary_of_any_form_is_that_of_the_list(form, ddl_strategy, tmp_path):
    """The layer may look numbers up, or count them. Each file has a name of its own, as tables have those names."""
    import tensorflow as tf

    wrong = Wrong()
    for name, words in VOCABULARIES.items():
        for mode in ("int", "multi_hot"):
            with wrong.of(name, mode):
                kind = find(f"layers.{name}")
                layers = [
                    kind(vocabulary=given, output_mode=mode)
                    for given in (words, in_form(form, words, tmp_path / f"{name} {mode}.txt"))
                ]
                x = tf.constant([[*words, words[0]]] if name != "TextVectorization" else ["one two far"])
                expected, found = (layer(x) for layer in layers)
                np.testing.assert_array_equal(found, expected)
                assert [*map(str, layers[1].get_vocabulary())] == [*map(str, layers[0].get_vocabulary())]
    wrong.check()


def forgetting(x: Any) -> Any:
    """Return a tensor without its sizes."""
    import tensorflow as tf

    return tf.compat.v1.placeholder_with_default(x, [None] * x.shape.rank)


@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza", shows="behavior")
@pytest.mark.parametrize("space", LOOKED_UP, ids=lambda space: space.name)
def test_a_dataset_knows_the_shape_of_what_is_looked_up(space, ddl_strategy):
    """A model that is built for a dataset needs the number of columns."""
    import tensorflow as tf

    wrong = Wrong()
    for case in space.cases():
        if case.get("sparse") or case.get("ragged"):
            continue
        with wrong.of(case):
            layer = made(space, case)
            if case.get("invert"):
                x = tf.constant([[0, 1], [1, 2]], "int64")
            else:
                x = tf.constant(WORDS if space is TEXT and case["split"] is None else LOOKED_UP[space])
                x = x if x.dtype == tf.string else tf.cast(x, case.get("vocabulary_dtype") or "float32")
            dataset = tf.data.Dataset.from_tensors(x)
            if space is TEXT:  # others do not know whether to spread a last axis of an unknown size
                dataset = dataset.map(forgetting)
            shape, real = dataset.map(layer).element_spec.shape, layer(x).shape
            assert fits(shape, real), (shape, real)
            if case.get("output_mode", "int") != "int" or case.get("output_sequence_length"):
                assert shape[-1] is not None
    wrong.check()
