"""``pytest-ddl faults``: without a test file, with its exit statuses and its reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(*arguments, cwd):
    command = [sys.executable, "-m", "pytest_ddl.cli", "faults", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ([], 2, "give either --every-point or --fault=FAULT"),
        (["--every-point", "--fault=kill worker:0 before step 1"], 2, "give either --every-point or --fault=FAULT"),
        (["--fault=kill worker:0"], 2, "is not a fault: write KIND TASK POINT"),
        (["--every-point", "--kind=kil"], 2, "invalid choice: 'kil'"),
        (["--every-point", "--phases=steps"], 2, "valid phases: training, step, save, restore, evaluation"),
        (["--every-pont"], 2, "give either --every-point or --fault=FAULT"),
        (["--every-point", "--max-lost-step=2"], 4, "there is no option --max-lost-step"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(tmp_path, arguments, status, told):
    done = run(f"{HERE}/recovery_programs.py:checkpointed", *arguments, cwd=tmp_path)
    assert done.returncode == status, done.stdout + done.stderr
    assert told in done.stderr
    assert told in done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_a_program_is_struck_and_its_report_shown(tmp_path):
    target = f"{HERE}/recovery_programs.py:checkpointed"
    given = ["--strategy=mirrored", "--global-batch-size=12", "--report=reports", "-p", "no:cacheprovider"]
    done = run(target, "--every-point", "--phases=restore,save", "--no-writes", "--exact", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recovered from 8 of 8 faults" in done.stdout
    assert "restore 1 of attempt 2  2 exact" in done.stdout
    assert json.loads((tmp_path / "reports" / "mirrored-replicas=2.json").read_text())["passed"]
    broken = run(
        f"{HERE}/recovery_programs.py:starts_again",
        *("--fault=kill worker:0 after step 5", "--max-lost-steps=3"),
        *given,
        cwd=tmp_path,
    )
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "max_lost_steps=3, and 5 steps were made again" in broken.stdout
    assert not json.loads((tmp_path / "reports" / "mirrored-replicas=2.json").read_text())["passed"]
