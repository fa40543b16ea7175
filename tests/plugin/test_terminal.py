"""Terminal output of comparisons: the running line, the cause in pytest's summary, the reasons of skips."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddl.hints import FrontEnd
from pytest_ddl.terminal import KNOWN_BEHAVIOR, NOT_COMPARED, TITLE, _show_known, cause_in_one_line

SHOWING = """
    from pytest_ddl.terminal import status_line

    def test_long(request):
        with status_line(request.config) as show:
            show("comparing mirrored: " + 100 * "x")
            show("comparing mirrored: done soon")

    def test_other():
        print("captured")
"""
CLEARED = "\x1b[K\r\x1b[1A"


def on_terminal(pytester: pytest.Pytester, *arguments: str, term: str = "xterm") -> str:
    """Run pytest on a terminal of 60 columns and return what it wrote."""
    reader, writer = os.openpty()
    environ = {**os.environ, "TERM": term, "COLUMNS": "60"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    process = subprocess.Popen(command, stdout=writer, stdin=writer, cwd=pytester.path, env=environ)
    os.close(writer)
    written = b""
    while True:
        try:
            part = os.read(reader, 4096)
        except OSError:
            break
        if not part:
            break
        written += part
    os.close(reader)
    assert process.wait() == 0, written.decode()
    return written.decode()


def test_a_terminal_shows_one_line_that_is_rewritten(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_some=SHOWING)
    written = on_terminal(pytester)
    assert f"\r\n\x1b[Kcomparing mirrored: {39 * 'x'}\r\x1b[1A\x1b[14G" in written, "cut to the width; back to the dots"
    assert "\x1b[Kcomparing mirrored: done soon\r" in written
    after = written.rpartition("done soon")[2]
    assert CLEARED in after
    assert "2 passed" in after


@pytest.mark.parametrize(
    ("arguments", "term"), [(["-s"], "xterm"), (["-n", "1"], "xterm"), ([], "dumb"), (["-p", "no:terminal"], "xterm")]
)
def test_nothing_is_shown_if_it_would_disturb(pytester: pytest.Pytester, arguments: list[str], term: str) -> None:
    pytester.makepyfile(test_some=SHOWING)
    assert "comparing" not in on_terminal(pytester, *arguments, term=term)


def test_nothing_is_shown_in_a_log(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    pytester.makepyfile(test_some=SHOWING)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    assert "comparing" not in result.stdout.str()
    assert "\x1b" not in result.stdout.str()


def report_with(**finding: Any) -> Any:
    given = {"cause": "lost-update", "step": 3, "variable": "dense/kernel", "observed": None, "message": "differs"}
    return SimpleNamespace(findings=[SimpleNamespace(**{**given, **finding})], doubts=())


@pytest.mark.parametrize(
    ("finding", "room", "text"),
    [
        ({}, 80, "lost-update at step 3: dense/kernel"),
        ({}, 25, "lost-update at step 3"),
        ({"variable": None, "observed": "ValueError: shapes differ"}, 40, "lost-update at step 3: ValueError: sh..."),
        ({}, 5, "lost-update"),
        ({"cause": None}, 80, "cause not known at step 3: dense/kernel"),
        ({"step": 0}, 80, "lost-update before the first step: dense/kernel"),
        ({"step": None, "variable": None}, 80, "lost-update: differs"),
        ({"variable": None, "observed": "ValueError: no\nmore"}, 80, "lost-update at step 3: ValueError: no"),
    ],
)
def test_the_cause_comes_first_with_what_fits(finding: dict[str, Any], room: int, text: str) -> None:
    assert cause_in_one_line(report_with(**finding), room) == text


def test_an_inconclusive_comparison_begins_with_its_reason() -> None:
    report: Any = SimpleNamespace(findings=[], doubts=[SimpleNamespace(reason="the program draws other data")])
    assert cause_in_one_line(report, 20) == "inconclusive: the program draws other data"


@pytest.mark.slow
def test_summary_begins_with_the_cause_and_groups_reasons(new_project: Callable[..., Any]) -> None:
    from tests.plugin.test_check_command import PROGRAM

    tests = """
        import pytest
        from train import right, wrong

        def test_right(ddl_equivalence):
            ddl_equivalence(right, global_batch_size=12, steps=2)

        def test_wrong(ddl_equivalence):
            ddl_equivalence(wrong, global_batch_size=12, steps=2)

        @pytest.mark.xfail(reason="not written yet")
        def test_expected(ddl_strategy):
            raise AssertionError

        def test_of_another_plugin():
            pytest.skip("has nothing to do with strategies")
    """
    project = new_project({"train.py": PROGRAM, "test_it.py": tests})
    run = project.pytest("--ddl-strategy=mirrored,tpu", env={"CI": "1", "COLUMNS": "80"}, timeout=500)
    lines = run.stdout.splitlines()
    (failed,) = (line for line in lines if line.startswith("FAILED"))
    assert failed.startswith("FAILED test_it.py::test_wrong[mirrored] - gradient-scaled-by-replica-count")
    assert len(failed) <= 80
    section = run.stdout.partition(TITLE)[2].partition("short test summary")[0]
    assert "3 skipped: tpu: " in section
    assert "1 xfailed: not written yet" in section
    assert "nothing to do with strategies" not in section
    assert "comparing" not in run.stdout


@pytest.mark.parametrize("options", [[], ["-n", "1"]])
def test_reasons_are_shown_without_a_comparison(pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.makepyfile(test_some="def test_cluster(ddl_strategy): ...")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--ddl-strategy=tpu", *options)
    result.assert_outcomes(skipped=1)
    section = result.stdout.str().partition(TITLE)[2]
    assert "1 skipped: tpu: " in section


def test_a_log_says_what_a_long_comparison_does(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_some="""
            import itertools, time
            from pytest_ddl.terminal import status_line

            def test_long(request, monkeypatch):
                clock = itertools.count(step=20.0)
                with monkeypatch.context() as patched:
                    patched.setattr(time, "monotonic", lambda: next(clock))
                    with status_line(request.config) as show:
                        show("first, after 20 seconds")
                        show("second, after 40 seconds")
                        show("third, after 20 more")
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    assert "\nsecond, after 40 seconds\n" in result.stdout.str()
    assert "first" not in result.stdout.str()
    assert "third" not in result.stdout.str()


