"""Give layers that look things up all pairs of their parameters: replicas get, or refuse, what no strategy gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from suites.parameters.replicas import on_replicas
from suites.parameters.spaces import Arguments, Space, Wrong, find

pytestmark = pytest.mark.usefixtures("float64")

WORDS = [["one", "two", "of"], ["far", "one", ""]]
NUMBERS = [[1, 2, 9], [5, 1, 0]]
TEXTS = ["One two, two!", "two far of one"]
VALUES = [[-1.0, 0.5, 2.0], [0.25, 9.0, 1.0]]
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
LOOKED_UP: Mapping[Space, Sequence[Any]] = {STRINGS: WORDS, INTEGERS: NUMBERS, TEXT: TEXTS, RANGES: VALUES}
BOTH = ("one_device", "mirrored")
SPACES = dict.fromkeys(LOOKED_UP, BOTH)
"""Spaces of the properties of this file -> their strategies."""


def called(layer: Any, space: Space, case: Arguments) -> Any:
    """Return what a layer makes of the examples, as one dense tensor."""
    import tensorflow as tf

    if case.get("invert"):
        given = tf.constant([[0, 1], [1, 2]], "int64")
    elif space is RANGES:
        given = tf.constant(VALUES, "float32")
    elif space is INTEGERS:
        given = tf.constant(NUMBERS, case.get("vocabulary_dtype", "int64"))
    else:
        given = tf.constant(LOOKED_UP[space])
    found = layer(given)
    if isinstance(found, tf.SparseTensor):
        found = tf.sparse.to_dense(found)
    if isinstance(found, tf.RaggedTensor):
        found = found.to_tensor(-1)
    # Replicas return no strings.
    return tf.strings.to_hash_bucket_fast(found, 2**31 - 1) if found.dtype == tf.string else found


def made(space: Space, case: Arguments) -> Any:
    layer = space.make(case)
    if space is RANGES and case["bin_boundaries"] is None:
        layer.adapt(np.asarray(VALUES, "float32"))
    return layer


def refused(call: Any) -> Any:
    """Return what a call returns, or the name of the class of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


@pytest.mark.ddl(strategies=list(BOTH))
@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza", shows="parity")
@pytest.mark.parametrize("space", LOOKED_UP, ids=lambda space: space.name)
def test_replicas_look_up_what_no_strategy_looks_up(space, ddl_strategy):
    """Options that do not go together are refused alike."""
    go_together = space.cases()
    cases = [*go_together, *replace(space, allowed=lambda _case: True).cases()]
    wrong, layers, expected = Wrong(), [], []
    for case in cases:
        expected.append(refused(lambda case=case: np.asarray(called(made(space, case), space, case))))
        with ddl_strategy.scope():
            layers.append(refused(lambda case=case: made(space, case)))
    accepted = [number for number, layer in enumerate(layers) if not isinstance(layer, str)]
    calls = [lambda _replica, one=one: called(layers[one], space, cases[one]) for one in accepted]
    for number, results in zip(accepted, on_replicas(ddl_strategy, calls), strict=True):
        with wrong.of(cases[number]):
            found = refused(lambda results=results: dict(results.items()))
            if isinstance(expected[number], str):
                assert found == expected[number]
            else:
                assert not isinstance(found, str), found
                for one in found.values():
                    np.testing.assert_array_equal(one, expected[number])
    for number, layer in enumerate(layers):
        if isinstance(layer, str):
            with wrong.of(cases[number]):
                assert layer == expected[number]
    for case, one in zip(go_together, expected, strict=False):
        with wrong.of(case):
            assert not isinstance(one, str), f"refused: {one}"
    wrong.check()


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza")
@pytest.mark.parametrize("space", LOOKED_UP, ids=lambda space: space.name)
def test_what_is_looked_up_may_be_given_in_any_form(space, ddl_strategy):
    """A list, a tuple, an array and a tensor of the same words or numbers give the same."""
    import tensorflow as tf

    name = "bin_boundaries" if space is RANGES else "vocabulary"
    values = [0.0, 1.0] if space is RANGES else space.values[name][0]
    wrong = Wrong()
    expected = np.asarray(called(find(space.api)(**{name: values}), space, {}))
    for form in (list, tuple, np.array, tf.constant):
        with wrong.of(form.__name__):
            layer = find(space.api)(**{name: form(values)})
            np.testing.assert_array_equal(called(layer, space, {}), expected)
    wrong.check()
