"""What a test of the plugin leaves behind does not reach the next one."""

from __future__ import annotations

import pytest

CONFTEST = "from tests.conftest import environment_of_this_test, modules_of_this_test"

TESTS = """
import importlib.util
import os
import sys

def test_leaves(tmp_path):
    os.environ.update(LEFT="1", CHANGED="1")
    del os.environ["DELETED"]
    path = tmp_path / "left.py"
    path.touch()
    spec = importlib.util.spec_from_file_location("left", path)
    sys.modules["left"] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(tmp_path))
    assert "pytest-of-" in sys.modules["left"].__file__

def test_finds_nothing():
    assert not any("test_leaves" in entry for entry in sys.path)
    assert "LEFT" not in os.environ
    assert os.environ["CHANGED"] == os.environ["DELETED"] == "0"
    assert "left" not in sys.modules
"""


def test_variables_modules_and_folders_of_a_test_are_forgotten(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CHANGED", "DELETED"):
        monkeypatch.setenv(name, "0")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=2)
