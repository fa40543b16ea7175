"""Fixtures of wider scopes, forked processes and parameters: what a rank's pytest session must report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROJECT = {
    "conftest.py": """
        from pytest_ddl.cluster import pool

        # One warm process and no more: whatever is started evicts it.
        pool.MAX_WARM_PROCESSES = 1

        def pytest_collect_file(file_path, parent):
            parent.config.stash.setdefault("collected", []).append(file_path.name)
    """,
    "test_plain.py": "def test_plain(): pass\n",
    "test_a_fixtures.py": """
        import os, pytest
        import tensorflow as tf

        pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)
        CONFIG = {}

        @pytest.fixture(scope="module", autouse=True)
        def configured(ddl_strategy):
            os.environ["MODULE_WIDE"] = "set"
            CONFIG["module"] = "wide"
            tf.config.run_functions_eagerly(True)
            yield os.getpid()
            del os.environ["MODULE_WIDE"]
            CONFIG.clear()
            tf.config.run_functions_eagerly(False)

        @pytest.mark.parametrize("number", [1, 2, 3])
        def test_keeps_what_a_wide_fixture_set(ddl_strategy, configured, number, request):
            assert (os.environ["MODULE_WIDE"], CONFIG, tf.config.functions_run_eagerly()) == (
                "set", {"module": "wide"}, True)
            # The same process as for the first of them: nothing was retired.
            assert configured == os.getpid()
            assert request.config.stash.setdefault("pid", os.getpid()) == os.getpid()

        def test_a_rank_makes_no_nodes_of_other_files(ddl_strategy, request):
            assert "test_a_fixtures.py" in request.config.stash["collected"]
            assert "test_plain.py" not in request.config.stash["collected"]
    """,
    "test_b_fixtures.py": """
        import os, pytest
        import tensorflow as tf

        @pytest.mark.ddl(strategies="mirrored", timeout=100)
        def test_does_not_see_it(ddl_strategy):
            assert "MODULE_WIDE" not in os.environ
            assert not tf.config.functions_run_eagerly()
    """,
    "test_c_evicted.py": """
        import pytest
        pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)

        @pytest.fixture(scope="module")
        def fails_in_teardown(ddl_strategy):
            yield
            raise RuntimeError("no tear-down here")

        def test_evicted(ddl_strategy, fails_in_teardown): pass

        @pytest.mark.ddl(strategies="mirrored", isolation="fresh", timeout=100)
        def test_evicts(ddl_strategy): pass

        def test_after(ddl_strategy): pass
    """,
    "test_d_skipped.py": """
        import pytest
        from test_c_evicted import fails_in_teardown

        pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)

        def test_before_skipped(ddl_strategy, fails_in_teardown): pass

        @pytest.mark.skip(reason="not here")
        def test_skipped(ddl_strategy, fails_in_teardown): pass
    """,
    "test_e_retired.py": """
        import os, time
        import pytest
        from test_c_evicted import fails_in_teardown

        pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)

        def test_patches(ddl_strategy, fails_in_teardown):
            time.monotonic = time.time

        def test_after_patch(ddl_strategy): pass

        def test_child_answers(ddl_strategy):
            if os.fork() == 0:
                return
            os.wait()
            raise AssertionError("the rank itself failed")

        def test_child_raises(ddl_strategy):
            if os.fork() == 0:
                raise AssertionError("the child failed")
            os.wait()

        def test_child_that_ends(ddl_strategy):
            if os.fork() == 0:
                os._exit(3)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
    """,
    "test_f_parameters.py": """
        import dataclasses, enum, os, random
        from pathlib import Path
        import numpy as np
        import pytest

        pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=100)

        class Plain:
            def __init__(self): self.made_in = os.getpid()

        @dataclasses.dataclass
        class Point:
            x: float

        class Color(enum.Enum):
            RED = 1

        @pytest.mark.parametrize("x", [random.random()], ids=["x"])
        def test_random(ddl_strategy, x): pass

        @pytest.mark.xfail(reason="a difference is never expected")
        @pytest.mark.parametrize("x", [random.random()], ids=["x"])
        def test_random_expected(ddl_strategy, x): raise AssertionError

        @pytest.mark.parametrize("x", [{"a": [1, Point(random.random())]}], ids=["x"])
        def test_random_inside(ddl_strategy, x): pass

        @pytest.mark.parametrize("x", [np.random.normal(size=(30, 30))], ids=["x"])
        def test_random_array(ddl_strategy, x): pass

        @pytest.mark.parametrize("x", [
            Plain(), [Plain()], Point(float("nan")), Color.RED, Path("a"), {"b", "a", "c", "d"}, np.ones(3), len,
            lambda: 1, np.random.default_rng(1).normal(size=20), object(), np.float32(1), random.Random(3).random()])
        def test_equal(ddl_strategy, x): pass
    """,
}


@pytest.fixture(scope="module")
def outcome(new_project: Callable[..., Any]) -> Any:
    return new_project(PROJECT).pytest("-p", "no:xdist", timeout=500)


def test_what_a_wide_fixture_changes_stays_as_long_as_it(outcome: Any) -> None:
    for number in (1, 2, 3):
        assert outcome[f"test_keeps_what_a_wide_fixture_set[mirrored-{number}]"].outcome == "passed", outcome.stdout
    assert outcome["test_does_not_see_it[mirrored]"].outcome == "passed"


def test_a_rank_makes_no_nodes_of_other_files(outcome: Any) -> None:
    assert outcome["test_a_rank_makes_no_nodes_of_other_files[mirrored]"].outcome == "passed", outcome.stdout


@pytest.mark.parametrize("name", ["test_evicted", "test_before_skipped", "test_patches"])
def test_a_teardown_that_fails_early_is_an_error(outcome: Any, name: str) -> None:
    case = outcome[f"{name}[mirrored]"]
    assert "error" in case.outcome
    assert "no tear-down here" in case.text
    assert outcome.status == 1


@pytest.mark.parametrize("name", ["test_after", "test_after_patch"])
def test_the_next_item_is_not_to_blame(outcome: Any, name: str) -> None:
    assert outcome[f"{name}[mirrored]"].outcome == "passed"


def test_a_forked_child_does_not_answer(outcome: Any) -> None:
    assert outcome["test_child_answers[mirrored]"].outcome == "failed"
    assert "the rank itself failed" in outcome["test_child_answers[mirrored]"].text
    assert "End it with os._exit()" in outcome["test_child_answers[mirrored]"].text
    assert outcome["test_child_raises[mirrored]"].outcome == "passed"
    assert outcome["test_child_that_ends[mirrored]"].outcome == "passed"


@pytest.mark.parametrize("name", ["random", "random_expected", "random_inside", "random_array"])
def test_other_values_of_a_parameter_are_an_error(outcome: Any, name: str) -> None:
    case = outcome[f"test_{name}[multi_worker_mirrored-x]"]
    assert "error" in case.outcome
    assert "the parameter x is" in case.text
    assert "in the pytest process" in case.text


def test_equal_parameters_are_no_error(outcome: Any) -> None:
    found = [case.outcome for name, case in outcome.cases.items() if name.startswith("test_equal")]
    assert found == ["passed"] * 13, outcome.stdout


def test_nothing_is_left(outcome: Any) -> None:
    assert (outcome.processes, outcome.files) == ([], [])
