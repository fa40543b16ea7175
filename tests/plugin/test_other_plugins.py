"""Ddl tests together with what other plugins do to the protocol of a test: time limits, reruns, signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

INTERRUPTED = {
    "test_interrupted.py": """
        import signal
        import pytest

        pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)

        class Alarm(Exception):
            pass

        @pytest.fixture
        def alarmed(ddl_strategy):
            yield
            signal.pause()

        @pytest.mark.alarm(error=pytest.fail.Exception)
        def test_fails(ddl_strategy):
            print("before the alarm")
            signal.pause()

        def test_next(ddl_strategy):
            pass

        @pytest.mark.alarm(error=Alarm)
        @pytest.mark.xfail(raises=Alarm, strict=True)
        def test_expected(ddl_strategy):
            signal.pause()

        @pytest.mark.alarm(error=Alarm)
        def test_teardown(alarmed):
            pass

        def test_last(ddl_strategy):
            pass

        def test_plain():
            pass
    """,
    # What pytest-timeout does with its method "signal", here as soon as the phase has begun in the ranks.
    "conftest.py": """
        import signal
        import pytest, pytest_ddl

        def pytest_configure(config):
            config.addinivalue_line("markers", "alarm(error): raised by a signal handler")

        def arm(item, phase):
            mark = item.get_closest_marker("alarm")
            if mark is None or pytest_ddl.current_rank() is not None:
                return
            if phase == ("teardown" if "teardown" in item.name else "call"):
                def ring(number, frame):
                    raise mark.kwargs["error"]("the alarm rang")
                signal.signal(signal.SIGALRM, ring)
                signal.setitimer(signal.ITIMER_REAL, 5.0)

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_call(item):
            arm(item, "call")

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_teardown(item):
            arm(item, "teardown")
    """,
}


@pytest.fixture(scope="module")
def interrupted(new_project: Callable[..., Any]) -> Any:
    return new_project(INTERRUPTED).pytest()


def test_an_exception_of_a_signal_handler_fails_its_test_only(interrupted: Any) -> None:
    assert "INTERNALERROR" not in interrupted.stdout
    assert interrupted.outcomes == {
        "test_fails[mirrored]": "failed",
        "test_next[mirrored]": "passed",
        "test_expected[mirrored]": "xfailed",
        "test_teardown[mirrored]": "error",
        "test_last[mirrored]": "passed",
        "test_plain": "passed",
    }
    assert not interrupted.processes


@pytest.mark.nightly(each_commit=("test_teardown",))
@pytest.mark.parametrize("name", ["test_fails", "test_teardown"])
def test_it_is_shown_with_the_stacks_of_the_ranks(interrupted: Any, name: str) -> None:
    text = interrupted[f"{name}[mirrored]"].text
    assert "the alarm rang" in text
    assert "rank 0 of 1 (worker:0) was interrupted" in text
    assert f"in {'alarmed' if name == 'test_teardown' else name}" in text


def test_output_from_before_the_interruption_is_kept(interrupted: Any) -> None:
    assert "before the alarm" in interrupted["test_fails[mirrored]"].text


TIMED = {
    "pytest.ini": "[pytest]\naddopts = --strict-markers --strict-config\ntimeout = 100\nfilterwarnings = error\n",
    "test_timed.py": """
        import signal
        import pytest

        pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)

        @pytest.mark.timeout(5)
        def test_signal(ddl_strategy):
            signal.pause()

        @pytest.mark.timeout(5, method="thread")
        def test_thread(ddl_strategy):
            signal.pause()

        @pytest.mark.timeout(5, func_only=True)
        def test_body(ddl_strategy):
            signal.pause()

        def pauses():
            signal.pause()

        @pytest.mark.timeout(10)
        def test_driving(ddl_cluster):
            ddl_cluster.run(pauses)

        def test_next(ddl_strategy):
            pass
    """,
}


@pytest.fixture(scope="module")
def timed(new_project: Callable[..., Any]) -> Any:
    pytest.importorskip("pytest_timeout", reason="pytest-timeout is not installed")
    return new_project(TIMED).pytest()


@pytest.mark.nightly
def test_limits_of_pytest_timeout_are_deadlines(timed: Any) -> None:
    assert "INTERNALERROR" not in timed.stdout
    assert timed.outcomes == {
        "test_signal[mirrored]": "failed",
        "test_thread[mirrored]": "failed",
        "test_body[mirrored]": "failed",
        "test_driving[mirrored]": "failed",
        "test_next[mirrored]": "passed",
    }
    for name in ("signal", "thread", "body"):
        text = timed[f"test_{name}[mirrored]"].text
        assert "Timeout (>5.0s) from pytest-timeout: deadline exceeded: no answer from the rank" in text
        assert f"in test_{name}" in text
    assert "Timeout (>10.0s) from pytest-timeout" in timed["test_driving[mirrored]"].text


FLAKY = {
    "pytest.ini": "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n",
    "test_flaky.py": """
        import os, pathlib
        import pytest

        pytestmark = pytest.mark.ddl(strategies="mirrored")
        folder = pathlib.Path(os.environ["PYTEST_ATTEMPTS"])

        def attempt(name):
            path = folder / name
            with path.open("a") as file:
                file.write(f"{os.getpid()}\\n")
            return len(path.read_text().splitlines())

        @pytest.mark.flaky(reruns=2)
        def test_dies_once(ddl_strategy):
            if attempt("dies") == 1:
                os._exit(0)

        @pytest.mark.flaky(reruns=2)
        def test_fails_once(ddl_strategy):
            assert attempt("fails") == 2

        @pytest.mark.flaky(reruns=1)
        def test_fails_always(ddl_strategy):
            assert attempt("always") == 0

        def test_dies(ddl_strategy):
            os._exit(0)

        def test_next(ddl_strategy):
            pass
    """,
}


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("attempts")


@pytest.fixture(scope="module")
def flaky(new_project: Callable[..., Any], attempts: Any) -> Any:
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    return new_project(FLAKY).pytest(env={"PYTEST_ATTEMPTS": str(attempts)})


@pytest.mark.nightly
def test_reruns_are_on_a_new_cluster(flaky: Any, attempts: Any) -> None:
    assert "INTERNALERROR" not in flaky.stdout
    assert flaky.outcomes == {
        "test_dies_once[mirrored]": "passed",
        "test_fails_once[mirrored]": "passed",
        "test_fails_always[mirrored]": "failed",
        "test_dies[mirrored]": "failed",
        "test_next[mirrored]": "passed",
    }
    for name in ("dies", "fails", "always"):
        pids = (attempts / name).read_text().split()
        assert len(pids) == len(set(pids)) == 2, name
    assert "3 rerun" in flaky.stdout
