"""Give operations numbers that may be impossible, and ask whether a symbol is refused whenever an array is.

A model is made of symbols. If an operation refuses only arrays, the model is made and fails in training.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from suites.backends.differences import fits
from suites.parameters.spaces import Wrong
from suites.properties.operations import calls_of, flat, mapped, operation, tensors
from suites.properties.test_told_operations import EACH, WITH_NUMPY
from suites.tables.refused_operations import KNOWN, NOT_ASKED

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("fit.subclass", shows="behavior"),
]

NUMBERS = (0, -1, -2, 9)
"""No axis of the tables has nine dimensions, and few have the length nine."""


@pytest.fixture(autouse=True)
def this_version():
    from suites.subject import keras

    if not hasattr(keras.ops, "erfc"):
        pytest.skip("nobody has written the entries of versions before 3.15 yet, which have many")


def counts(options: Any) -> list[Any]:
    return [name for name, value in options.items() if isinstance(value, int) and not isinstance(value, bool)]


VARIED = [name for name, one in EACH.items() if any(counts(options) for _, options in one.calls)]
"""Operations with an option that is an integer."""


def cases(name: str) -> Iterator[tuple[str, int, Any, Any]]:
    """Yield each option that is an integer with each number, in the first call that has the option."""
    asked = set()
    for given, options in calls_of(EACH[name], all_of=True):
        for option in counts(options):
            if option not in asked and (name, option) not in NOT_ASKED:
                asked.add(option)
                yield from ((option, number, given, {**options, option: number}) for number in NUMBERS)


def shapes(function: Any, given: Any, options: Any) -> list[tuple[Any, ...]] | None:
    """Return the shapes of the results, or ``None`` if the operation refuses the call."""
    try:
        return [tuple(one.shape) for one in flat(function(*given, **tensors(options)))]
    except Exception:
        return None


def same(told: list[Any] | None, real: list[Any] | None) -> bool:
    if told is None or real is None:
        return told is real
    return len(told) == len(real) and all(map(fits, told, real))


def alike(name: str, given: Any, options: Any) -> None:
    """Check that a symbol and an array are refused, or have the same shapes."""
    from suites.subject import keras

    function, first = operation(EACH[name]), 1 if name in WITH_NUMPY else len(given)
    inputs = mapped(lambda array: keras.KerasTensor(array.shape, dtype=array.dtype.name), given[:first])
    told = shapes(function, (*inputs, *tensors(given[first:])), options)
    real = shapes(function, tensors(given), options)
    shown = ["a refusal" if one is None else one for one in (told, real)]
    assert same(told, real), f"told {shown[0]}, in fact {shown[1]}"


@pytest.mark.parametrize("asked", [*VARIED, *KNOWN])
def test_a_symbol_is_refused_if_an_array_is(asked, ddl_strategy):
    """Ask an operation, or the options of a group of known differences, which has an entry as long as it is there."""
    wrong, group = Wrong(), KNOWN.get(asked, frozenset())
    known = frozenset().union(*KNOWN.values())
    for name in sorted({name for name, _ in group}) or [asked]:
        for option, number, given, options in cases(name):
            if (name, option) in group or (not group and (name, option) not in known):
                with wrong.of(name, option, number):
                    alike(name, given, options)
    wrong.check()
