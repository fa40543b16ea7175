"""Give parameters their values in every form that means the same: each form gives the same numbers and slopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import product
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong, find, parameters
from suites.properties.test_configurations import again
from suites.subject import value_of

pytestmark = pytest.mark.usefixtures("float64")

ROWS = 3
SERIES, IMAGE = (4, 6), (4, 5, 6)
"""Shapes of one example."""
Make = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Forms:
    """A parameter, and values of it that mean the same."""

    api: str
    parameter: str
    values: Sequence[Any]
    """A function gets Keras, and makes the value."""
    shape: tuple[int, ...] = SERIES
    fixed: Mapping[str, Any] = field(default_factory=dict)
    inputs: int = 1
    """Number of times that it gets its input."""
    merges: bool = False
    """True if it gets a list of inputs."""
    what: str = ""
    read: bool = False
    """True if the object is also made from its configuration."""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.api.partition(".")[2], self.parameter, self.what)))


def axis(number: int, rank: int) -> tuple[int, int]:
    """Return an axis, counted from the front and from the back."""
    return number, number - rank


def axes(*numbers: int, rank: int) -> tuple[Any, ...]:
    """Return several axes in every order, from the front or from the back, as a tuple and as a list."""
    back = tuple(one - rank for one in numbers)
    return numbers, [*numbers], numbers[::-1], back, back[::-1], [*back[::-1]]


def made(module: str, name: str, *names: str, **options: Any) -> tuple[Any, ...]:
    """Return the ways to name a function or class of Keras, and to give an object or its configuration."""

    def one(keras: Any) -> Any:
        return getattr(getattr(keras, module), name)(**options)

    def config(keras: Any) -> Any:
        return getattr(keras, module).serialize(one(keras))

    return (one, config, *names) if options else (one, config, name, lambda keras: getattr(keras, module).get(name))


def _function(name: str) -> Make:
    return lambda keras: getattr(keras.activations, name)


def _tensor(value: Any) -> Make:
    return lambda keras: keras.ops.convert_to_tensor(value, "float64")


_RELU = ("relu", _function("relu"), lambda keras: keras.activations.get("relu"))
_L2 = made("regularizers", "L2", "l2", l2=0.01)
_POSITIVE = (*made("constraints", "NonNeg"), "non_neg")
_OF_AXES = ("LayerNormalization", "RMSNormalization", "UnitNormalization", "Softmax")
_STEPS: Mapping[str, Any] = {"filters": 2, "kernel_size": 3, "kernel_initializer": "ones"}
FORMS = (
    *(Forms(f"layers.{name}", "axis", axes(1, 2, rank=3), what="last axes") for name in _OF_AXES),
    *(Forms(f"layers.{name}", "axis", axes(1, 3, rank=4), IMAGE, what="inner axes") for name in _OF_AXES),
    *(Forms(f"layers.{name}", "axis", ((1, 2), (1, -1), [-1, 1]), what="both ends") for name in _OF_AXES),
    *(Forms(f"layers.{name}", "axis", axis(1, 3), what="inner axis") for name in (*_OF_AXES, "BatchNormalization")),
    Forms("layers.Concatenate", "axis", axis(1, 3), merges=True),
    Forms("layers.Masking", "mask_value", (0.5, np.float64(0.5), _tensor(0.5)), read=True),
    Forms("layers.Rescaling", "scale", ([0.5] * 6, (0.5,) * 6, np.full(6, 0.5), _tensor([0.5] * 6)), read=True),
    Forms("layers.GroupNormalization", "axis", axis(2, 3), fixed={"groups": 2}),
    Forms("layers.GroupNormalization", "axis", axis(1, 4), IMAGE, {"groups": 2}),
    Forms("layers.Dot", "axes", (*axis(1, 3), (1, 1), [1, -2]), merges=True),
    Forms("layers.Dropout", "noise_shape", ((None, 1, 6), [None, 1, 6]), fixed={"rate": 0.5, "seed": 3}),
    *(
        Forms("layers.MultiHeadAttention", "attention_axes", forms, IMAGE, {"num_heads": 2, "key_dim": 2}, inputs=2)
        for forms in (((1,), [1], (-3,), [-3]), ((2,), [2], (-2,)), ((1, 2), [1, 2], (-3, -2), (1, -2)))
    ),
    Forms("layers.Conv1D", "strides", (2, (2,), [2]), fixed=_STEPS),
    Forms("layers.Conv2D", "kernel_size", (2, (2, 2), [2, 2]), IMAGE, {"filters": 2}),
    Forms("layers.Conv2D", "dilation_rate", (2, (2, 2), [2, 2]), IMAGE, {"filters": 2, "kernel_size": 2}),
    Forms("layers.MaxPooling1D", "pool_size", (2, (2,), [2])),
    Forms("layers.Dense", "activation", _RELU, fixed={"units": 3}),
    Forms("layers.GRU", "activation", _RELU, fixed={"units": 3}),
    Forms("layers.Dense", "kernel_regularizer", _L2, fixed={"units": 3}),
    Forms("layers.Dense", "activity_regularizer", _L2, fixed={"units": 3}),
    Forms("layers.Dense", "kernel_constraint", _POSITIVE, fixed={"units": 3}),
    Forms(
        "layers.Dense", "kernel_initializer", made("initializers", "GlorotUniform", "x", seed=3)[:2], fixed={"units": 3}
    ),
    Forms("layers.Dense", "bias_initializer", (*made("initializers", "Ones"), "ones"), fixed={"units": 3}),
    *(Forms(f"{kind}.CosineSimilarity", "axis", axis(1, 3)) for kind in ("losses", "metrics")),
    Forms("losses.CategoricalCrossentropy", "axis", axis(2, 3), fixed={"from_logits": True}),
    Forms("losses.BinaryCrossentropy", "axis", axis(1, 3), fixed={"from_logits": True}),
    *(Forms(f"losses.{name}", "axis", axes(1, 2, rank=3)) for name in ("Dice", "Tversky")),
    *(Forms(f"metrics.{name}", "thresholds", (0.25, [0.25])) for name in ("Precision", "Recall")),
    *(
        Forms(f"constraints.{name}", "axis", (*axis(1, 2), [1], (-1,)))
        for name in ("UnitNorm", "MaxNorm", "MinMaxNorm")
    ),
)


def _named(form: Any) -> str:
    return "made" if callable(form) else f"{type(form).__name__} {form}"


def numbers(forms: Forms, value: Any, *, read: bool = False) -> list[Any]:
    """Return what an object gives for fixed data, its slopes, what it adds to the loss, and its state afterwards."""
    import tensorflow as tf

    from suites.subject import keras

    keras.utils.set_random_seed(7)
    draw = np.random.default_rng(5)
    x, y = (tf.constant(draw.uniform(0.1, 0.9, (ROWS, *forms.shape))) for _ in range(2))
    given = value(keras) if callable(value) else value
    one = find(forms.api)(**forms.fixed, **{forms.parameter: given})
    if read:
        one = again(one)
    kind = forms.api.partition(".")[0]
    if kind == "constraints":
        return [np.asarray(one(tf.constant(draw.normal(size=(4, 3)))))]
    if kind == "metrics":
        one.update_state(tf.round(y), x)
        return [np.asarray(one.result())]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        if kind == "losses":
            return [np.asarray(value := one(y, x)), np.asarray(tape.gradient(value, x))]
        several = [[x, 2 * x]] if forms.merges else [x * (number + 1) for number in range(forms.inputs)]
        values = one(*several, **({"training": True} if "training" in signature(one.call).parameters else {}))
        told = tf.reduce_sum(values * draw.normal(size=values.shape)) + sum(one.losses)
    trained = [value_of(variable) for variable in one.trainable_variables]
    slopes = tape.gradient(told, [x, *trained])
    constraints = [
        variable.constraint(value_of(variable)) for variable in one.trainable_variables if variable.constraint
    ]
    return [np.asarray(part) for part in (values, told, *slopes, *constraints, *one.weights)]


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("layer.LayerNorm_GroupNorm_RMSNorm", "layer.MultiHeadAttention", "layer.Dense", "loss.reductions")
@pytest.mark.parametrize("forms", FORMS, ids=str)
def test_values_that_mean_the_same_give_the_same_numbers(forms, ddl_strategy):
    """An axis counts from the front or the back, axes stand in any order, and a name stands for its object."""
    if forms.parameter not in parameters(forms.api):
        pytest.skip(f"the installed version has no {forms}")
    wrong = Wrong()
    expected = numbers(forms, forms.values[0])
    for value, read in product(forms.values, (False, True) if forms.read else (False,)):
        with wrong.of(_named(value), "from its configuration" if read else ""):
            found = numbers(forms, value, read=read)
            assert [one.shape for one in found] == [one.shape for one in expected]
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    wrong.check()
