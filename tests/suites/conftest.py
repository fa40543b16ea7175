"""Runs a suite of one test file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def run_suite(pytester):
    """Return a function that runs a suite of one test file, with the other files of the real suite."""
    import suites

    source = Path(suites.__file__).parent
    target = pytester.path / "suites"
    target.mkdir()
    for name in source.iterdir():
        if name.suffix in (".py", ".toml") and not name.name.startswith("test_"):
            shutil.copy(name, target)
    shutil.copytree(source / "repros", target / "repros")  # entries of known failures name them
    shutil.copytree(source / "matrix", target / "matrix")  # has a plugin of pytest

    def run(tests, *arguments, failures=None):
        (target / "test_one.py").write_text(tests)
        if failures is not None:
            (target / "expected_failures.toml").write_text(failures)
        return pytester.runpytest_subprocess("suites", "-c", "/dev/null", "--rootdir=.", *arguments)

    return run
