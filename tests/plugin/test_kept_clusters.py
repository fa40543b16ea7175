"""A cluster is kept after an expected failure if it can be checked as after a passed test, and for the same Keras."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROJECT = {
    "conftest.py": """
        import os, pathlib, pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if call.when == "call" and hasattr(report, "wasxfail"):
                name = item.name.partition("[")[0]
                pathlib.Path(os.environ["PYTEST_SEEN"], f"{name}.txt").write_text(report.longreprtext)
            return report

        @pytest.fixture(autouse=True)
        def process(ddl_strategy, request):
            name = request.node.name.partition("[")[0]
            pathlib.Path(os.environ["PYTEST_SEEN"], name).write_text(str(os.getpid()))
    """,
    "test_one.py": """
        import sys, pytest

        pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)
        SETTING = 1
        known = pytest.mark.xfail(reason="known", raises=(AssertionError, ValueError, SystemExit))

        def test_first(ddl_strategy): pass

        @known
        def test_asserts(ddl_strategy): assert SETTING == 2

        def test_after_asserts(ddl_strategy): assert not hasattr(sys, "last_value")

        @pytest.mark.xfail(reason="known")
        def test_of_tensorflow(ddl_strategy):
            import tensorflow as tf
            tf.reshape(tf.range(3), (2,))

        def test_after_tensorflow(ddl_strategy): pass

        @known
        def test_leaves(ddl_strategy):
            global SETTING
            SETTING = 2
            assert SETTING == 1

        def test_after_leaves(ddl_strategy): assert SETTING == 1

        @known
        def test_exits(ddl_strategy): raise SystemExit(3)

        def test_after_exit(ddl_strategy): pass

        @known
        def test_otherwise(ddl_strategy):
            raise KeyError("not as expected")

        def test_after_failure(ddl_strategy): pass
    """,
    "test_keras.py": """
        import pytest
        from tensorflow import keras

        pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)

        def test_of_the_run(ddl_strategy): pass

        @pytest.mark.ddl(strategies="mirrored", timeout=100, keras="keras")
        def test_of_keras(ddl_strategy): assert keras.layers.Dense.__module__.startswith("keras.")

        @pytest.mark.ddl(strategies="mirrored", timeout=100, keras="tf_keras")
        def test_of_tf_keras(ddl_strategy): assert keras.layers.Dense.__module__.startswith("tf_keras.")
    """,
    "test_two.py": """
        import pytest

        pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=100)

        @pytest.mark.xfail(reason="known")
        def test_of_workers(ddl_strategy): raise ValueError

        def test_after_workers(ddl_strategy): pass
    """,
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seen")


@pytest.fixture(scope="module")
def outcome(new_project: Callable[..., Any], seen: Path) -> Any:
    return new_project(PROJECT).pytest("-p", "no:xdist", env={"PYTEST_SEEN": str(seen)}, timeout=300)


@pytest.mark.parametrize(
    ("name", "after", "kept"),
    [
        ("test_first", "test_asserts", True),
        ("test_asserts", "test_after_asserts", True),
        ("test_of_tensorflow", "test_after_tensorflow", True),
        ("test_leaves", "test_after_leaves", False),
        ("test_exits", "test_after_exit", False),
        ("test_otherwise", "test_after_failure", False),
        ("test_of_workers", "test_after_workers", False),
        ("test_of_the_run", "test_of_keras", True),
        ("test_of_the_run", "test_of_tf_keras", False),
    ],
)
def test_the_process_of_the_next_test(outcome: Any, seen: Path, name: str, after: str, kept: bool) -> None:
    passed = [case for full, case in outcome.cases.items() if full.startswith(f"{after}[")]
    assert [case.outcome for case in passed] == ["xfailed" if after == "test_asserts" else "passed"], outcome.stdout
    assert ((seen / name).read_text() == (seen / after).read_text()) is kept


def test_an_expected_failure_has_a_short_traceback(outcome: Any, seen: Path) -> None:
    text = (seen / "test_asserts.txt").read_text()
    assert text.startswith("Traceback (most recent call last)")
    assert text.endswith("assert 1 == 2")


def test_another_failure_has_the_usual_traceback(outcome: Any) -> None:
    case = outcome["test_otherwise[mirrored]"]
    assert case.outcome == "failed"
    assert '>       raise KeyError("not as expected")' in case.text
