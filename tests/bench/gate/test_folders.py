"""The gate's folders: kept while it lives, and removed after it was killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_ddl.bench.gate.worktrees import PREFIX, Repository, held_folder
from tests.bench.gate.repositories import git

_HOLDS = """
from pytest_ddl.bench.gate.worktrees import held_folder
with held_folder("launch-") as folder:
    (folder / "BASE").mkdir()
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_a_folder_is_gone_after_an_error() -> None:
    def fail() -> None:
        with held_folder() as folder:
            held.append(folder)
            raise KeyboardInterrupt

    held: list[Path] = []
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not held[0].exists()


def test_what_a_killed_gate_left_is_removed_by_the_next_one() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as gate:
        assert gate.stdout is not None
        folder = Path(gate.stdout.readline().strip())
        with held_folder():
            assert (folder / "BASE").is_dir(), "it is still in use"
        os.kill(gate.pid, signal.SIGKILL)
        gate.wait()
    assert folder.is_dir()
    with held_folder("launch-"):
        assert not folder.exists()


def test_what_holds_no_lock_of_ours_stays(temporary: Path) -> None:
    mine = temporary / f"{PREFIX}notes"
    mine.mkdir()
    with held_folder() as folder, held_folder():
        assert folder.is_dir()
    assert mine.is_dir()


def test_git_forgets_the_worktrees_of_a_killed_gate_and_no_others(project: Path, temporary: Path) -> None:
    killed, own = temporary / f"{PREFIX}x" / "base", temporary / "on-a-drive"
    for folder in (killed, own):
        git(project, "worktree", "add", "--detach", "--quiet", str(folder), "main")
        shutil.rmtree(folder)
    Repository(project).forget()
    listed = git(project, "worktree", "list", "--porcelain")
    assert str(killed) not in listed
    assert str(own) in listed
