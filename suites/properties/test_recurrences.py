"""Run recurrent layers in both directions with every mask, state and form of their output, and compare with NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.parameters.spaces import Wrong
from suites.properties.test_convolutions import convolved
from suites.tables.recurrences import CELLS, Cell, Step, gated, scanned, stacked

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("layer.LSTM_GRU", "layer.TimeDistributed_Bidirectional_Masking"),
]

ROWS, TIMES, FEATURES, UNITS = 3, 4, 2, 3
BOUND = {"rtol": 1e-9, "atol": 1e-10}
"""Some hundred operations in float64."""
MASKS: Mapping[str, Any] = {
    "no mask": None,
    "ends": np.arange(TIMES) < np.array([4, 1, 3])[:, None],
    "holes": np.array([[0, 1, 0, 1], [1, 0, 1, 1], [0, 0, 0, 0]], bool),
}
"""The last one hides the first time of some examples, times in the middle, and all times of an example."""
FORMS = ("layer", "cell", "one cell of a list", "cells")
BOTH = (False, True)


def draw(*shape: int) -> Any:
    return np.random.default_rng(len(shape) + sum(shape)).normal(size=shape)


def weights_of(one: Any) -> list[Any]:
    """Return the weights that something with weights gets; no two of them are the same."""
    generator = np.random.default_rng(3)
    one.set_weights([generator.normal(size=weights.shape) for weights in one.get_weights()])
    return list(one.get_weights())


def made(cell: Cell, form: str, **options: Any) -> tuple[Any, Step, int]:
    """Return a built layer of this form, its step, and its number of states."""
    from suites.subject import keras

    numbers = 2 if form == "cells" else 1
    if form == "layer":
        layer = getattr(keras.layers, cell.name)(UNITS, **cell.options, **options)
    else:
        cells = [getattr(keras.layers, f"{cell.name}Cell")(UNITS, **cell.options) for _ in range(numbers)]
        layer = keras.layers.RNN(cells[0] if form == "cell" else cells, **options)
    layer.build((ROWS, TIMES, FEATURES))
    weights = weights_of(layer)
    parts = np.split(np.arange(len(weights)), numbers)
    steps = [(partial(cell.step, [weights[at] for at in part]), cell.states) for part in parts]
    return layer, stacked(steps), cell.states * numbers


def states(number: int, given: bool) -> list[Any]:
    """Return the first states: those that are given, or zeros."""
    return [draw(ROWS, UNITS + at)[:, :UNITS] if given else np.zeros((ROWS, UNITS)) for at in range(number)]


def nested(flat: Sequence[Any], cell: Cell, form: str) -> Any:
    """Return states as a layer takes them: those of each cell of a list are a list."""
    if form in ("layer", "cell"):
        return list(flat)
    return [list(flat[at : at + cell.states]) for at in range(0, len(flat), cell.states)]


def flat(value: Any) -> list[Any]:
    import tensorflow as tf

    return [np.asarray(one) for one in tf.nest.flatten(value)]


def check(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **BOUND)


def check_shapes(layer: Any, shape: tuple[int, ...], found: Sequence[Any]) -> None:
    """Compare the shapes that a layer of Keras 3 tells with the real ones."""
    if subject.name() != subject.KERAS_3:
        return
    from suites.subject import keras

    for rows in (shape[0], None):
        told = keras.tree.flatten(layer(keras.KerasTensor((rows, *shape[1:]), dtype="float64")))
        stated = [tuple(one.shape) for one in told]
        assert stated == [(rows, *one.shape[1:]) for one in found], f"states {stated}"


def options(form: str) -> Iterator[dict[str, Any]]:
    """Yield options of a layer, but for what has a test of its own. What it returns does not depend on the form."""
    returned = [BOTH, BOTH] if form == "layer" else [[True], [True]]
    names = ("return_sequences", "return_state", "go_backwards", "unroll", "zero_output_for_mask")
    for values in product(*returned, BOTH, BOTH, BOTH):
        if (form != "layer" or values[0] == values[1] or not any(values[2:])) and not all(values[2:]):
            yield dict(zip(names, values, strict=True))


def test_each_recurrent_layer_is_tested(ddl_strategy):
    from suites.subject import keras

    names = {name for cell in CELLS for name in (cell.name, f"{cell.name}Cell")}
    names |= {"RNN", "StackedRNNCells", *(f"ConvLSTM{number}D" for number in (1, 2, 3))}
    known = [getattr(keras.layers, name) for name in names]
    kinds = [(name, one) for name, one in vars(keras.layers).items() if inspect.isclass(one) and one not in known]
    new = {name for name, one in kinds if issubclass(one, keras.layers.RNN) or name.endswith("Cell")}
    # Wrappers of cells that only tf_keras has.
    assert {name for name in new if "Abstract" not in name and "Wrapper" not in name} == set()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_recurrence_is_that_of_its_steps(cell, form, ddl_strategy):
    import tensorflow as tf

    wrong, x = Wrong(), draw(ROWS, TIMES, FEATURES)
    for number, given in enumerate(options(form)):
        with wrong.of("made", given):
            layer, step, many = made(
                cell, form, **given, **({"use_bias": False} if form == "layer" and number % 3 == 2 else {})
            )
            for (name, mask), begins in product(MASKS.items(), BOTH if form != "layer" else [number % 2 == 0]):
                with wrong.of(name, given, "given states" * begins):
                    first = states(many, begins)
                    told = {"initial_state": nested([tf.constant(one) for one in first], cell, form)} if begins else {}
                    found = flat(layer(x, mask=None if mask is None else tf.constant(mask), **told))
                    way = {"backwards": given["go_backwards"], "zeros": given["zero_output_for_mask"]}
                    outputs, last = scanned(step, x, first, mask, **way)
                    output = outputs if given["return_sequences"] else outputs[:, -1]
                    check(found, [output, *(last if given["return_state"] else [])])
            check_shapes(layer, x.shape, found)
    wrong.check()


@pytest.mark.parametrize("unroll", BOTH, ids=["loop", "unrolled"])
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_zeros_are_where_the_mask_hides_times_backwards(cell, unroll, ddl_strategy):
    import tensorflow as tf

    wrong, x = Wrong(), draw(ROWS, TIMES, FEATURES)
    given = {"return_sequences": True, "go_backwards": True, "unroll": unroll, "zero_output_for_mask": True}
    layer, step, many = made(cell, "layer", **given)
    for name, mask in MASKS.items():
        with wrong.of(name):
            found = layer(x, mask=None if mask is None else tf.constant(mask))
            expected, _ = scanned(step, x, states(many, False), mask, backwards=True, zeros=True)
            np.testing.assert_allclose(found, expected, **BOUND)
    wrong.check()


MERGED: Mapping[Any, Any] = {
    "concat": lambda one, other: [np.concatenate([one, other], axis=-1)],
    "sum": lambda one, other: [one + other],
    "mul": lambda one, other: [one * other],
    "ave": lambda one, other: [(one + other) / 2],
    None: lambda one, other: [one, other],
}


def two(cell: Cell, units: int, merge: Any, **options: Any) -> tuple[Any, Step, Step]:
    """Return a built layer of two directions, with the steps of both.

    :param units: units of the layer that goes back. If it has as many as the other one, it is made from that.
    """
    from suites.subject import keras

    kind = getattr(keras.layers, cell.name)
    further = {} if units == UNITS else {"backward_layer": kind(units, go_backwards=True, **cell.options, **options)}
    layer = keras.layers.Bidirectional(kind(UNITS, **cell.options, **options), merge_mode=merge, **further)
    layer.build((ROWS, TIMES, FEATURES))
    weights = weights_of(layer)
    half = len(weights) // 2
    return layer, partial(cell.step, weights[:half]), partial(cell.step, weights[half:])


@pytest.mark.parametrize("unroll", BOTH, ids=["loop", "unrolled"])
@pytest.mark.parametrize("merge", MERGED, ids=str)
def test_two_directions_are_merged(merge, unroll, ddl_strategy):
    """What a mask hides is 0 in a series of outputs. Both directions may have other numbers of units."""
    import tensorflow as tf

    wrong, x = Wrong(), draw(ROWS, TIMES, FEATURES)
    many = (UNITS, 2) if merge in ("concat", None) else (UNITS,)
    for cell, units, times, returned in product(CELLS[:2], many, BOTH, BOTH):
        given = {"return_sequences": times, "return_state": returned, "unroll": unroll}
        layer, forth, back = two(cell, units, merge, **given)
        for name, mask in MASKS.items():
            with wrong.of(cell, given, name, f"{units} units back"):
                found = flat(layer(x, mask=None if mask is None else tf.constant(mask)))
                (one, ends), (other, starts) = (
                    scanned(step, x, [np.zeros((ROWS, size))] * cell.states, mask, backwards=way, zeros=times)
                    for step, size, way in ((forth, UNITS, False), (back, units, True))
                )
                one, other = (one, other[:, ::-1]) if times else (one[:, -1], other[:, -1])
                check(found, [*MERGED[merge](one, other), *([*ends, *starts] if returned else [])])
    wrong.check()


@pytest.mark.parametrize("units", [UNITS, 2], ids=["as many", "fewer"])
@pytest.mark.parametrize("merge", MERGED, ids=str)
def test_two_directions_tell_their_shapes(merge, units, ddl_strategy):
    if units != UNITS and merge not in ("concat", None):
        pytest.skip("only outputs of one size are added")
    wrong, x = Wrong(), draw(ROWS, TIMES, FEATURES)
    for cell, times, returned in product(CELLS[:2], BOTH, BOTH):
        with wrong.of(cell, f"return_sequences={times}", f"return_state={returned}"):
            layer, _, _ = two(cell, units, merge, return_sequences=times, return_state=returned)
            check_shapes(layer, x.shape, flat(layer(x)))
    wrong.check()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", [*FORMS, "both directions"])
@pytest.mark.parametrize("cell", CELLS[1:3], ids=str)
def test_a_stateful_layer_goes_on_where_it_was(cell, form, mask, ddl_strategy):
    """Two calls with half of the times give what one call with all gives, until the layer begins anew."""
    import tensorflow as tf

    if subject.name() != subject.KERAS_3 and form == "both directions":
        pytest.skip("tf_keras keeps the states of both directions elsewhere")
    x, hidden = draw(ROWS, TIMES, FEATURES), MASKS[mask]
    given = {"stateful": True, "return_sequences": True, "return_state": True}
    if form == "both directions":
        layer, step, back = two(cell, UNITS, None, **given)
        many = cell.states
    else:
        layer, step, many = made(cell, form, **given)
    for _ in range(2):
        now, then = states(many, False), states(many, False)
        for half in (slice(0, 2), slice(2, 4)):
            part = None if hidden is None else hidden[:, half]
            found = flat(layer(x[:, half], mask=None if part is None else tf.constant(part)))
            zeros = form == "both directions"
            outputs, now = scanned(step, x[:, half], now, part, zeros=zeros)
            expected = [outputs, *now]
            if form == "both directions":
                others, then = scanned(back, x[:, half], then, part, backwards=True, zeros=zeros)
                expected = [outputs, others[:, ::-1], *now, *then]
            check(found, expected)
        subject.reset(layer)


@pytest.mark.parametrize("number", [1, 2])
def test_a_recurrence_of_images_convolves_inputs_and_states(number, ddl_strategy):
    """The channels are last: TensorFlow has no kernels for others on CPUs, in float64."""
    import tensorflow as tf

    from suites.subject import keras

    wrong, x = Wrong(), draw(ROWS, TIMES, *(5, 4)[:number], FEATURES)
    steps = {"strides": (1, 2), "dilation_rate": (1, 2), "padding": ("valid", "same")}
    for values, back in product(product(*steps.values()), BOTH):
        convolution = dict(zip(steps, values, strict=True))
        if convolution["strides"] > 1 and convolution["dilation_rate"] > 1:
            continue
        returned = {"return_sequences": not back, "return_state": True, "go_backwards": back}
        layer = getattr(keras.layers, f"ConvLSTM{number}D")(UNITS, 2, **convolution, **returned)
        layer.build(x.shape)
        kernel, recurrent, bias = weights_of(layer)

        def step(x, states, convolution=convolution, kernel=kernel, recurrent=recurrent, bias=bias):
            inner = convolved(states[0], recurrent, {"strides": 1, "dilation_rate": 1, "padding": "same"})
            return gated(convolved(x, kernel, convolution) + bias + inner, states)

        zero = np.zeros_like(convolved(x[:, 0], kernel[..., :UNITS], convolution))
        for name, mask in MASKS.items():
            with wrong.of(convolution, name, "back" * back):
                found = flat(layer(x, mask=None if mask is None else tf.constant(mask)))
                outputs, last = scanned(step, x, [zero, zero], mask, backwards=back)
                expected = [outputs[:, -1] if back else outputs, *last]
                check(found, expected)
    wrong.check()
