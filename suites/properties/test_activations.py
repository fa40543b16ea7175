"""Compare every function of ``keras.activations``, its options and its slope with its definition in NumPy."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from suites import subject
from suites.parameters.spaces import Wrong

pytestmark = [pytest.mark.ddl(strategies=["one_device"]), pytest.mark.ddl_item("layer.Dense", shows="values")]

X = np.array([[-40.25, -7.3, -3.1, -1.2, -0.7, -0.2], [0.1, 0.4, 0.6, 1.3, 3.2, 41.75]])
"""Numbers on both sides of every bend, and none on a bend."""
STEP = 1e-6
"""Difference of two numbers whose values give a slope."""


def sigmoid(x: Any) -> Any:
    return np.exp(-np.logaddexp(0, -x))


def below(x: Any, function: Any, otherwise: Any = None) -> Any:
    return np.where(x < 0, function, x if otherwise is None else otherwise)


def relu(x: Any, negative_slope: float = 0.0, max_value: float | None = None, threshold: float = 0.0) -> Any:
    kept = np.where(x >= threshold, x, negative_slope * (x - threshold))
    return kept if max_value is None else np.minimum(kept, max_value)


def softmax(x: Any, axis: Any = -1) -> Any:
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def sparsemax(x: Any, axis: int = -1) -> Any:
    """Return the nearest point whose parts are not negative and add up to 1 (Martins and Astudillo, 2016)."""

    def of_row(row: Any) -> Any:
        ordered = np.sort(row)[::-1]
        sums, count = np.cumsum(ordered), np.arange(1, len(row) + 1)
        number = count[1 + count * ordered > sums][-1]
        return np.maximum(row - (sums[number - 1] - 1) / number, 0)

    return np.apply_along_axis(of_row, axis, x)


def glu(x: Any, axis: int = -1) -> Any:
    values, gates = np.split(x, 2, axis)
    return values * sigmoid(gates)


def gelu(x: Any, approximate: bool = False) -> Any:
    if approximate:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * np.vectorize(math.erfc)(-x / np.sqrt(2))


def sparse_plus(x: Any) -> Any:
    return np.where(x <= -1, 0, np.where(x < 1, (x + 1) ** 2 / 4, x))


Options = tuple[Mapping[str, Any], ...]
DEFINED: Mapping[str, tuple[Callable[..., Any], Options]] = {
    "relu": (relu, ({"negative_slope": 0.3}, {"max_value": 2.0}, {"threshold": 0.5, "negative_slope": 0.1})),
    "leaky_relu": (lambda x, negative_slope=0.2: below(x, negative_slope * x), ({"negative_slope": 0.5},)),
    "relu6": (lambda x: np.clip(x, 0, 6), ()),
    "elu": (lambda x, alpha=1.0: below(x, alpha * np.expm1(np.minimum(x, 0))), ({"alpha": 0.5},)),
    "celu": (lambda x, alpha=1.0: below(x, alpha * np.expm1(np.minimum(x, 0) / alpha)), ({"alpha": 2.0},)),
    "selu": (lambda x: 1.0507009873554805 * below(x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))), ()),
    "softplus": (lambda x: np.logaddexp(0, x), ()),
    "softsign": (lambda x: x / (1 + abs(x)), ()),
    "soft_shrink": (lambda x, threshold=0.5: np.sign(x) * np.maximum(abs(x) - threshold, 0), ({"threshold": 1.0},)),
    "hard_shrink": (lambda x, threshold=0.5: np.where(abs(x) > threshold, x, 0), ({"threshold": 1.0},)),
    "tanh_shrink": (lambda x: x - np.tanh(x), ()),
    "hard_tanh": (lambda x: np.clip(x, -1, 1), ()),
    "threshold": (lambda x, threshold, default_value: np.where(x > threshold, x, default_value), ()),
    "sparse_plus": (sparse_plus, ()),
    "sparse_sigmoid": (lambda x: np.clip((x + 1) / 2, 0, 1), ()),
    "silu": (lambda x: x * sigmoid(x), ()),
    "squareplus": (lambda x, b=4: (x + np.sqrt(x * x + b)) / 2, ({"b": 1},)),
    "gelu": (gelu, ({"approximate": True},)),
    "glu": (glu, ({"axis": 0},)),
    "tanh": (np.tanh, ()),
    "sigmoid": (sigmoid, ()),
    "exponential": (np.exp, ()),
    "hard_sigmoid": (lambda x: np.clip(x / 6 + 0.5, 0, 1), ()),
    "log_sigmoid": (lambda x: -np.logaddexp(0, -x), ()),
    "hard_silu": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), ()),
    "linear": (lambda x: x, ()),
    "mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), ()),
    "softmax": (softmax, ({"axis": 0}, {"axis": (0, 1)})),
    "log_softmax": (lambda x, axis=-1: x - np.logaddexp.reduce(x, axis, keepdims=True), ({"axis": 0},)),
    "sparsemax": (sparsemax, ({"axis": 0},)),
}
"""Function -> its definition, and options beside the defaults."""
OF_TF_KERAS = {"hard_sigmoid": lambda x: np.clip(x / 5 + 0.5, 0, 1)}
"""Functions that tf_keras defines otherwise."""
NEEDED = {"threshold": {"threshold": 0.5, "default_value": -2.0}}
SAME = ("swish", "hard_swish")
"""Second names of functions."""


def slopes(function: Callable[..., Any], weights: Any) -> Any:
    """Return how a weighted sum of the values moves with each number."""
    found = np.zeros_like(X)
    for at in np.ndindex(*X.shape):
        step = np.zeros_like(X)
        step[at] = STEP
        found[at] = (weights * (function(X + step) - function(X - step))).sum() / (2 * STEP)
    return found


def test_each_function_is_defined_here(ddl_strategy):
    from suites.subject import keras

    given = {name for name, one in vars(keras.activations).items() if inspect.isfunction(one)}
    assert given - {"get", "serialize", "deserialize"} - set(SAME) <= set(DEFINED)


@pytest.mark.parametrize("name", DEFINED)
def test_a_function_and_its_slope_are_as_defined(name, ddl_strategy):
    import tensorflow as tf

    from suites.subject import keras

    function, (defined, options), wrong = getattr(keras.activations, name, None), DEFINED[name], Wrong()
    if subject.name() == subject.TF_KERAS:
        defined = OF_TF_KERAS.get(name, defined)
    if function is None:
        pytest.skip(f"this version has no {name}")
    for given in ({}, *options):
        if not given.keys() <= inspect.signature(function).parameters.keys():
            continue
        with wrong.of(given):
            given = {**NEEDED.get(name, {}), **given}
            x = tf.constant(X)
            with tf.GradientTape() as tape:
                tape.watch(x)
                found = function(x, **given)
                weights = np.cos(np.arange(tf.size(found))).reshape(found.shape)
                total = tf.reduce_sum(found * weights)
            np.testing.assert_allclose(found, defined(X, **given), rtol=1e-6, atol=1e-12)
            expected = slopes(lambda x, given=given: defined(x, **given), weights)
            largest = max(abs(expected).max(), 1.0)
            np.testing.assert_allclose(tape.gradient(total, x), expected, rtol=1e-5, atol=1e-8 * largest)
    wrong.check()
