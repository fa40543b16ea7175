"""Compare the operations of ``keras.ops`` that NumPy has too with NumPy, for all shapes that broadcast and all axes."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest

from suites.parameters.spaces import Wrong
from suites.tables.operation_calls import CALLS

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("fit.subclass", shows="values"),
]

SHAPES = [shape for rank in range(4) for shape in itertools.product((1, 3), repeat=rank)]
"""Shapes of up to three axes. Two axes of one length show whether values go to the right one."""
OF_TWO = (
    *("subtract", "add", "multiply", "divide", "true_divide", "floor_divide", "mod", "fmod", "power", "matmul"),
    *("maximum", "minimum", "fmax", "fmin", "arctan2", "hypot", "logaddexp", "logaddexp2", "heaviside", "nextafter"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
    *("bitwise_left_shift", "bitwise_right_shift", "left_shift", "right_shift", "gcd", "lcm", "ldexp"),
)
"""Operations of two tensors that are functions of each pair of elements in NumPy."""
BOUND = {"rtol": 1e-5, "atol": 1e-6}
NUMBERS = {
    "float32": (-2.5, -1.0, -0.75, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 40.0, np.inf, -np.inf, np.nan),
    "int32": (-3, -1, 0, 1, 2, 7),
}
"""Numbers for functions of one element."""
REFUSED = {("reciprocal", "int32")}
"""Operations that TensorFlow has no kernel for."""


OF_PARTS = ("concatenate", "stack", "unstack")
"""Operations that take or give a list of tensors."""


def given(shape: tuple[int, ...], place: int, kind: str) -> Any:
    draw = np.random.default_rng(10 * len(shape) + place)
    return draw.integers(1, 9, shape).astype("int32") if kind == "int32" else draw.uniform(0.5, 2, shape).astype(kind)


def expected(operation: Any, *values: Any, **options: Any) -> Any:
    """Return what NumPy makes of it, or ``None`` if NumPy refuses."""
    try:
        with np.errstate(all="ignore"):
            return operation(*values, **options)
    except (TypeError, ValueError, np.exceptions.AxisError):
        return None


def same(found: Any, wanted: Any) -> None:
    found = np.asarray(found)
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(found.astype(float), np.asarray(wanted).astype(float), **BOUND)


def test_each_operation_of_two_tensors_is_tested(ddl_strategy):
    from suites.subject import keras

    elementwise = {name: one for name, one in vars(np).items() if isinstance(one, np.ufunc) and one.nin == 2}
    assert {name for name in elementwise if hasattr(keras.ops, name)} <= set(OF_TWO)


@pytest.mark.parametrize("name", OF_TWO)
def test_an_operation_of_two_tensors_broadcasts_as_in_numpy(name, ddl_strategy):
    from suites.subject import keras

    operation, wrong = getattr(keras.ops, name, None), Wrong()
    if operation is None:
        pytest.skip(f"this version has no {name}")
    one = given((), 1, "float32")
    kind = "int32" if expected(getattr(np, name), one, one) is None else "float32"
    for first, second in itertools.product(SHAPES, SHAPES):
        values = given(first, 1, kind), given(second, 2, kind)
        wanted = expected(getattr(np, name), *values)
        if wanted is not None:
            with wrong.of(first, second):
                same(operation(*values), wanted)
    wrong.check()


def test_an_operation_of_one_tensor_is_that_of_numpy(ddl_strategy):
    from suites.subject import keras

    wrong = Wrong()
    for name, function in vars(np).items():
        if isinstance(function, np.ufunc) and function.nin == 1 and hasattr(keras.ops, name):
            for kind, numbers in NUMBERS.items():
                wanted = expected(function, np.array(numbers, kind))
                if wanted is not None and (name, kind) not in REFUSED:
                    with wrong.of(name, kind):
                        same(getattr(keras.ops, name)(np.array(numbers, kind)), wanted)
    wrong.check()


def test_an_operation_along_axes_is_that_of_numpy(ddl_strategy):
    """Each operation with one tensor and an axis, such as sums, orders and differences."""
    from suites.subject import keras

    wrong, asked = Wrong(), 0
    for name in sorted(dir(keras.ops)):
        operation, function = getattr(keras.ops, name), getattr(np, name, None)
        if not inspect.isfunction(operation) or not callable(function):
            continue
        own = inspect.signature(operation).parameters
        needed = [one for one in own.values() if one.default is one.empty]
        if "axis" not in own or len(needed) != 1 or name in OF_PARTS:
            continue
        # A universal function of NumPy before 2.4 has no signature, and none has an axis.
        others = inspect.signature(function).parameters
        if "axis" not in others:
            continue
        kept = [{"keepdims": one} for one in (False, True)] if {"keepdims"} <= own.keys() & others.keys() else [{}]
        for shape, options in itertools.product([(3,), (3, 2), (2, 3, 3), (1, 3)], kept):
            x = given(shape, 3, "float32")
            for axis in (None, 0, -1, len(shape) - 1, (0,), (0, len(shape) - 1), (-1, -2)):
                wanted = expected(function, x, axis=axis, **options)
                if wanted is not None:
                    with wrong.of(name, shape, f"axis={axis}", options):
                        same(operation(x, axis=axis, **options), wanted)
                        asked += 1
    wrong.check()
    assert asked


@pytest.mark.parametrize("name", CALLS)
def test_an_operation_takes_the_arguments_of_numpy(name, ddl_strategy):
    from suites.subject import keras

    operation, wrong = getattr(keras.ops, name, None), Wrong()
    if operation is None:
        pytest.skip(f"this version has no {name}")
    for values, options in CALLS[name]:
        if not options.keys() <= inspect.signature(operation).parameters.keys():
            continue
        wanted = expected(getattr(np, name), *values, **options)
        with wrong.of(*(one for one in values if np.size(one) < 4), options):
            found = operation(*values, **options)
            pairs = zip(found, wanted, strict=True) if isinstance(wanted, (list, tuple)) else [(found, wanted)]
            for one, other in pairs:
                same(one, other)
    wrong.check()
