"""Exit statuses of the command if the gate itself fails: never 1, which says that HEAD is slower."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pytest_ddl.bench.gate import GatePlan, GateResult, Verdict
from pytest_ddl.bench.gate.result import CellResult
from pytest_ddl.bench.gate.worktrees import Version
from pytest_ddl.bench.git import GitError
from pytest_ddl.cli import main
from pytest_ddl.commands import gate as command

GATE = ["gate", "a", "b", "--target", "m:f"]
VERSION = Version("main", "a" * 40, "t")


def run(monkeypatch: pytest.MonkeyPatch, outcome: Exception | GateResult, *options: str) -> int:
    def run_gate(_plan: GatePlan, _tell: object) -> GateResult:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(command, "run_gate", run_gate)
    return main([*GATE, *options])


def passed() -> GateResult:
    return GateResult(VERSION, VERSION, (CellResult("m:f", "one_device", Verdict.PASS, "as fast"),), 0.025)


@pytest.mark.parametrize(
    "error", [TypeError("unexpected keyword argument 'host_calls'"), OSError(28, "No space left on device")]
)
def test_an_error_of_the_gate_is_no_regression(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, error) == 4
    told = capsys.readouterr().err
    assert "Traceback (most recent call last)" in told
    assert told.splitlines()[-1].startswith(f"pytest-ddl gate: could not measure: {type(error).__name__}: {error}")


def test_what_git_says_is_given_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, GitError("git cannot check out main: no space")) == 4
    assert capsys.readouterr().err == "pytest-ddl gate: could not measure: git cannot check out main: no space\n"


def test_a_result_that_cannot_be_written_is_no_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, passed(), "--json", str(tmp_path / "gate.json")) == 0

    def full(_result: GateResult, _path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(GateResult, "save", full)
    assert run(monkeypatch, passed(), "--json", str(tmp_path / "gate.json")) == 4
    assert "No space left on device" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_reported_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, AssertionError("measured"), "--json", str(tmp_path)) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert run(monkeypatch, AssertionError("measured"), "--json", str(tmp_path / "none" / "gate.json")) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_closed_terminal_is_survived_under_nohup(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_gate(_plan: GatePlan, _tell: object) -> GateResult:
        signal.raise_signal(signal.SIGHUP)
        return passed()

    monkeypatch.setattr(command, "run_gate", run_gate)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(GATE) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
