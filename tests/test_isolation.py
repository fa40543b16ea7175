"""What a test of the plugin leaves behind does not reach the next one, and what all share lasts."""

from __future__ import annotations

import pytest

from pytest_ddl.cluster.warm.fitting import Server
from pytest_ddl.cluster.warm.servers import use_of

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


def test_the_quick_loop_imports_a_slow_file_and_makes_none_of_its_items(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.conftest import pytest_pycollect_makeitem")
    pytester.makeini("[pytest]\nmarkers = slow")
    head = (
        "import pytest\n\ndef pytest_generate_tests(metafunc):\n    print('parameters of', metafunc.definition.name)\n"
    )
    pytester.makepyfile(
        test_whole=f"{head}\npytestmark = pytest.mark.slow\nprint('imported')\n\ndef test_a(): pass",
        test_part=f"{head}\n@pytest.mark.slow\ndef test_b(): pass\n\ndef test_c(): pass",
    )
    quick = pytester.runpytest_inprocess("-m", "not slow", "-s", "-q")
    quick.assert_outcomes(passed=1)
    assert [line for line in quick.outlines if "of test" in line or "imported" in line] == [
        "parameters of test_c",
        "imported",
    ]
    pytester.runpytest_inprocess("-q").assert_outcomes(passed=3)


@pytest.mark.slow
def test_the_warm_server_outlives_a_slow_run(warm_server: Server) -> None:
    use = use_of(warm_server)
    assert use is not None
    assert use["left"] > 2 * 60 * 60
