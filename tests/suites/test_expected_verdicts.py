"""Known failures of tests that inject faults: an entry explains verdicts, and nothing else is excused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_ddl import RecoveryError
from pytest_ddl.faults.rank.fault import Fault
from pytest_ddl.faults.report import FaultReport, Limits
from pytest_ddl.faults.verdict import RecoveryVerdict, Trial
from pytest_ddl.hints import FrontEnd
from suites import expecting
from suites.known_failures import entry_to_paste, load

ENTRY = """
[[failure]]
test = 'test_recipes'
causes = ["resume-data-wrong"]
verdicts = ["replayed"]
points = 'after save'
reason = "why"
link = "https://example.org/1"
"""


SAVED = "kill worker:0 after save 1"


def error(*faults, verdict=RecoveryVerdict.REPLAYED):
    trials = tuple(Trial((Fault.parse(fault),), verdict, f"{verdict.value} 3 steps") for fault in faults)
    return RecoveryError(
        FaultReport("mirrored", ("worker:0",), trials, Limits(), SimpleNamespace(front_end=FrontEnd.TEST), points=2)
    )


def raising(one):
    def inject():
        raise one

    return inject


def test_a_known_verdict_is_an_expected_failure():
    with pytest.raises(pytest.xfail.Exception, match=r"replayed: why \(https://example.org/1\)"):
        expecting.injected(load(ENTRY), raising(error(SAVED, "kill worker:0 after save 2")))


@pytest.mark.parametrize(
    "other",
    [
        error(SAVED, "kill worker:0 before step 2"),
        error(SAVED, verdict=RecoveryVerdict.LOST),
    ],
    ids=["point", "verdict"],
)
def test_another_verdict_or_point_is_a_failure(other):
    with pytest.raises(RecoveryError):
        expecting.injected(load(ENTRY), raising(other))


def test_an_entry_that_explains_nothing_is_a_failure():
    with pytest.raises(pytest.fail.Exception, match="explains no fault of this test"):
        expecting.injected(load(ENTRY), lambda: None)
    second = ENTRY.replace("after save", "before save")
    with pytest.raises(pytest.fail.Exception, match="explains no fault of this test"):
        expecting.injected(load(ENTRY + second), raising(error(SAVED)))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [("replayed", "repeated", "'repeated' is no verdict"), ('verdicts = ["replayed"]', "", "points need the verdicts")],
)
def test_a_wrong_entry_is_shown(old, new, told):
    with pytest.raises(ValueError, match=told):
        load(ENTRY.replace(old, new))


def test_a_failure_of_faults_shows_its_entry():

    text = entry_to_paste("suites/faults/test_recipes.py::test_a[mirrored]", "mirrored", error(SAVED), "keras")
    assert "verdicts = [\"replayed\"]\npoints = 'after\\ save\\ 1'" in text
