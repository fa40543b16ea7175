"""Give layers that look things up all pairs of their parameters: replicas get, or refuse, what no strategy gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from suites.parameters.replicas import on_replicas
from suites.parameters.spaces import Arguments, Space, Wrong, find
from suites.tables.data_layers import INTEGERS, RANGES, STRINGS, TEXT

pytestmark = pytest.mark.usefixtures("float64")

WORDS = [["one", "two", "of"], ["far", "one", ""]]
NUMBERS = [[1, 2, 9], [5, 1, 0]]
TEXTS = ["One two, two!", "two far of one"]
VALUES = [[-1.0, 0.5, 2.0], [0.25, 9.0, 1.0]]
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
