"""Repeated sweeps are compared point by point, and sweeps with other points are no equal sweeps."""

from __future__ import annotations

import pytest

from tests.planted_recovery import repeat
from tests.planted_recovery.repeat import Repetition

FIRST = {"kill worker:0 before step 1": "exact", "kill worker:0 before step 2": "lost, resume-lost-state"}


def test_equal_sweeps_are_counted():
    counts = Repetition()
    assert list(counts.add("a", FIRST, FIRST)) == []
    assert list(counts.add("b", FIRST, FIRST)) == []
    assert counts.same
    assert str(counts) == "points compared: 4, verdict differs: 0, only in one sweep: 0"


@pytest.mark.parametrize("verdict", ["hung", "lost", "lost, workers-diverged"])
def test_another_verdict_or_cause_differs(verdict):
    counts = Repetition()
    again = {**FIRST, "kill worker:0 before step 2": verdict}
    (line,) = counts.add("a", FIRST, again)
    assert line == f"DIFFERS | a | kill worker:0 before step 2 | lost, resume-lost-state | {verdict}"
    assert not counts.same


def test_a_point_of_only_one_sweep_is_said():
    counts = Repetition()
    fewer = {"kill worker:0 before step 1": "exact"}
    (line,) = counts.add("a", FIRST, fewer)
    assert line == "POINTS | a | kill worker:0 before step 2 | only in the first sweep"
    (line,) = counts.add("a", fewer, FIRST)
    assert line.endswith("only in the repeated sweep")
    assert (counts.compared, counts.differing, counts.missing) == (2, 0, 2)
    assert not counts.same


def test_nothing_compared_is_no_success():
    assert not Repetition().same


@pytest.mark.parametrize(("second", "status"), [("exact", 0), ("lost", 1)])
def test_the_status_says_whether_a_verdict_differs(monkeypatch, capsys, second, status):
    verdicts = iter(["exact", second])
    monkeypatch.setattr(repeat, "sweep", lambda *_given: {"kill worker:0 before step 1": next(verdicts)})
    arguments = ["--programs", "step_is_not_saved", "--strategies", "mirrored"]
    assert repeat.main(arguments) == status
    told = capsys.readouterr().out
    assert ("DIFFERS | step_is_not_saved, mirrored" in told) is bool(status)
    assert told.splitlines()[-1].startswith("points compared: 1, verdict differs: ")
