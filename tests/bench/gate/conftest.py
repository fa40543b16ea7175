"""A repository with two commits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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


@pytest.fixture(autouse=True)
def modules_of_this_test() -> Iterator[None]:
    """What a test imports from its temporary folder is gone after it: the gate looks at every module there is."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "pytest-of-" in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]