def test_an_interrupted_run_of_xdist_names_the_tests_that_had_begun(pytester: pytest.Pytester) -> None:
    """One worker interrupts the controller once the controller knows that both have begun."""
    pytester.makeconftest(
        """
        import pathlib, pytest

        class Controller:
            @pytest.hookimpl(trylast=True)
            def pytest_runtest_logstart(self, nodeid):
                pathlib.Path(nodeid.rpartition("::")[2]).touch()

        def pytest_configure(config):
            # The variable of xdist says nothing here: a controller inherits it where this test runs on a worker.
            if not hasattr(config, "workerinput"):
                config.pluginmanager.register(Controller())
        """
    )
    pytester.makepyfile(
        test_some="""
            import os, pathlib, signal, time

            def test_ended():
                pass

            def test_interrupting():
                deadline = time.monotonic() + 60
                while not all(map(os.path.exists, ("test_interrupting", "test_interrupted"))):
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                os.kill(os.getppid(), signal.SIGINT)
                time.sleep(60)
        """,
        test_other="""
            import time

            def test_interrupted():
                time.sleep(60)
        """,
    )
    # Each worker gets a file.
    given = ("-p", "no:cacheprovider", "-n2", "--dist=loadfile")
    result = pytester.runpytest_subprocess(*given)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    _before, title, after = result.stdout.str().partition("interrupted before they ended")
    assert title
    assert "test_some.py::test_interrupting" in after
    assert "test_other.py::test_interrupted" in after
    assert "test_some.py::test_ended" not in after


@pytest.mark.parametrize(
    ("ended", "count"),
    [((), "2 tests: "), (("a",), "2 tests, 1 of them not compared: "), (("a", "b"), "2 tests, not compared: ")],
    ids=["none", "one", "all"],
)
def test_a_known_behavior_that_ended_a_run_is_told_from_one_that_was_compared(
    ended: tuple[str, ...], count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "keras-fit-multi-worker"
    reports = [
        SimpleNamespace(
            nodeid=test, user_properties=[(KNOWN_BEHAVIOR, name), *([(NOT_COMPARED, name)] if test in ended else [])]
        )
        for test in ("a", "b")
    ]
    written: list[str] = []
    reporter = SimpleNamespace(
        getreports=lambda outcome: reports if outcome == "xfailed" else [],
        section=written.append,
        write_line=written.append,
        config=None,
    )
    monkeypatch.setattr("pytest_ddl.terminal.front_end_of", lambda _config: FrontEnd.TEST)
    _show_known(reporter)
    assert written[1].startswith(f"{name}: {count}Model.fit does not work"), written
