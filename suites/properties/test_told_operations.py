"""Compare the results of ``keras.ops`` with the shapes and types that a model is told while it is made."""

from __future__ import annotations

from typing import Any

import pytest

from suites.backends.differences import fits
from suites.parameters.spaces import Wrong
from suites.properties.operations import DEFINED, calls_of, flat, lengths, mapped, operation, tensors, told
from suites.tables.defined_operations import Defined
from suites.tables.operation_calls import CALLS

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("fit.subclass", shows="values"),
]

UNTOLD = ("where",)
"""Operations whose shape depends on the numbers."""
WITH_NUMPY = {name: Defined(name, None, calls) for name, calls in CALLS.items() if name not in UNTOLD}
EACH = {**WITH_NUMPY, **{name: one for name, one in DEFINED.items() if not one.case}}
"""Operations whose results are told before. A case of an operation is about its values."""
SIZES = [(name, sizes) for name, one in EACH.items() for sizes in ("known", "unknown")[: 1 + (one.batched > 0)]]
"""The number of examples may be unknown if an argument is a batch."""


def agrees(shown: Any, real: Any) -> None:
    """Check that what is told of a tensor is true. A length may be unknown."""
    dtype = getattr(real.dtype, "name", real.dtype)
    assert fits(shown.shape, real.shape), f"told {tuple(shown.shape)}, is {tuple(real.shape)}"
    assert shown.dtype == dtype, f"told {shown.dtype}, is {dtype}"


@pytest.mark.parametrize(("name", "sizes"), SIZES)
def test_the_result_is_told_before(name, sizes, ddl_strategy):
    """A model knows the shape and type of a result while it is made."""
    import tensorflow as tf

    from suites.subject import keras

    one, wrong = EACH[name], Wrong()
    function = operation(one)
    for given, options in calls_of(one):
        with wrong.of(*told(given, options)):
            found = flat(function(*tensors(given), **tensors(options)))
            inputs = []
            for position, argument in enumerate(given):

                def symbol(array: Any, position: int = position) -> Any:
                    shape = lengths(one, position, array, unknown=sizes == "unknown")
                    return keras.KerasTensor(shape, dtype=array.dtype.name)

                known = name in WITH_NUMPY and position > 0  # where and how often
                inputs.append(mapped(tf.constant if known else symbol, argument))
            before = flat(function(*inputs, **tensors(options)))
            for shown, real in zip(before, found, strict=True):
                agrees(shown, real)
    wrong.check()
