"""Compare each operation, layer, loss and metric with the NumPy backend, and operations with their symbols."""

from __future__ import annotations

import pytest

from suites.backends.answers import answer_of
from suites.backends.differences import difference
from suites.backends.known import differences, not_compared, programs
from suites.backends.layers import layers
from suites.backends.objects import losses, measured, public
from suites.backends.operations import GROUPS, before, call, calls, function_of, of_group
from suites.parameters.spaces import Wrong

pytestmark = [
    pytest.mark.ddl(strategies=["one_device"], keras="keras"),
    pytest.mark.ddl_item("fit.subclass", shows="values"),
    pytest.mark.filterwarnings("ignore"),  # numbers that are not finite
]
PARTS = 3
"""Number of tests of each group of operations, because one test has a deadline."""
KINDS = {"losses": (losses, 1.0), "metrics": (measured, 1.0), "layers": (layers, 1e-3)}
"""Module of Keras -> yields the calls of one of its classes, and the size of numbers that may cancel in a result."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("group", GROUPS)
def test_operations_are_those_of_the_numpy_backend(group, part, numpy_backend, ddl_strategy):
    """Each call gives the same numbers, shape and type with both backends, and so have symbols."""
    wrong, rows, absent = Wrong(), differences(), not_compared()
    for api, found in calls({*of_group(group)[part::PARTS]}).items():
        compared = False
        for one in found:
            answer, other = answer_of(call, api, one.given, one.options), numpy_backend.ask(call, api, *one.sent())
            compared = compared or not other.error
            for what, how in (difference(answer, other, [*one.given, one.options]), before(one, answer)):
                if what and not any(row.explains(api, what, one.marks(function_of(api))) for row in rows):
                    with wrong.of(one):
                        raise AssertionError(f"{what}: {how}")
        with wrong.of(api):
            assert compared or api in absent, "no call is compared"
    wrong.check()


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_objects_are_those_of_the_numpy_backend(kind, part, numpy_backend, ddl_strategy):
    """Each public class gives the same numbers, shapes and types with both backends, for the options of its table."""
    wrong, rows, absent = Wrong(), differences(), not_compared()
    calls_of, least = KINDS[kind]
    for api in public(kind)[part::PARTS]:
        compared = False
        for one in calls_of(api):
            answer, other = answer_of(one.function, *one.given), numpy_backend.ask(one.function, *one.given)
            compared = compared or not other.error
            what, how = difference(answer, other, one.given, least)
            if what and not any(row.explains(api, what, one.marks()) for row in rows):
                with wrong.of(one):
                    raise AssertionError(f"{what}: {how}")
        with wrong.of(api):
            assert compared or api in absent, "no call is compared"
    wrong.check()


@pytest.mark.parametrize("program", programs())
def test_a_known_defect(program, numpy_backend, ddl_strategy):
    """Ask for the defect that a row names. It has an entry as long as it is there."""
    import keras

    wrong, asked = Wrong(), 0
    rows = [row for row in differences() if row.program == program]
    for api, found in calls({api for row in rows for api in row.operations}).items():
        for one in found:
            marks = one.marks(function_of(api))
            answer, other = answer_of(call, api, one.given, one.options), numpy_backend.ask(call, api, *one.sent())
            for what, how in (difference(answer, other, [*one.given, one.options]), before(one, answer)):
                asked += 1
                if any(row.explains(api, what, marks) for row in rows):
                    with wrong.of(one):
                        raise AssertionError(f"{what}: {how}")
    if not asked:
        pytest.skip(f"Keras {keras.__version__} has none of these operations")
    wrong.check()
