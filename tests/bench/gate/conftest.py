"""A repository with two commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.gate.repositories import git


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text("one = 1\n")
    (folder / ".gitignore").write_text("secret.txt\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    (folder / "train.py").write_text("two = 2\n")
    git(folder, "commit", "-qam", "two")
    git(folder, "tag", "-a", "v2", "-m", "annotated")
    return folder
