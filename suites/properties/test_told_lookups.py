"""Compare the results of layers that look data up with their symbolic results, and with datasets and functions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from suites.backends.answers import plain
from suites.backends.differences import fits
from suites.parameters.spaces import Space, Wrong
from suites.tables.data_layers import LAYERS, cases, example, known, marks, programs, shapes

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("layer.Normalization_StringLookup_TextVectoriza", shows="behavior"),
]
Found = tuple[str, str]


def dense(x: Any) -> Any:
    import tensorflow as tf

    if isinstance(x, tf.SparseTensor):
        return tf.sparse.to_dense(tf.sparse.reorder(x))
    return x.to_tensor(-1) if isinstance(x, tf.RaggedTensor) else x


def of_models(space: Space, case: Mapping[str, Any], given: Any, real: Any) -> Iterator[Found]:
    """Yield the differences of symbolic results, for a batch of a known and of an unknown size."""
    import keras
    import tensorflow as tf

    for known_size in (True, False):

        def symbol(x: Any, known_size: bool = known_size) -> Any:
            kind = "string" if x.dtype == object else x.dtype.name
            return keras.KerasTensor(x.shape if known_size else (None, *x.shape[1:]), dtype=kind)

        try:
            told = space.make(dict(case))(tf.nest.map_structure(symbol, given))
        except Exception as error:
            yield "a model is refused", f"{type(error).__name__}: {str(error)[:200]}"
            continue
        if not fits(told.shape, real.shape):
            yield "a model is told the shape", f"{told.shape} of {tuple(real.shape)}"
        if keras.backend.standardize_dtype(told.dtype) != keras.backend.standardize_dtype(real.dtype):
            yield "a model is told the type", f"{told.dtype} of {real.dtype.name}"


def of_shapes(space: Space, case: Mapping[str, Any], given: Any, real: Any) -> Iterator[Found]:
    """Yield the differences of compute_output_shape, for shapes that are tuples or lists."""
    for form in (tuple, list):
        what = f"the shape of a {form.__name__}"
        shape = [form(one.shape) for one in given] if isinstance(given, tuple) else form(given.shape)
        try:
            told = space.make(dict(case)).compute_output_shape(shape)
        except Exception as error:
            yield what, f"{type(error).__name__}: {str(error)[:200]}"
            continue
        if not fits(tuple(told), real.shape):
            yield what, f"{told} of {tuple(real.shape)}"


def in_graphs(space: Space, case: Mapping[str, Any], given: Any, real: Any) -> Iterator[Found]:
    """Yield the differences of the results in a dataset, and in a function with a batch of unknown size."""
    import tensorflow as tf

    tensors, layer = tf.nest.map_structure(tf.constant, given), space.make(dict(case))
    call = (lambda *parts: layer(parts)) if isinstance(given, tuple) else layer
    unknown = tf.nest.map_structure(lambda x: tf.TensorSpec((None, *x.shape[1:]), x.dtype), tensors)
    ways = {
        "a dataset": lambda: next(iter(tf.data.Dataset.from_tensors(tensors).map(call))),
        "a function": lambda: tf.function(lambda x: dense(layer(x)), [unknown])(tensors),
    }
    for what, way in ways.items():
        try:
            np.testing.assert_array_equal(plain(dense(way())), plain(real))
        except AssertionError as error:
            yield f"{what} gives", str(error)[:200]
        except Exception as error:
            yield f"{what} is refused", f"{type(error).__name__}: {str(error)[:200]}"


QUESTIONS = {"models": of_models, "shapes": of_shapes, "graphs": in_graphs}


def differences(question: str, space: Space) -> Iterator[tuple[Any, frozenset[str], Found]]:
    """Yield each difference: the call, its marks, and the kind of difference with its description."""
    import tensorflow as tf

    for case in cases(space):
        for shape in shapes(space):
            given = example(space, case, shape)
            real = dense(space.make(dict(case))(tf.nest.map_structure(tf.constant, given)))
            for found in QUESTIONS[question](space, case, given, real):
                yield (case, shape), marks(case, shape), found


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("space", LAYERS, ids=lambda space: space.name)
def test_what_is_told_is_what_is_given(space, question, ddl_strategy):
    """The test below has the known defects of the table."""
    wrong, rows = Wrong(), known()
    for call, properties, (what, how) in differences(question, space):
        if not any(row.explains(space.name, what, properties) for row in rows):
            with wrong.of(*call):
                raise AssertionError(f"{what}: {how}")
    wrong.check()


@pytest.mark.parametrize("program", programs())
def test_a_known_difference(program, ddl_strategy):
    """A row has an entry as long as it is there."""
    wrong, rows = Wrong(), [row for row in known() if row.program == program]
    if not rows:
        pytest.skip("no row holds for this version")
    for space in (space for space in LAYERS if any(space.name in row.operations for row in rows)):
        every = (one for question in QUESTIONS for one in differences(question, space))
        explained = (one for one in every if any(row.explains(space.name, one[2][0], one[1]) for row in rows))
        for call, _marks, (what, how) in itertools.islice(explained, 1):
            with wrong.of(space.name, *call):
                raise AssertionError(f"{what}: {how}")
    wrong.check()
