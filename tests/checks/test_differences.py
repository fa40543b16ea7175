"""Differences of two records are computed once for all checks, and never taken for those of other records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulated_training import Program, pair

from pytest_ddl.equivalence.evidence import comparison
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.evidence.tolerance import Tolerance
from pytest_ddl.records import VariableKind


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The arrays that were compared."""
    arrays: list[object] = []
    difference = comparison.difference

    def counting(actual, desired):
        arrays.append(actual)
        return difference(actual, desired)

    monkeypatch.setattr(comparison, "difference", counting)
    return arrays


def test_differences_are_computed_once_for_all_checks(compared: list[object]) -> None:
    reference, distributed = pair(Program(replicas=2))
    both = Comparison(reference, distributed, Tolerance(reference))
    first = both.differences()
    number = len(compared)
    assert number == first.compared > 0
    assert both.differences(last_step=reference.num_steps) is first
    assert len(compared) == number
    both.differences((VariableKind.STATE,), 1)
    assert len(compared) > number


def test_differences_of_other_records_are_computed_anew() -> None:
    reference, right = pair(Program(replicas=2))
    tolerance = Tolerance(reference)
    for sins in ({}, {"scale": 2.0}, {}):
        distributed = pair(Program(replicas=2), **sins)[1] if sins else right
        assert Comparison(reference, distributed, tolerance).differences().step == (1 if sins else None)
    other = pair(Program(replicas=2, seed=1))[0]
    assert Comparison(other, right, tolerance).differences().step == 0
