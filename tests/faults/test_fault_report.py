"""The report of faults: one table, the broken limits with their reasons, JSON and a page."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.faults.rank.fault import Fault
from pytest_ddl.faults.report import FaultReport, Limits, write
from pytest_ddl.faults.verdict import MEANINGS, RECOVERED, RecoveryVerdict, Trial
from pytest_ddl.hints import FrontEnd

FIRST = (Fault.parse("kill worker:0 before step 1"),)
SECOND = (Fault.parse("kill worker:1 before step 1"),)
IN_RESTORE = (*FIRST, Fault.parse("kill worker:0 before restore 1 of attempt 2"))


PASSED = SimpleNamespace(verdict="pass", front_end=FrontEnd.TEST)


def trial(schedule=FIRST, verdict=RecoveryVerdict.EXACT, **given):
    return Trial(schedule, verdict, **given)


def report(*trials, **limits):
    return FaultReport(
        "multi_worker_mirrored[workers=2]", ("worker:0", "worker:1"), trials, Limits(**limits), PASSED, 9
    )


def test_the_table_counts_verdicts_by_phase_and_rank():
    made = report(
        trial(),
        trial(FIRST, RecoveryVerdict.LOST, steps=2),
        trial(SECOND, RecoveryVerdict.EXAMPLES, twice=12, never=4),
        trial(IN_RESTORE, RecoveryVerdict.EQUAL),
    )
    assert list(made.table()) == [
        "phase                   worker:0            worker:1",
        "step 1                  1 exact · 1 lost 2  1 12 twice, 4 never",
        "restore 1 of attempt 2  1 equal             -",
    ]


def test_nothing_injected_is_no_pass():
    assert not report()
    assert report().verdict == "fail"
    assert "no fault was injected" in str(report())


@pytest.mark.parametrize("verdict", RecoveryVerdict)
def test_only_recovery_passes(verdict):
    made = report(trial(verdict=verdict))
    assert bool(made) is made.passed is (verdict in RECOVERED)
    assert made.verdict == ("pass" if verdict in RECOVERED else "fail")
    assert MEANINGS[verdict]


@pytest.mark.parametrize(
    ("limits", "given", "told"),
    [
        ({"exact": True}, {"verdict": RecoveryVerdict.EQUAL}, "exact=True, and the run is only equal"),
        ({"max_lost_steps": 1}, {"work_lost": 2}, "max_lost_steps=1, and 2 steps were made again"),
        ({"detected_within": 1.0}, {"detected": 2.0}, "detected_within=1, and it took 2.00 s"),
        (
            {"always_loadable": True},
            {"attempts": 2, "resumed_at": 2, "complete_save": 4},
            "the run continued at step 2: the save of step 4 is lost",
        ),
        (
            {"always_loadable": True},
            {"attempts": 2, "resumed_at": 0, "complete_save": 4},
            "the run continued at the start: the save of step 4 is lost",
        ),
    ],
)
def test_a_broken_limit_is_named(limits, given, told):
    made = report(trial(**given), **limits)
    assert told in made.broken[0][1]
    assert told in str(made)
    assert report(trial(**given)).passed


def test_the_worst_comes_first_with_its_fix():
    finding = Finding("RESUME", "lost", cause="resume-lost-state", fix="Save the optimizer.")
    made = report(trial(verdict=RecoveryVerdict.LOST), trial(SECOND, RecoveryVerdict.DIVERGED, finding=finding))
    assert [one.verdict for one, _why in made.broken] == [RecoveryVerdict.DIVERGED, RecoveryVerdict.LOST]
    assert "fix: Save the optimizer." in str(made)
    assert made.findings == [finding]


def test_the_first_line_names_the_worst_verdict_and_its_fault():
    made = report(trial(verdict=RecoveryVerdict.LOST, steps=2, details="the final weights: few"), trial(SECOND))
    assert made.broken[0][1] == "lost 2 steps: the final weights: few"
    assert made.first_line == "lost 2 steps, kill worker:0 before step 1"
    assert "did not recover from 1 of 2 faults" in made.headline
    assert report(trial()).first_line == report(trial()).headline


@pytest.mark.parametrize(("front_end", "told"), [(FrontEnd.TEST, "exact=True, and"), (FrontEnd.CHECK, "--exact, and")])
def test_a_broken_limit_is_named_in_the_words_of_the_caller(front_end, told):
    made = report(trial(verdict=RecoveryVerdict.EQUAL), exact=True)
    made = replace(made, comparison=SimpleNamespace(verdict="pass", front_end=front_end))
    assert f"    {told} the run is only equal" in str(made)
    assert made.first_line.startswith(told)


@pytest.mark.parametrize("verdict", ["known", "inconclusive", "pass"])
def test_a_recovery_is_no_pass_if_the_comparison_is_none(verdict):
    made = replace(report(trial()), comparison=SimpleNamespace(verdict=verdict, front_end=FrontEnd.TEST))
    assert (made.recovered, made.verdict, bool(made)) == (True, verdict, verdict == "pass")
    assert replace(made, trials=(trial(verdict=RecoveryVerdict.LOST),)).verdict == "fail"


def test_what_could_not_be_injected_says_why():
    made = replace(report(), not_injected="the run without a fault failed")
    assert made.verdict == "fail"
    assert made.first_line == str(made) == made.headline
    assert "not injected under multi_worker_mirrored[workers=2]: the run without a fault failed" in str(made)
    assert json.loads(made.to_json())["not_injected"] == "the run without a fault failed"


def test_json_and_page_have_every_trial(tmp_path):
    made = report(trial(detected=0.5), trial(SECOND, RecoveryVerdict.HUNG, details="<forever>"))
    page = write(made, tmp_path / "pages")
    told = json.loads((tmp_path / "pages" / f"{page.stem}.json").read_text())
    assert [one["verdict"] for one in told["trials"]] == ["exact", "hung"]
    assert told["trials"][0]["faults"] == ["kill worker:0 before step 1"]
    assert told["passed"] is False
    text = page.read_text()
    assert "hung, attempt 1: &lt;forever&gt;" in text
    assert text.count("<tr>") == 3
