"""The order of findings: a wrong state comes before what only guesses about the forward pass that reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddl.equivalence.findings import Finding, Grounds
from pytest_ddl.equivalence.verdict.precedence import root_causes

STATE = Finding("STATE-EQ", "differs", cause="state-not-aggregated", step=1)
GUESS = Finding("STEP-EQ", "differs", step=1, exact=False, grounds=Grounds.PATTERN)


@pytest.mark.parametrize("cause", ["batch-coupled-loss", "replica-computes-otherwise"])
def test_a_wrong_state_comes_before_a_guess_about_the_forward_pass(cause: str) -> None:
    guess = replace(GUESS, cause=cause)
    assert [finding.cause for finding in root_causes([guess, STATE])] == ["state-not-aggregated", cause]


@pytest.mark.parametrize(
    ("update", "state"),
    [
        (replace(GUESS, cause="per-replica-normalization"), STATE),
        (replace(GUESS, cause="batch-coupled-loss", exact=True, grounds=Grounds.RECOMPUTED), STATE),
        (replace(GUESS, cause="batch-coupled-loss"), replace(STATE, step=2)),
        (replace(GUESS, cause="batch-coupled-loss"), replace(STATE, exact=False)),
    ],
    ids=["statistics", "recomputed", "later state", "guessed state"],
)
def test_other_updates_stay_first(update: Finding, state: Finding) -> None:
    assert root_causes([state, update])[0] is update
