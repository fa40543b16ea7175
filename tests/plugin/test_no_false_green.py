"""Every way in which a rank can fail to run a test, in one project: none of them may be green."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.plugin.conftest import PATIENT

pytestmark = pytest.mark.slow

PROJECT = {
    "conftest.py": """
        import pytest, pytest_ddl
        from pytest_ddl.items import on_ranks

        PATIENCE = on_ranks.SKIP_PATIENCE

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_setup(item):
            # The other rank never answers, so nothing comes later.
            on_ranks.SKIP_PATIENCE = 0.5 if "while_the_other_waits" in item.name else PATIENCE

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(pyfuncitem):
            rank = pytest_ddl.current_rank()
            if "body_skipped" in pyfuncitem.name and rank and rank.rank == 1:
                return True
    """,
    "test_ranks.py": """
        import os, signal, time
        import pytest, pytest_ddl
        import tensorflow as tf

        pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=30)

        def rank():
            return pytest_ddl.current_rank().rank

        def all_reduce(strategy):
            replica = lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))
            return float(strategy.experimental_local_results(strategy.run(replica))[0])

        @pytest.fixture
        def fails_in_setup(ddl_strategy):
            if rank() == 1:
                raise OSError("no set-up here")

        @pytest.fixture
        def fails_in_teardown(ddl_strategy):
            yield
            if rank() == 1:
                raise OSError("no tear-down here")

        def test_works(ddl_strategy):
            assert all_reduce(ddl_strategy) == 2.0

        def test_skips_on_one_rank(ddl_strategy):
            if rank() == 1:
                pytest.skip("not on this one")

        def test_xfails_on_one_rank(ddl_strategy):
            if rank() == 1:
                pytest.xfail("not on this one")

        def test_skips_while_the_other_waits(ddl_strategy):
            if rank() == 1:
                pytest.importorskip("no_such_module")
            all_reduce(ddl_strategy)

        def test_body_skipped(ddl_strategy):
            pass

        @pytest.fixture
        def replaces_the_body(request, ddl_strategy):
            if rank() == 1:
                request.node.obj = lambda **_fixtures: None

        def test_body_replaced(replaces_the_body):
            pass

        @pytest.fixture
        def wraps_the_body(request, ddl_strategy):
            body = request.node.obj
            request.node.obj = lambda **fixtures: body(**fixtures)

        class TestOfAClass:
            def test_body_wrapped(self, wraps_the_body):
                assert isinstance(self, TestOfAClass)

        def test_setup_fails_on_one_rank(fails_in_setup):
            raise AssertionError("the body ran")

        def test_teardown_fails_on_one_rank(fails_in_teardown):
            pass

        def test_exits_with_zero(ddl_strategy):
            if rank() == 1:
                print("last words", flush=True)
                os._exit(0)

        def test_is_killed(ddl_strategy):
            if rank() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            all_reduce(ddl_strategy)

        def test_raises_on_one_rank(ddl_strategy):
            if rank() == 1:
                raise ValueError("only on rank 1")
            all_reduce(ddl_strategy)

        def test_differs(ddl_strategy):
            assert rank() == 5, f"on {rank()}"

        @pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=5)
        def test_hangs(ddl_strategy):
            if rank() == 1:
                all_reduce(ddl_strategy)
            else:
                tf.constant(1.0)
                while True:
                    signal.pause()

        @pytest.fixture
        def hangs_in_teardown(ddl_strategy):
            yield
            while True:
                signal.pause()

        @pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=5)
        def test_hangs_in_teardown(hangs_in_teardown):
            pass

        def test_after_the_hang(ddl_strategy):
            assert all_reduce(ddl_strategy) == 2.0

        def returns_a_generator():
            yield
            raise AssertionError("never reached")

        def test_returns_a_generator(ddl_strategy):
            return returns_a_generator()
    """,
    "test_skipped_file.py": """
        import pytest, pytest_ddl

        if pytest_ddl.current_rank() and pytest_ddl.current_rank().rank == 1:
            pytest.skip("rank 1 lacks something", allow_module_level=True)

        @pytest.mark.xfail(reason="must not excuse it")
        @pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=30)
        def test_in_a_skipped_file(ddl_strategy):
            pass
    """,
}
LABEL = "[multi_worker_mirrored]"


@pytest.fixture(scope="module")
def run(new_project: Callable[..., Any]) -> Any:
    return new_project(PROJECT | PATIENT).pytest("-p", "patient")


def test_the_run_fails_and_leaves_nothing(run: Any) -> None:
    assert (run.status, run.processes, run.files) == (1, [], [])


def test_a_test_that_all_ranks_ran_passes(run: Any) -> None:
    assert run["test_works" + LABEL].outcome == "passed"


def test_a_body_that_a_fixture_wraps_is_still_seen(run: Any) -> None:
    assert run["test_body_wrapped" + LABEL].outcome == "passed"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("skips_on_one_rank", "the ranks disagree: rank 0 of 2 passed; rank 1 of 2 skipped (Skipped: not on this one)"),
        ("skips_while_the_other_waits", "the ranks disagree: rank 1 of 2 skipped (Skipped: could not import"),
        ("xfails_on_one_rank", "the ranks disagree: rank 0 of 2 passed; rank 1 of 2 xfailed"),
        ("body_skipped", "rank 1 of 2 reported a pass without having run the test's body"),
        ("returns_a_generator", "all 2 ranks reported a pass without having run the test's body"),
        ("body_replaced", "rank 1 of 2 reported a pass without having run the test's body"),
        ("exits_with_zero", "rank 1 of 2 (worker:1) exited with status 0 before it had finished"),
        ("is_killed", "rank 0 of 2 (worker:0) was killed by SIGKILL"),
        ("raises_on_one_rank", "[rank 1 of 2] ValueError: only on rank 1"),
        ("hangs", "deadline exceeded: no answer from all 2 ranks"),
    ],
)
def test_the_body_fails_with_its_cause(run: Any, name: str, message: str) -> None:
    case = run[f"test_{name}{LABEL}"]
    assert case.outcome == "failed"
    assert message in case.text


@pytest.mark.parametrize("phase", ["setup", "teardown"])
def test_a_fixture_that_fails_on_one_rank_is_an_error(run: Any, phase: str) -> None:
    case = run[f"test_{phase}_fails_on_one_rank{LABEL}"]
    assert case.outcome.endswith("error")
    assert "OSError: no " in case.text
    assert "rank 1 of 2" in case.text
    assert "the body ran" not in case.text


def test_a_file_that_one_rank_skips_is_an_error(run: Any) -> None:
    case = run["test_in_a_skipped_file" + LABEL]
    assert case.outcome == "error"
    assert "rank 1 of 2 did not collect it" in case.text
    assert "rank 1 lacks something" in case.text
    assert "IndexError" not in case.text


def test_a_teardown_that_hangs_meets_the_deadline(run: Any) -> None:
    case = run["test_hangs_in_teardown" + LABEL]
    assert case.outcome.endswith("error")
    assert "deadline exceeded" in case.text
    assert "in hangs_in_teardown" in case.text


def test_last_words_of_a_dead_rank_are_shown(run: Any) -> None:
    assert "last words" in run["test_exits_with_zero" + LABEL].text


def test_a_failing_rank_gives_a_verdict_while_others_wait_for_it(run: Any) -> None:
    case = run["test_raises_on_one_rank" + LABEL]
    assert case.seconds < 28, "the deadline of 30 s was waited for"
    error, stacks = case.text.index("ValueError: only on rank 1"), case.text.index("rank 0 of 2 (worker:0) stopped")
    assert error < stacks
    assert "in test_raises_on_one_rank" in case.text[stacks:]


def test_a_hanging_rank_shows_where(run: Any) -> None:
    text = run["test_hangs" + LABEL].text
    assert text.index("rank 0 of 2 (worker:0) deadline exceeded") < text.index("in test_hangs")
    assert "rank 1 of 2 (worker:1) deadline exceeded" in text


def test_after_a_timeout_the_next_test_gets_its_own_answer(run: Any) -> None:
    assert run["test_after_the_hang" + LABEL].outcome == "passed"


def test_different_failures_are_both_shown(run: Any) -> None:
    text = run["test_differs" + LABEL].text
    assert "AssertionError: on 0" in text
    assert "rank 1 of 2 failed differently" in text
    assert "AssertionError: on 1" in text


ENDS = """
    import pytest, pytest_ddl

    pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored", timeout=30)

    def test_one_leaves(ddl_strategy):
        if pytest_ddl.current_rank().rank:
            pytest.exit("enough", returncode=7)

    def test_is_not_run(ddl_strategy):
        pass
"""


def test_a_rank_that_exits_pytest_ends_the_session(new_project: Callable[..., Any]) -> None:
    run = new_project({"test_ends.py": ENDS}).pytest()
    assert (run.status, run.processes, run.files) == (7, [], [])
    assert "enough (rank 1 of 2)" in run.stdout
    assert "passed" not in run.stdout
