"""Check the messages for a side that gave no blocks, and for an interrupted gate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.bench.gate.plan import GatePlan
from pytest_ddl.bench.gate.sides import MeasurementError, Running, Side, explained, provenance
from pytest_ddl.bench.gate.target import VersionTarget
from pytest_ddl.bench.launching.pacing import Pacer, PacingError
from pytest_ddl.bench.launching.processes import Processes
from pytest_ddl.bench.launching.records import BenchSpec
from pytest_ddl.cli import main
from pytest_ddl.commands import gate as command
from tests.bench.gate.made import launch

SIDE = Side("HEAD", "c" * 40, Path("/v"), (Path("/v"),), Path("/u"), Path("/i"), Path("/i/pytest_ddl/__init__.py"))


def running(folder: Path, script: str, report: dict[str, Any] | None = None, **given: Any) -> Running:
    """A side whose process runs a script instead, and has ended."""
    run = Running(SIDE, folder / "HEAD", Processes("test-gate-sides"), 1)
    (folder / "HEAD").mkdir()
    if report is not None:
        (folder / "HEAD" / "report-0.json").write_text(json.dumps(report))
    run._bench = BenchSpec()
    with (folder / "HEAD" / "log").open("wb") as log:
        run.process = subprocess.Popen([sys.executable, "-c", script], stderr=log, bufsize=0, **given)
        run.process.wait(timeout=60)
    return run


def told(run: Running, late: bool = False) -> str:
    return str(explained([run], PacingError("a rank closed its connection"), late))


def test_the_error_that_a_side_reports_is_reported(tmp_path: Path) -> None:
    assert told(running(tmp_path, "", {"error": "boom"})) == "HEAD (cccccccccc) failed: boom"


def test_a_program_that_ends_by_itself_is_told_the_fix(tmp_path: Path) -> None:
    words = told(running(tmp_path, "", {"launch": launch().as_json()}))
    assert "ended by itself, after 2 blocks" in words
    assert "Remove the steps= or epochs=" in words


def test_a_side_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    script = "import os, sys; sys.stderr.write('last words'); sys.stderr.flush(); os.kill(os.getpid(), 9)"
    assert (
        told(running(tmp_path, script)) == "HEAD (cccccccccc) was killed by signal 9, and left no report:\nlast words"
    )


def test_for_a_side_that_is_late_the_option_is_named(tmp_path: Path) -> None:
    run = running(tmp_path, "")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as run.process:
        words = told(run, late=True)
        run.process.kill()
    assert "took more than 120 s" in words
    assert "--timeout" in words


def test_an_interpreter_that_dies_between_launches_is_reported(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("def train(run): ...")
    run = running(tmp_path, "raise SystemExit('last words')", stdin=subprocess.PIPE)
    run.side = replace(SIDE, root=tmp_path, paths=(tmp_path,))
    with Pacer(tmp_path) as pacer, pytest.raises(MeasurementError) as failure:
        run.ask(pacer, VersionTarget("program", "train"), "one_device", BenchSpec(), 0, False, 0)
    assert str(failure.value) == "HEAD (cccccccccc) ended with status 1 and no report:\nlast words"
    assert run.process is not None
    assert run.process.stdin is not None
    run.process.stdin.close()


def report(program: str, package: str = "/i/pytest_ddl/__init__.py") -> dict[str, Any]:
    told = launch().as_json()
    told["ranks"][0]["program"] = program
    return {"launch": told, "pytest_ddl": "0.1.0", "pytest_ddl_file": package, "interpreter": "/python"}


def test_code_of_another_folder_is_no_measurement() -> None:
    assert provenance(SIDE, report("/v/train.py"))["program"] == "/v/train.py"
    with pytest.raises(MeasurementError, match=r"HEAD ran /elsewhere/train.py, which is not in /v"):
        provenance(SIDE, report("/elsewhere/train.py"))
    with pytest.raises(MeasurementError, match="measured by the pytest-ddl of /other"):
        provenance(SIDE, report("/v/train.py", "/other/__init__.py"))


def test_code_of_the_checkout_is_taken_from_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "checkout" / "src"), str(tmp_path / "tools")]))
    environ = replace(SIDE, checkout=(tmp_path / "checkout").resolve()).environ(tmp_path, 7)
    assert environ["PYTHONPATH"] == os.pathsep.join(["/i", "/v", str(tmp_path / "tools")])
    assert environ["PYTHONHASHSEED"] == "7"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_gate_has_no_verdict(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaned = []

    def run_gate(_plan: GatePlan, _tell: object) -> None:
        try:
            signal.raise_signal(number)
        finally:
            # A second one must not interrupt what cleans up.
            signal.raise_signal(number)
            cleaned.append(True)

    monkeypatch.setattr(command, "run_gate", run_gate)
    before = signal.getsignal(number)
    assert main(["gate", "a", "b", "--target", "m:f"]) == 130
    assert cleaned == [True]
    assert signal.getsignal(number) is before
    assert "there is no verdict" in capsys.readouterr().err
