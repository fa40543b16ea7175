"""What is decided about a script from the report of its comparison."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.equivalence.findings import Doubt
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


def test_metrics_alone_may_stay_open(tmp_path: Path) -> None:
    report = report_with(Doubt("METRIC-EQ", "not compared: fn"))
    assert decide(report, tmp_path) is report


@pytest.mark.parametrize("check", ["STEP-EQ", "DATA-COVER"])
def test_anything_else_that_stays_open_leaves_a_script_undecided(check: str, tmp_path: Path) -> None:
    report = report_with(Doubt("METRIC-EQ", "not compared: fn"), Doubt(check, "the bound is too wide"))
    with pytest.raises(UndecidedError, match="the bound is too wide"):
        decide(report, tmp_path)
