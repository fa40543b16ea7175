"""Run the operations of ``keras.ops`` in functions that know no size, and in compiled ones, as in a plain call.

``fit`` and ``tf.data`` run all operations in functions. Their sizes are often unknown, and their numbers always are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from suites.parameters.spaces import Wrong
from suites.properties.operations import arrays_of, calls_of, flat, lengths, mapped, operation, same, tensors, told
from suites.properties.test_told_operations import EACH
from suites.tables.core_operations import CORE_OPERATIONS
from suites.tables.defined_operations import Call, Defined
from suites.tables.math_operations import MATH_OPERATIONS
from suites.tables.operation_calls import CALLS

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("fit.subclass", shows="values"),
]

MOST = 4
"""Number of calls of an operation. Compiling one takes a tenth of a second."""
NEEDS: Mapping[str, str] = {
    "split": "the number of results is a size divided by a number",
    "array_split": "the number of results is a size divided by a number",
    "unstack": "the number of results is a size",
    "squeeze": "an axis whose size is not known may be one that cannot go",
    "map": "its length is a size",
    "scan": "its length is a size",
    "associative_scan": "it halves the size until one is left",
}
"""Operations that need a size, with the reason."""
NO_KERNELS: Mapping[str, str] = {
    **{f"segment_{kind}": "XLA has no sum of sorted segments" for kind in ("sum", "prod", "max", "min")},
    "det": "XLA has no determinant",
    "eig": "XLA has no eigenvalues of a matrix that is not symmetric",
    "eigh": "XLA chooses other signs",
    "in_top_k": "XLA orders equal numbers in another way",
    "lstsq": "XLA compiles it for seconds",
    "lu_factor": "XLA has no such operation",
    "pinv": "XLA compiles it for seconds",
    "svd": "XLA chooses other signs",
}
"""Operations that are not compiled, with the reason."""
COMPILED = [*CALLS, *(one.name for one in (*CORE_OPERATIONS, *MATH_OPERATIONS))]
"""Operations that are also compiled. Layers compile the others, and images have operations that cannot be compiled."""
CASES = [
    *((name, "unknown") for name, one in EACH.items() if (name in CALLS or one.batched) and name not in NEEDS),
    *((name, "compiled") for name in COMPILED if name in EACH and name not in NO_KERNELS),
]


def asked(one: Defined) -> list[tuple[Call, Any]]:
    """Return some calls that are not refused, with their results."""
    function = operation(one)
    found: list[tuple[Call, Any]] = []
    for given, options in calls_of(one):
        try:
            found.append(((given, options), function(*tensors(given), **tensors(options))))
        except Exception:  # other tests say what is refused
            continue
    return found[: MOST // 2] + found[MOST // 2 :][-MOST // 2 :]


def sizes_of(one: Defined, position: int, array: Any) -> Any:
    """Return a shape without sizes. An operation that NumPy does not have knows all but the number of examples."""
    return [None] * array.ndim if one.name in CALLS else lengths(one, position, array, unknown=True)


def traced(one: Defined, calls: list[Call], how: str) -> list[Any]:
    """Return the results of calls in one function, whose arguments are the arrays of all calls."""
    import tensorflow as tf

    function = operation(one)
    placed = [
        (tf.constant(array), sizes_of(one, position, array) if how == "unknown" else array.shape)
        for given, _ in calls
        for position, argument in enumerate(given)
        for array in arrays_of(argument)
    ]

    def body(*arguments: Any) -> list[Any]:
        rest: Iterator[Any] = iter(arguments)
        return [function(*mapped(lambda _: next(rest), given), **tensors(options)) for given, options in calls]

    signature = [tf.TensorSpec(sizes, array.dtype) for array, sizes in placed]
    # fit converts no Python of a model either.
    compiled = tf.function(body, signature, autograph=False, jit_compile=how == "compiled")
    return list(compiled(*(array for array, _ in placed)))


def agree(one: Defined, found: Any, wanted: Any) -> None:
    types = [[part.dtype.name for part in flat(one)] for one in (found, wanted)]
    assert types[0] == types[1], f"{types[0]} instead of {types[1]}"
    same(found, wanted, rtol=10 * one.rtol, atol=10 * one.atol)


@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_function_gives_what_a_plain_call_gives(name, how, ddl_strategy):
    """All calls share one function. If it fails, each has its own, which tells the wrong ones."""
    one, wrong = EACH[name], Wrong()
    pairs = asked(one)
    try:
        together: Any = traced(one, [call for call, _ in pairs], how)
    except Exception:
        together = None
    for at, (call, wanted) in enumerate(pairs):
        with wrong.of(*told(*call)):
            agree(one, together[at] if together else traced(one, [call], how)[0], wanted)
    wrong.check()
