"""Layers that look data up or count it: their options, examples for them, and known differences of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from suites.backends.known import ALWAYS, Difference, holds
from suites.parameters.spaces import Arguments, Space

_MODES = {"output_mode": ("int", "one_hot", "multi_hot", "count", "tf_idf")}
_COUNTED = {"pad_to_max_tokens": (False, True), "max_tokens": (None, 6), "sparse": (False, True), **_MODES}
_SALTED = {"num_oov_indices": (1, 2, 0), "salt": (None, 7)}


def _goes(case: Arguments) -> bool:
    """Return whether options go together; only some of them are given while cases are chosen."""

    def has(name: str) -> bool:
        return name in case

    counts = case.get("output_mode", "count") != "int"
    wrong = (
        # Codes are numbers, of words only: the other way needs both.
        (case.get("invert") and has("output_mode") and counts)
        or (case.get("invert") and case.get("num_oov_indices", 1) != 1)
        or (case.get("invert") and (case.get("sparse") or case.get("pad_to_max_tokens") or case.get("salt")))
        or (case.get("sparse") and not counts)
        or (case.get("pad_to_max_tokens") and (not counts or (has("max_tokens") and case["max_tokens"] is None)))
        or (
            has("idf_weights")
            and has("output_mode")
            and (case["idf_weights"] is None) == (case["output_mode"] == "tf_idf")
        )
        or (case.get("idf_weights") and case.get("invert"))
        or (case.get("idf_weights") and has("vocabulary") and len(case["idf_weights"]) != len(case["vocabulary"]))
        or (case.get("num_oov_indices") == 0)  # the words that nobody knows are then refused
        or (case.get("vocabulary_dtype") == "int32")
        or (case.get("salt") and case.get("oov_method", "farmhash") != "farmhash")
        or (case.get("sparse") and case.get("output_mode") == "tf_idf")  # test_options_that_fail.py has these
        or (case.get("output_sequence_length") and counts)
        or (case.get("output_sequence_length") and case.get("ragged"))
        or (case.get("ragged") and counts)
        or (case.get("split", "") is None and case.get("ngrams"))
        or (
            has("bin_boundaries") and has("num_bins") and (case["bin_boundaries"] is None) == (case["num_bins"] is None)
        )
    )
    return not wrong


STRINGS = Space(
    "layers.StringLookup",
    {
        **_COUNTED,
        **_SALTED,
        "mask_token": (None, ""),
        "oov_token": ("[UNK]", "?"),
        "vocabulary": (["one", "two"], ["two", "of", "one"]),
        "idf_weights": (None, [0.5, 2.0], [1.0, 0.25, 3.0]),
        "invert": (False, True),
        "encoding": ("utf-8", "utf-16"),
    },
    allowed=_goes,
)
INTEGERS = Space(
    "layers.IntegerLookup",
    {
        **_COUNTED,
        **_SALTED,
        "mask_token": (None, 0),
        "oov_token": (-1, -5),
        "vocabulary": ([1, 2], [2, 5, 1]),
        "vocabulary_dtype": ("int64", "int32"),
        "idf_weights": (None, [0.5, 2.0], [1.0, 0.25, 3.0]),
        "invert": (False, True),
        "oov_method": ("floormod", "farmhash"),
    },
    allowed=_goes,
)
TEXT = Space(
    "layers.TextVectorization",
    {
        **_COUNTED,
        "output_mode": ("int", "multi_hot", "count", "tf_idf"),
        "standardize": ("lower_and_strip_punctuation", "lower", None),
        "split": ("whitespace", "character", None),
        "ngrams": (None, 2),
        "output_sequence_length": (None, 3),
        "vocabulary": (["one", "two"], ["two", "of", "one"]),
        "idf_weights": (None, [0.5, 2.0], [1.0, 0.25, 3.0]),
        "ragged": (False, True),
        "encoding": ("utf-8", "utf-16"),
    },
    allowed=_goes,
)
RANGES = Space(
    "layers.Discretization",
    {
        "bin_boundaries": (None, [0.0, 1.0], [0.5]),
        "num_bins": (None, 3),
        "epsilon": (0.01, 0.5),
        "output_mode": ("int", "one_hot", "multi_hot", "count"),
        "sparse": (False, True),
        "dtype": (None, "float32"),
    },
    allowed=_goes,
)


def _dense_if_numbers(case: Arguments) -> bool:
    return not (case.get("sparse") and case.get("output_mode", "count") == "int")


CATEGORIES = Space(
    "layers.CategoryEncoding",
    {"num_tokens": (4, 6), "output_mode": ("multi_hot", "one_hot", "count"), "sparse": (False, True)},
)
HASHES = Space(
    "layers.Hashing",
    {
        "num_bins": (3, 5),
        "mask_value": (None, 0),
        "salt": (None, 7, [1, 2]),
        "output_mode": ("int", "one_hot", "multi_hot", "count"),
        "sparse": (False, True),
    },
    allowed=_dense_if_numbers,
)
CROSSES = Space(
    "layers.HashedCrossing",
    {"num_bins": (3, 5), "output_mode": ("int", "one_hot"), "sparse": (False, True)},
    allowed=_dense_if_numbers,
)
LAYERS = (STRINGS, INTEGERS, TEXT, RANGES, CATEGORIES, HASHES, CROSSES)
SHAPES = ((3,), (1,), (2, 3), (2, 1))
"""Their documentation promises no more than two dimensions."""
OF_TEXTS = ((3,), (2, 1))
"""Each example is one text."""
OF_PAIRS = ((3,), (1,), (2, 1))
"""Each example is one pair of features."""

_COUNTING = ("output_mode=count", "output_mode=multi_hot", "output_mode=tf_idf")
_SHAPES = ("a model is told the shape", "the shape of a tuple", "the shape of a list")
_ONE_HOT = ("output_mode=one_hot",)
_SPARSE = ("sparse=True & output_mode=multi_hot", "sparse=True & output_mode=count")
_ROWS = (
    Difference(
        "a model is told the type",
        ("IntegerLookup", "StringLookup", "TextVectorization"),
        (*_ONE_HOT, "output_mode=count", "output_mode=multi_hot"),
        "codes are integers, and a model is told that they are float32",
        program="codes_told_in_float32",
    ),
    Difference(
        "a model is told the type",
        ("StringLookup",),
        ("invert=True",),
        "StringLookup(invert=True) gives words, and a model is told that they are numbers",
        program="words_told_as_numbers",
    ),
    *(
        Difference(
            what,
            ("TextVectorization",),
            _COUNTING,
            "a model is told that counted words of texts have one axis more",
            keras=">=3.14",
            program="counted_texts_told_wrong",
        )
        for what in _SHAPES
    ),
    *(
        Difference(
            what,
            ("TextVectorization",),
            ("output_mode=int & split=None & rank 1",),
            "a model is told that texts that are not split have an axis of words",
            program="unsplit_texts_told_wrong",
        )
        for what in _SHAPES
    ),
    *(
        Difference(
            what,
            ("Hashing",),
            _ONE_HOT,
            "Hashing appends the axis of one-hot codes, and a model is told that it replaces the last one",
            program="hashes_told_wrong",
        )
        for what in _SHAPES
    ),
    *(
        Difference(
            what,
            ("HashedCrossing",),
            ("output_mode=one_hot & rank 1 & one column",),
            "a model is told that one-hot codes of a batch of one example have no axis of examples",
            program="one_cross_told_wrong",
        )
        for what in _SHAPES
    ),
    Difference(
        "the shape of a list",
        ("HashedCrossing",),
        (ALWAYS,),
        "HashedCrossing.compute_output_shape refuses lists, and a saved model has lists",
        program="crosses_of_lists",
    ),
    Difference(
        "a function is refused",
        ("IntegerLookup", "StringLookup", "Discretization", "CategoryEncoding", "Hashing", "HashedCrossing"),
        ("sparse=True & output_mode=one_hot",),
        "ops.one_hot(sparse=True) takes no tensor of an unknown size",
        program="sparse_one_hot_of_unknown_rows",
    ),
    *(
        Difference(
            what,
            ("CategoryEncoding",),
            _SPARSE,
            "CategoryEncoding(sparse=True) cannot count in a dataset or a function",
            keras=">=3.6",
            program="sparse_counts_in_a_dataset",
        )
        for what in ("a dataset is refused", "a function is refused")
    ),
)


def known() -> list[Difference]:
    """Return the rows that hold for the installed Keras."""
    return [row for row in _ROWS if holds(row.keras)]


def programs() -> list[str]:
    """Return the names of the programs of all rows."""
    return [*dict.fromkeys(row.program for row in _ROWS)]


def cases(space: Space) -> list[Arguments]:
    """Return options that go together, with which the layer needs no data before."""
    return [
        case
        for case in space.cases()
        if not case.get("ragged") and not (space is RANGES and case["bin_boundaries"] is None)
    ]


def shapes(space: Space) -> Sequence[tuple[int, ...]]:
    return {TEXT: OF_TEXTS, CROSSES: OF_PAIRS}.get(space, SHAPES)


def example(space: Space, case: Mapping[str, Any], shape: tuple[int, ...]) -> Any:
    """Return an array of words or numbers of a shape, or a pair of them."""
    words = space in (STRINGS, TEXT) and not case.get("invert")
    if words:
        return np.resize(np.array(["one", "two", "of"], object), shape)
    if space is RANGES:
        return np.resize(np.array([-1.0, 0.5, 2.0], "float32"), shape)
    numbers = np.resize(np.array([1, 2] if case.get("invert") else [1, 2, 3, 0], "int64"), shape)
    return (numbers, numbers) if space is CROSSES else numbers


def marks(case: Mapping[str, Any], shape: tuple[int, ...]) -> frozenset[str]:
    """Return the properties of a call by which a row of known differences names it."""
    found = {f"{name}={value}" for name, value in case.items() if value is None or isinstance(value, (str, bool))}
    return frozenset({*found, f"rank {len(shape)}", *(["one column"] if shape[-1] == 1 else [])})
