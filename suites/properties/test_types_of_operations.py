"""Give each operation numbers of every type: its symbol has the type of the result, and whole numbers are exact.

The tables of the other tests have few types. Here are all that Keras names, and all pairs of them.
"""

from __future__ import annotations

import inspect
from itertools import product
from typing import Any

import numpy as np
import pytest

from suites.backends.operations import ALONG, ONE, TWO, of_group, public
from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("fit.subclass", shows="values"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Arrays of 2-dimensional:DeprecationWarning"),
]

WHOLE = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
TYPES = (*WHOLE, "float16", "bfloat16", "float32", "float64")
NO_SYMBOLS = ("convert_to_numpy", "stack", "ndim", "view_as_real", "dtype", "is_tensor", "shape")
"""Operations that take no symbol, a list, or complex numbers, or return no tensor."""
TOLD_WRONG = ("cbrt", "eig", "logsumexp", "lu_factor", "nanmax", "nanmin", "nanprod", "nansum", "normalize", "polar")
TOLD_WRONG += ("prod", "reciprocal", "sum")
"""Operations whose symbols have another type, most of them for uint64: the test has an entry for each."""
ROUNDED = ("dot", "inner", "matmul", "vdot")
"""Operations that compute whole numbers in floating point: the test has an entry for each."""
NUMBERS, LARGE = ((1, 2), (3, 5)), ((2**40 + 1, 2), (3, 2**33))


@pytest.fixture(autouse=True)
def this_version():
    from suites.subject import keras

    if not hasattr(keras.ops, "erfc"):
        pytest.skip("nobody has written the entries of versions before 3.15 yet, which have many")


def operations(group: str) -> dict[str, Any]:
    """Return the operations that need only tensors, one or two."""
    known, number, found = dict(public()), 2 if group == TWO else 1, {}
    for api in of_group(group):
        every = inspect.signature(known[api]).parameters.values()
        needed = [one for one in every if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
        if len(needed) == number and api not in NO_SYMBOLS:
            found[api] = known[api]
    return found


def results(function: Any, types: tuple[str, ...]) -> Any:
    """Return the tensors of a result, or ``None`` if TensorFlow has no such operation for these types."""
    import tensorflow as tf

    try:
        return tf.nest.flatten(function(*(tf.cast(tf.constant(NUMBERS), one) for one in types)))
    except Exception:
        return None


def told(function: Any, types: tuple[str, ...]) -> list[str]:
    import tensorflow as tf

    from suites.subject import keras

    try:
        return [one.dtype for one in tf.nest.flatten(function(*(keras.KerasTensor((2, 2), one) for one in types)))]
    except Exception as error:
        return [f"a refusal, {type(error).__name__}"]


def agrees(api: str, function: Any, types: tuple[str, ...]) -> bool:
    """Compare the types of results with those of symbols. Return whether there are any."""
    real = results(function, types)
    if real is None:
        return False
    names = [one.dtype.name for one in real]
    assert told(function, types) == names, f"told {told(function, types)}, in fact {names}"
    return True


def asked(api: str, function: Any, group: str) -> int:
    """Ask an operation for each type, or pair of types, and return the number of answers."""
    wrong = Wrong()
    number = 0
    for types in product(TYPES, repeat=2 if group == TWO else 1):
        with wrong.of(api, *types):
            number += agrees(api, function, types)
    wrong.check()
    return number


@pytest.mark.parametrize("group", [ONE, ALONG, TWO])
def test_each_type_gives_what_is_told(group, ddl_strategy):
    wrong, number = Wrong(), 0
    for api, function in operations(group).items():
        if api not in TOLD_WRONG:
            with wrong.of(api):
                number += asked(api, function, group)
    wrong.check()
    assert number > 200


@pytest.mark.parametrize("name", TOLD_WRONG)
def test_an_operation_of_some_types_gives_what_is_told(name, ddl_strategy):
    group = next((one for one in (ONE, ALONG, TWO) if name in operations(one)), None)
    if group is None:
        pytest.skip(f"this version has no {name}")
    assert asked(name, operations(group)[name], group)


def kept(api: str, function: Any, group: str) -> bool:
    """Compare large whole numbers with NumPy. Return whether both compute them as such."""
    import tensorflow as tf

    second = LARGE if api in ("minimum", "fmin") else NUMBERS  # the smaller ones are large, too
    given = [np.array(one, "int64") for one in (LARGE, second)[: 2 if group == TWO else 1]]
    try:
        wanted = getattr(np, api)(*given)
    except (AttributeError, TypeError, ValueError):
        return False
    if not isinstance(wanted, np.ndarray | np.generic) or wanted.dtype != np.int64:
        return False
    try:
        found = np.asarray(function(*map(tf.constant, given)))
    except Exception:
        return False  # TensorFlow has no such operation for whole numbers
    if found.dtype.kind != "i":
        return False  # Keras promises a result in floating point
    np.testing.assert_array_equal(found, wanted)
    return True


@pytest.mark.parametrize("group", [ONE, ALONG, TWO])
def test_whole_numbers_of_64_bits_are_kept(group, ddl_strategy):
    """Whoever computes in 32 bits, or in floating point, gives other numbers than NumPy."""
    wrong, number = Wrong(), 0
    for api, function in operations(group).items():
        if api not in ROUNDED:
            with wrong.of(api):
                number += kept(api, function, group)
    wrong.check()
    assert number > 5


@pytest.mark.parametrize("name", ROUNDED)
def test_a_product_of_whole_numbers_is_exact(name, ddl_strategy):
    group = TWO if name in operations(TWO) else ALONG
    assert kept(name, operations(group)[name], group)
