"""git as it is run for the gate, asv and the history."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddl.bench.git import GitError, GitUnusableError, git, read_log
from tests.bench.history.synthetic import repository


def test_variables_of_a_hook_do_not_lead_to_another_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, hooked = repository(tmp_path / "named", 2), repository(tmp_path / "hooked", 1)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "hooked" / ".git"))
    assert [commit for commit, _ in read_log(tmp_path / "named", "main").commits] == named
    assert len(hooked) == 1


def test_an_error_names_command_folder_and_reason(tmp_path: Path) -> None:
    with pytest.raises(GitError, match=r"git rev-parse in .*nowhere failed: .*nowhere") as raised:
        git(tmp_path / "nowhere", "rev-parse", "HEAD")
    assert raised.value.said in str(raised.value)


def test_git_that_is_missing_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GitUnusableError, match="cannot be run"):
        git(tmp_path, "status")
