"""Each planted performance problem gets its advice first, and well-tuned programs get none."""

from __future__ import annotations

import pytest

from pytest_ddl.bench.advice import turns
from pytest_ddl.bench.advice.rules import RULES
from tests.planted_performance.catalogue import PLANTED, TUNED
from tests.planted_performance.measure import evaluate


# Each takes minutes of launches that take turns. Each commit runs the largest effect, which wide intervals show too.
@pytest.mark.nightly(each_commit=("eager",))
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in PLANTED])
def test_the_right_advice_comes_first(entry, pytestconfig, monkeypatch):
    if not pytestconfig.getoption("--nightly"):
        monkeypatch.setattr(turns, "SECONDS", 4.0)
    outcome = evaluate(entry)
    assert outcome.right, outcome.detail


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in TUNED])
def test_a_well_tuned_program_gets_no_advice(entry):
    outcome = evaluate(entry)
    assert outcome.right, outcome.detail


def test_entries_name_rules_that_exist():
    for entry in [*PLANTED, *TUNED]:
        assert set(entry.rules) <= set(RULES)
        assert entry.program.__doc__
    names = [entry.name for entry in [*PLANTED, *TUNED]]
    assert len(set(names)) == len(names)
    assert len(PLANTED) >= 12
    assert len(TUNED) >= 3
