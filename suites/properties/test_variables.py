"""Compare distributed variables with a model in NumPy: every cell of the table, and drawn sequences of operations."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddl import current_strategy
from suites.models.variables import AGGREGATIONS, CONTEXTS, GIVEN, NAMES, SYNCHRONIZATIONS, Operation
from suites.properties.variables import STRATEGIES, check, check_errors, create, kind_of

VALUES = (("float64", ()), ("int64", (2,)))
"""Dtype and shape in the cells. A Python number can be assigned only to a scalar."""
DRAWN = (("float32", (2,)), ("float64", ()), ("int64", ()), ("int32", (2,)))
"""Dtype and shape for drawn sequences."""
pytestmark = pytest.mark.ddl(strategies=STRATEGIES)

CELLS = [
    pytest.param(
        synchronization,
        aggregation,
        context,
        marks=pytest.mark.ddl_item(f"variables.{synchronization}.{aggregation}.{context}"),
        id=f"{synchronization}-{aggregation}-{context}",
    )
    for synchronization in SYNCHRONIZATIONS
    for aggregation in AGGREGATIONS
    for context in CONTEXTS
]
HOW = pytest.mark.parametrize("how", ["eager", "function"])


def operations_in(context: str) -> list[Operation]:
    """Return every operation of a context, with different payloads."""
    pairs = [(name, given) for given in GIVEN for name in NAMES]
    return [Operation(context, name, given, step) for step, (name, given) in enumerate(pairs)]


@HOW
@pytest.mark.parametrize(("synchronization", "aggregation", "context"), CELLS)
def test_cell(synchronization, aggregation, context, how, ddl_cluster):
    # A difference of only one rank can be an expected failure only in a test that runs in the pytest process.
    ddl_cluster.run(check_cell, synchronization, aggregation, context, how)


def check_cell(synchronization: str, aggregation: str, context: str, how: str) -> None:
    """Apply every operation that must work, and attempt every other one."""
    strategy = current_strategy()
    for dtype, shape in VALUES:
        kind = kind_of(strategy, synchronization, aggregation, dtype, shape)
        operations = [one for one in operations_in(context) if kind.has(one)]
        if kind.creation_error is not None:
            with pytest.raises(kind.creation_error):
                create(strategy, kind)
            continue
        check(strategy, kind, [one for one in operations if not kind.error(one)], how)
        check_errors(strategy, kind, [one for one in operations if kind.error(one)], how)


OPERATIONS = st.builds(
    Operation,
    context=st.sampled_from(CONTEXTS),
    name=st.sampled_from(NAMES),
    given=st.sampled_from(GIVEN),
    step=st.integers(0, 100),
)


@HOW
@pytest.mark.parametrize(
    "aggregation",
    [
        pytest.param(
            name, marks=pytest.mark.ddl_item(*(cell.marks[0].args[0] for cell in CELLS if name in cell.values))
        )
        for name in AGGREGATIONS
    ],
)
@settings(max_examples=4)
@given(
    synchronization=st.sampled_from(SYNCHRONIZATIONS),
    values=st.sampled_from(DRAWN),
    operations=st.lists(OPERATIONS, min_size=2, max_size=8),
)
def test_sequence_of_operations(synchronization, aggregation, values, operations, how, ddl_strategy):
    """Mix the contexts, which no cell does."""
    kind = kind_of(ddl_strategy, synchronization, aggregation, *values)
    if kind.creation_error is None:
        check(ddl_strategy, kind, [one for one in operations if kind.has(one) and not kind.error(one)], how)
