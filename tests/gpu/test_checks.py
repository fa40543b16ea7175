"""The runner of the checks on a GPU: it survives what fails, hangs or is missing, and ends in its time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import checks
from tests.gpu.checks import CHECKS, Check, Runner

ROOT = Path(__file__).parents[2]
HANGS = "import signal, threading; signal.signal(signal.SIGINT, signal.SIG_IGN); threading.Event().wait()"
WAITS = "import threading\ntry: threading.Event().wait()\nexcept KeyboardInterrupt: print('3 of 5 passed')"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PATIENCE", 0.5)
    monkeypatch.setattr(checks, "_ENDING", 0.5)


def check(name: str, stage: int, program: str, weight: int = 1) -> Check:
    return Check(name, stage, weight, lambda _folder, _seconds: [sys.executable, "-c", program])


def ran(folder: Path, given: Sequence[Check], seconds: float = 60.0) -> dict[str, tuple[str, str]]:
    runner = Runner(folder, seconds)
    runner.run(given)
    shown = (folder / "table.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split()[0] for line in shown] == [one.name for one in given]
    return {row.name: (row.result, row.told) for row in runner.rows}


def test_a_check_that_fails_stops_no_other(tmp_path: Path) -> None:
    given = [
        check("gpu", 0, "print('right')"),
        check("bad", 1, "print('2 failed'); raise SystemExit(1)"),
        check("dead", 1, "import os; os.abort()"),
        check("silent", 2, ""),
    ]
    found = ran(tmp_path, given)
    assert found == {
        "gpu": ("ok", "right"),
        "bad": ("status 1", "2 failed"),
        "dead": ("status -6", ""),
        "silent": ("ok", ""),
    }
    assert not Runner(tmp_path).run(given)
    assert Runner(tmp_path).run([given[0], given[3]])


@pytest.mark.slow
def test_a_check_that_hangs_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PATIENCE", 3.0)
    given = [
        check("gpu", 0, "", weight=50),
        check("waits", 1, WAITS, weight=3),
        check("hangs", 1, HANGS, weight=3),
        check("last", 2, "print('still')", weight=50),
    ]
    found = ran(tmp_path, given, seconds=100.0)
    assert found["hangs"][0] == "cut off"
    assert found["last"] == ("ok", "still")
    # An interrupted check has time for its summary.
    assert found["waits"] == ("cut off", "3 of 5 passed")


def test_without_a_gpu_nothing_else_runs(tmp_path: Path) -> None:
    found = ran(tmp_path, [check("gpu", 0, "raise SystemExit('TensorFlow sees no GPU')"), check("next", 1, "")])
    assert found == {"gpu": ("status 1", "TensorFlow sees no GPU"), "next": ("not run", "no GPU computes here")}


def test_no_check_begins_without_time_for_it(tmp_path: Path) -> None:
    assert ran(tmp_path, [check("gpu", 0, "")], seconds=0.1) == {"gpu": ("not run", "no time was left")}


def test_the_limits_of_all_checks_fit_into_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each check takes all of its time, and all of the time that its end may take."""
    monkeypatch.undo()
    now, limits = [0.0], []

    def uses_all(runner: Runner, given: Sequence[Check], limit: float) -> Any:
        now[0] += limit + checks._ENDING
        limits.append(limit)
        return [checks.Row(one.name, "ok") for one in given]

    monkeypatch.setattr(Runner, "_stage", uses_all)
    monkeypatch.setattr(checks.time, "monotonic", lambda: now[0])
    for names in ([], ["gpu", "core"], ["gpu"]):
        now[0] = 0.0
        limits.clear()
        assert Runner(tmp_path).run([one for one in CHECKS if not names or one.name in names])
        assert now[0] <= checks.SECONDS + 1e-6
        assert min(limits) >= 20
    assert checks.SECONDS <= 540


def test_the_time_that_a_check_leaves_goes_to_later_ones(tmp_path: Path) -> None:
    limits = []

    def seen(_folder: Path, seconds: float) -> list[str]:
        limits.append(seconds)
        return [sys.executable, "-c", ""]

    Runner(tmp_path, 300.0).run([Check("gpu", 0, 10, seen), Check("next", 1, 10, seen)])
    assert limits[1] > 250 > limits[0]


def test_a_tier_goes_on_where_it_ended(tmp_path: Path) -> None:
    line = {"test": "a.py::a", "variant": "mirrored", "outcome": "pass"}
    failed = {**line, "variant": "one_device", "outcome": "fail"}
    cut = json.dumps(line) + "\n" + json.dumps(failed) + '\n{"test": "a.py::'
    (tmp_path / "core-1.jsonl").write_text(cut, encoding="utf-8")
    (core,) = (one for one in CHECKS if one.name == "core")
    command = core.command(tmp_path, 60.0)
    assert f"--matrix-results={tmp_path / 'core-2.jsonl'}" in command
    assert json.loads((tmp_path / "core.kept.json").read_text()) == [["a.py::a", "mirrored"]]


def test_the_figures_of_planted_bugs_are_reported(tmp_path: Path) -> None:
    (planted,) = (one for one in CHECKS if one.name == "planted")
    rows = [
        {"which": "sin", "caught": True, "verdict": "fail"},
        {"which": "sin", "caught": False, "verdict": "pass"},
        {"which": "twin", "caught": False, "verdict": "pass"},
        {"which": "twin", "caught": False, "verdict": "fail"},
    ]
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "planted.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert planted.told(tmp_path) == "1 of 2 bugs caught, 1 of 2 correct twins pass"


@pytest.mark.parametrize("one", CHECKS, ids=lambda one: str(one.name))
def test_each_command_exists(one: Check, tmp_path: Path) -> None:
    """The files of each command exist, and so do its options in programs that take seconds to import."""
    _python, *words = one.command(tmp_path, 60.0)
    sources = {"tests.evaluation": "tests/evaluation/__main__.py", "pytest_ddl.cli": "pytest_ddl/commands/doctor.py"}
    if words[0] == "-c":
        compile(words[1], "check", "exec")
    elif words[:2] == ["-m", "pytest"]:
        assert [word for word in words if word == "suites" or (word.startswith("tests/") and (ROOT / word).is_file())]
    else:
        source = (ROOT / sources.get(words[1], words[0])).read_text(encoding="utf-8")
        assert [word for word in words if word.startswith("--") and f'"{word}"' not in source] == []


@pytest.mark.slow
def test_on_a_machine_without_a_gpu_the_script_says_so(tmp_path: Path) -> None:
    script = ROOT / "tests/gpu/run.sh"
    environ = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([script, tmp_path], env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert "TensorFlow sees no GPU" in lines[0]
    assert [line.split()[0] for line in lines] == [one.name for one in CHECKS]
    assert all("no GPU computes here" in line for line in lines[1:])
