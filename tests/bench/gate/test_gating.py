"""Refusals and remarks of a gate before it measures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.bench.gate import GatePlan, GateResult, gating
from pytest_ddl.bench.gate.cell import Cell
from pytest_ddl.bench.gate.plan import is_same_environment
from pytest_ddl.bench.gate.result import CellResult
from pytest_ddl.bench.gate.target import VersionTarget
from pytest_ddl.bench.gate.verdict import Verdict
from pytest_ddl.bench.outcome import UsageError
from pytest_ddl.cli import main
from tests.bench.gate.made import cell, paired
from tests.bench.gate.repositories import git


def script(path: Path, line: str) -> str:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


def test_other_names_of_an_interpreter_are_no_other_environment(tmp_path: Path) -> None:
    same = script(tmp_path / "same", f'exec "{sys.executable}" "$@"')
    assert is_same_environment(sys.executable, sys.executable)
    assert is_same_environment(sys.executable, same)
    assert not is_same_environment(sys.executable, script(tmp_path / "paths", f'exec "{sys.executable}" -S "$@"'))
    variable = script(tmp_path / "variable", f'TF_ENABLE_ONEDNN_OPTS=0 exec "{sys.executable}" "$@"')
    assert not is_same_environment(sys.executable, variable)
    # A side of it will fail, and say why.
    assert not is_same_environment(sys.executable, script(tmp_path / "broken", "exit 1"))


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch, project: Path) -> Callable[..., GateResult]:
    """A gate in which nothing is launched: every cell passes."""

    @contextmanager
    def both_sides(*_given: object) -> Iterator[tuple[Any, Any, list[str]]]:
        yield cell().base, cell().head, []

    def measure_cell(measured: Cell, _tell: object) -> CellResult:
        return CellResult(str(measured.target), measured.strategy, Verdict.PASS, "as fast", launches=(paired(0.0),))

    monkeypatch.setattr(gating, "both_sides", both_sides)
    monkeypatch.setattr(gating, "measure_cell", measure_cell)
    monkeypatch.setattr(gating, "_variants", lambda _plan: {"one_device": (1, 0, "")})
    monkeypatch.setattr(gating, "_missing", lambda *_given: "")
    plan = GatePlan("main", "main", ("train:train",), counters_only=True, repository=project)
    return lambda base, head, **given: gating.run_gate(replace(plan, base=base, head=head, **given))


def test_the_same_commit_and_environment_under_another_name_are_refused(
    measure: Callable[..., GateResult], tmp_path: Path
) -> None:
    same = script(tmp_path / "same", f'exec "{sys.executable}" "$@"')
    with pytest.raises(UsageError, match="interpreter of another environment as --head-python"):
        measure("main", "v2", head_python=same)
    assert measure("main", "v2", head_python=same, a_a=True).passed
    assert measure("main~1", "main", head_python=same).notes == ()


def test_two_environments_with_the_same_releases_are_noted(measure: Callable[..., GateResult], tmp_path: Path) -> None:
    other = script(tmp_path / "other", f'OTHER=1 exec "{sys.executable}" "$@"')
    (note,) = measure("main", "main", head_python=other).notes
    assert "the same releases (python 3.11, tensorflow 2.21.0)" in note


def test_commits_of_base_that_head_lacks_are_noted(measure: Callable[..., GateResult], project: Path) -> None:
    assert measure("main~1", "main").notes == ()
    assert measure("main", "WORKTREE", a_a=True).notes == ("A/A: the gate itself is measured",)
    git(project, "checkout", "-q", "-b", "topic", "main~1")
    (project / "other.py").write_text("")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "topic")
    for head in ("topic", "WORKTREE"):
        (note,) = measure("main", head).notes
        assert "lacks 1 commit(s) of BASE main" in note
        assert f"give the merge base as BASE: {git(project, 'rev-parse', 'main~1')[:10]}" in note
    (note,) = measure("main", "main~1").notes
    assert "is older than BASE main" in note


@pytest.mark.usefixtures("measure")
def test_a_gate_that_fails_in_one_cell_measures_the_others(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    measured = gating.measure_cell

    def first_fails(one: Cell, tell: Callable[[str], None]) -> CellResult:
        if one.strategy == "one_device":
            raise OSError(28, "No space left on device")
        return measured(one, tell)

    monkeypatch.setattr(gating, "measure_cell", first_fails)
    monkeypatch.setattr(gating, "_variants", lambda _plan: {"one_device": (1, 0, ""), "mirrored": (1, 0, "")})
    told: list[str] = []
    plan = GatePlan("main~1", "main", ("train:train",), counters_only=True, repository=project)
    result = gating.run_gate(plan, told.append)
    assert [one.verdict for one in result.cells] == [Verdict.ERROR, Verdict.PASS]
    assert result.cells[0].reason == "the gate itself failed: OSError: [Errno 28] No space left on device"
    assert result.verdict is Verdict.ERROR
    assert any("Traceback" in line for line in told)


def test_a_target_that_no_version_has_is_named_with_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "training.py").touch()
    side = replace(cell().base, root=tmp_path, paths=(tmp_path,))
    of_both = gating._missing(VersionTarget.parse("trianing:train"), side, side)
    assert "have no trianing" in of_both
    assert "Did you mean training?" in of_both
    of_one = gating._missing(VersionTarget.parse("other:train"), side)
    assert "has no other, so there is nothing to compare (looked in .)" in of_one
    assert "To measure a new target, add it to BASE, too" in of_one


def test_a_function_that_no_version_has_is_refused_before_anything_is_launched(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gating, "measure_cell", lambda *_given: pytest.fail("a cell was measured"))
    (project / "train.py").write_text("def train(run): ...\n\ndef other(run): ...\n")
    git(project, "commit", "-qam", "three")
    (project / "train.py").write_text("def train(run): ...\n")
    options = ["--repository", str(project), "--quiet", "--counters-only", "--target"]
    assert main(["gate", "main", "WORKTREE", *options, "train:trian", "--target", "train:train"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "pytest-ddl gate: --target='train:trian': train.py has no 'trian' (did you mean 'train'?); its functions: "
        "train, in both versions"
    )
    assert main(["gate", "main", "WORKTREE", *options, "train.py:other"]) == 4
    out = capsys.readouterr().out
    assert "train.py has no 'other'; its functions: train" in " ".join(out.split())


def test_a_file_that_makes_its_functions_otherwise_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("from helpers import *\n")
    (tmp_path / "broken.py").write_text("def train(run) pass\n")
    assert VersionTarget.parse("made:train").problem(tmp_path, [tmp_path]) == ""
    assert VersionTarget.parse("broken:train").problem(tmp_path, [tmp_path]) == ""
    assert VersionTarget.parse("absent:train").problem(tmp_path, [tmp_path]) == ""
