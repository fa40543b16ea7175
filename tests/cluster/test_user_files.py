"""Check which files count as the user's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from pytest_ddl.cluster.state.user_files import is_user_file


def test_packages_that_are_installed_elsewhere_are_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pip install --target`` gives a folder that does not have the name of one for packages."""
    target, project, vendored = tmp_path / "target", tmp_path / "project", tmp_path / "project" / "lib"
    for folder, file in ((target, "one.py"), (project, "two/__init__.py"), (vendored, "three.py")):
        record = folder / "some-1.0.dist-info" / "RECORD"
        record.parent.mkdir(parents=True)
        record.write_text(f"{file},sha256=abc,12\nsome-1.0.dist-info/RECORD,,\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [f"{target}/", str(project), str(vendored), *sys.path])
    assert not is_user_file(str(target / "one.py"))
    assert not is_user_file(str(project / "two" / "part.py"))
    assert not is_user_file(str(vendored / "three.py"))
    for own in (target / "own.py", project / "own.py", vendored / "own" / "one.py", tmp_path / "other" / "one.py"):
        assert is_user_file(str(own))


def test_installed_files_are_not_the_users() -> None:
    assert is_user_file(__file__)
    assert not is_user_file(pytest.__file__)
    assert not is_user_file(np.__file__)
    assert not is_user_file("/somewhere/else/site-packages/tensorflow/__init__.py")
    assert not is_user_file(None)


def test_a_package_without_a_record_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first-1.0.dist-info").mkdir()
    record = tmp_path / "second-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("second.py,,\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert not is_user_file(str(tmp_path / "second.py"))
    assert is_user_file(str(tmp_path / "first.py"))
