"""What is decided about a script from the report of its comparison."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.equivalence.findings import Doubt
from pytest_ddl.run_facts import ScriptRecord
from pytest_ddl.trying.program import TriedScript
from pytest_ddl.trying.source import Script
from pytest_ddl.trying.verdict import UndecidedError, compare_script


def report_with(*doubts: Doubt) -> Any:
    """A report of a comparison without findings."""
    reasons = tuple(map(str, doubts))
    return SimpleNamespace(
        verdict="inconclusive" if doubts else "pass", findings=[], doubts=doubts, inconclusive=reasons,
        reference=None, distributed=None,
    )  # fmt: skip


def decide(report: Any, folder: Path) -> Any:
    (folder / "script.py").touch()
    return compare_script(lambda _train, **_given: report, TriedScript(Script.read(folder / "script.py")), {})


@pytest.mark.parametrize("told", [(), ("script.py:3", "script.py:9")], ids=["true number", "number of the strategy"])
def test_the_lines_that_share_the_number_of_replicas_are_listed(told: tuple[str, ...], tmp_path: Path) -> None:
    # A learning rate that grows with this number passes: both runs have the same one.
    (tmp_path / "script.py").touch()
    script = TriedScript(Script.read(tmp_path / "script.py"))
    report, texts = report_with(), list[str]()
    for side, found in (("reference", ScriptRecord(told=told)), ("distributed", ScriptRecord(counts_replicas=True))):
        rank = SimpleNamespace(facts={"script": found})
        setattr(report, side, SimpleNamespace(ranks=[rank], num_steps=4, errors=()))
    compare_script(lambda _train, **_given: report, script, {}, texts.append)
    lines = texts[-1].splitlines()
    assert lines[-1] == "compared:     4 step(s)"
    listed = [line for line in lines if line.startswith("replicas: ")]
    assert len(listed) == bool(told)
    assert all("(script.py:3, script.py:9)" in line for line in listed)


def test_metrics_alone_may_stay_open(tmp_path: Path) -> None:
    report = report_with(Doubt("METRIC-EQ", "not compared: fn"))
    assert decide(report, tmp_path) is report


@pytest.mark.parametrize("check", ["STEP-EQ", "DATA-COVER"])
def test_anything_else_that_stays_open_leaves_a_script_undecided(check: str, tmp_path: Path) -> None:
    report = report_with(Doubt("METRIC-EQ", "not compared: fn"), Doubt(check, "the bound is too wide"))
    with pytest.raises(UndecidedError, match="the bound is too wide"):
        decide(report, tmp_path)
