"""Each planted bug of recovery is caught with its verdict and cause, and each correct program recovers."""

from __future__ import annotations

import pytest

from pytest_ddl.equivalence.causes import CAUSES
from pytest_ddl.faults.rank.write_gate import why_not
from pytest_ddl.faults.verdict import RecoveryVerdict
from tests.planted_recovery.run import CORRECT, PLANTED, evaluate


def _cases(entries):
    """Sort by strategy, so that clusters stay warm."""
    without_gate = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a gate")
    return [
        pytest.param(
            entry, id=entry.name, marks=[pytest.mark.slow, *([without_gate] if "write " in entry.fault else [])]
        )
        for entry in sorted(entries, key=lambda entry: entry.strategy)
    ]


# Whole programs that are run three times each. Each commit runs those of test_recovery.py.
@pytest.mark.nightly
@pytest.mark.parametrize("entry", _cases(PLANTED))
def test_a_bug_of_recovery_is_caught_and_named(entry):
    outcome = evaluate(entry)
    assert outcome.caught, outcome.detail
    if entry.missed:
        assert not outcome.right, f"it is named now, so leave out missed=: {outcome.detail}"
        pytest.xfail(entry.missed)
    assert outcome.right, outcome.detail


@pytest.mark.nightly
@pytest.mark.parametrize("entry", _cases(CORRECT))
def test_a_correct_program_recovers(entry):
    outcome = evaluate(entry)
    assert outcome.right, outcome.detail


def test_entries_name_verdicts_and_causes_that_exist():
    words = {verdict.value for verdict in RecoveryVerdict} | {"comparison"}
    for entry in [*PLANTED, *CORRECT]:
        assert set(entry.verdicts) <= words
        assert set(entry.causes) <= set(CAUSES)
        assert entry.program.__doc__
    names = [entry.name for entry in [*PLANTED, *CORRECT]]
    assert len(set(names)) == len(names)
    assert len({entry.program for entry in PLANTED}) >= 30
    assert len({entry.program for entry in CORRECT}) >= 20
