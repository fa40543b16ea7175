"""Give each layer functions, objects and layers in place of names, and read it again from its configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from suites.parameters.classes import classes, needed, parameters
from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("saving.keras_file", shows="behavior"),
]

VALUES = np.array([[-1.0, 2.0], [0.5, -3.0]], "float32")
OF_OUTPUTS = ("activity_regularizer",)
"""Not asked here: some layers keep no attribute of this name."""
KINDS = ("activation", "initializer", "regularizer", "constraint")
"""Ends of names of parameters, which say what they take."""


def own(keras: Any) -> Mapping[str, Any]:
    """Return functions and classes of a user that files can name."""
    register = keras.saving.register_keras_serializable("ddl")

    @register
    def halved(values: Any) -> Any:
        return 0.5 * values

    @register
    def filled(shape: Any, dtype: Any = None) -> Any:
        return keras.ops.full(shape, 0.125, dtype)

    @register
    def summed(values: Any) -> Any:
        return 0.25 * keras.ops.sum(values)

    def with_factor(base: Any, call: Callable[..., Any]) -> Any:
        class Own(base):  # type: ignore[misc]
            def __init__(self, factor: float = 1.0) -> None:
                self.factor = factor

            def __call__(self, *given: Any, **_: Any) -> Any:
                return call(self.factor, *given)

            def get_config(self) -> dict[str, Any]:
                return {"factor": self.factor}

        return keras.saving.register_keras_serializable("ddl", f"Own{base.__name__}")(Own)(0.75)

    return {
        "activation": (keras.activations.tanh, halved, keras.layers.LeakyReLU(0.25)),
        "initializer": (
            keras.initializers.Constant(0.25),
            filled,
            with_factor(keras.initializers.Initializer, lambda factor, shape: keras.ops.full(shape, factor)),
        ),
        "regularizer": (
            keras.regularizers.L1(0.3),
            summed,
            with_factor(keras.regularizers.Regularizer, lambda factor, values: factor * keras.ops.sum(values)),
        ),
        "constraint": (
            keras.constraints.MaxNorm(0.5),
            halved,
            with_factor(keras.constraints.Constraint, lambda factor, values: factor * values),
        ),
    }


def result(kind: str, one: Any) -> Any:
    """Return what an object makes of fixed values."""
    return np.asarray(one((2, 2)) if kind == "initializer" else one(VALUES))


def part_of(layer: Any, parameter: str) -> Any:
    """Return what a layer keeps of a parameter. Layers for attention hand it to others."""
    return getattr(layer, parameter if hasattr(layer, parameter) else f"_{parameter}")


def copies(keras: Any, layer: Any) -> Iterator[Any]:
    """Yield the layers that a program makes which reads the configuration, or all that was written of the layer."""
    yield type(layer).from_config(json.loads(json.dumps(layer.get_config())))
    yield keras.saving.deserialize_keras_object(json.loads(json.dumps(keras.saving.serialize_keras_object(layer))))


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_of_a_layer_is_read_again(kind, ddl_strategy):
    """Each layer takes the object or what is written of it, and its copies compute the same."""
    from suites.subject import keras

    wrong, asked = Wrong(), 0
    for name, layer in classes("layers").items():
        for parameter in (one for one in parameters(layer) if one.endswith(kind) and one not in OF_OUTPUTS):
            for value in own(keras)[kind]:
                for given in (value, keras.saving.serialize_keras_object(value)):
                    with wrong.of(name, parameter, given):
                        made = layer(**(needed(layer) | {parameter: given}))
                        expected = result(kind, value)
                        for one in (made, *copies(keras, made)):
                            np.testing.assert_array_equal(result(kind, part_of(one, parameter)), expected)
                        asked += 1
    wrong.check()
    assert asked


LAMBDAS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "shape": {"output_shape": (3,)},
    "any length": {"output_shape": (None, 3)},
    "two shapes": {"output_shape": (3, None)},
    "arguments": {"arguments": {"factor": 3.0}},
    "name": {"name": "own", "dtype": "float64"},
}
"""Options of a layer that is a function of the user."""


def test_a_layer_of_a_function_is_read_again(ddl_strategy):
    from suites.subject import keras

    @keras.saving.register_keras_serializable("ddl")
    def times(values: Any, factor: float = 2.0) -> Any:
        return factor * values

    wrong = Wrong()
    for name, options in LAMBDAS.items():
        with wrong.of(name):
            made = keras.layers.Lambda(times, **options)
            for one in copies(keras, made):
                np.testing.assert_array_equal(one(VALUES), made(VALUES))
                assert one.name == made.name
                assert one.compute_output_shape((2, 3)) == made.compute_output_shape((2, 3))
    wrong.check()
