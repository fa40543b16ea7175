"""``pytest-ddl faults``: without a test file, with its exit statuses and its reports."""

from __future__ import annotations

import json
import os
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
        (["--every-point", "--phases=steps"], 2, "valid phases: training, step, save, writing, restore, evaluation"),
        (["--every-pont"], 2, "there is no option --every-pont (did you mean '--every-point'?)"),
        (["--every-point", "--report=/proc/x"], 2, "--report=/proc/x: nothing can be written in /proc"),
        (["--every-point", "--restart-on=miror"], 4, "--restart-on='miror': 'miror' is not a strategy"),
        (["--every-point", "--tasks=worker:7", "--strategy=mirrored"], 4, "tasks: worker:0"),
        (["--fault=kill ps:0 before step 1", "--strategy=mirrored"], 4, "--fault, --tasks or --kind: task='ps:0'"),
        (["--every-point", "--max-lost-step=2"], 2, "there is no option --max-lost-step"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(tmp_path, arguments, status, told):
    done = run(f"{HERE}/recovery_programs.py:checkpointed", *arguments, cwd=tmp_path)
    assert done.returncode == status, done.stdout + done.stderr
    assert told in done.stderr
    assert told in done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_sessions")
def test_a_program_is_struck_and_its_report_shown(tmp_path):
    target = f"{HERE}/recovery_programs.py:saves_once"
    given = ["--strategy=mirrored", "--global-batch-size=12", "--report=reports", "-p", "no:cacheprovider"]
    done = run(target, "--every-point", "--phases=restore,save", "--no-writes", "--exact", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recovered from 4 of 4 faults" in done.stdout
    assert "restore 1 of attempt 2  2 exact" in done.stdout
    assert json.loads((tmp_path / "reports" / "mirrored-replicas=2.json").read_text())["passed"]
    broken = run(
        f"{HERE}/recovery_programs.py:starts_again",
        *("--fault=kill worker:0 after step 5", "--max-lost-steps=3"),
        *given,
        cwd=tmp_path,
    )
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "--max-lost-steps=3, and 5 steps were made again" in broken.stdout
    assert not json.loads((tmp_path / "reports" / "mirrored-replicas=2.json").read_text())["passed"]


EXCUSED = """
import recovery_programs as programs

FAULT = {"global_batch_size": 12, "faults": "kill worker:0 before step 4"}


def test_known_and_right(ddl_equivalence):
    report = ddl_equivalence(programs.dropping, max_lost_steps=0, **FAULT)
    assert [one.verdict.value for one in report.trials] == ["exact"]
    assert (report.recovered, report.verdict) == (True, "known")


def test_known_and_wrong(ddl_equivalence):
    ddl_equivalence(programs.dropping_without_seeds, **FAULT)


def test_known_and_too_much_lost(ddl_equivalence):
    ddl_equivalence(programs.dropping, max_lost_steps=0, global_batch_size=12, faults="kill worker:0 before writing 7")


def test_declared_end(ddl_equivalence):
    ddl_equivalence(programs.raises_under_a_strategy, expect={"worker-raised": "one replica only"}, **FAULT)


def test_declared_end_without_faults(ddl_equivalence):
    declared = {"worker-raised": "one replica only"}
    ddl_equivalence(programs.raises_under_a_strategy, global_batch_size=12, expect=declared)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("warm_sessions")
def test_what_a_comparison_excuses_does_not_keep_a_fault_away(tmp_path):
    (tmp_path / "test_excused.py").write_text(EXCUSED)
    command = [sys.executable, "-m", "pytest", "-rfx", "--ddl-strategy=mirrored", "-p", "no:cacheprovider"]
    # A warm server fits only if the folders are kept from which it has imported the plugin.
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=environ)
    told = done.stdout
    assert done.returncode == 1, told + done.stderr
    assert "3 failed, 2 xfailed" in told
    assert "XFAIL test_excused.py::test_known_and_right" in told
    assert "XFAIL test_excused.py::test_declared_end_without_faults" in told
    assert "test_known_and_wrong[mirrored] - diverged, resume-" in told
    assert "test_known_and_too_much_lost[mirrored] - max_lost_steps=0, and 1 step" in told
    assert "test_declared_end[mirrored] - not injected under mirrored[replicas=2]" in told
    assert "the run without a fault ends by itself, by worker-raised" in told
