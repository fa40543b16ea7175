"""The plugin together with pytest's own options, with xdist, with Ctrl-C and with ``kill -9``."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.polling import wait_until

pytestmark = pytest.mark.slow

PROJECT = {
    "test_some.py": """
        import os, pathlib, signal
        import pytest
        from pytest_ddl import current_rank

        pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored")

        @pytest.fixture(scope="module")
        def kept_for_the_module(ddl_strategy):
            yield
            with open(os.environ["PYTEST_ENDS"], "a") as file:
                file.write("torn down\\n")

        def test_first(kept_for_the_module):
            print(f"said on {current_rank().rank}")

        def test_second(ddl_strategy):
            assert not os.environ.get("PYTEST_FAIL"), "as asked"

        def test_third(kept_for_the_module):
            pass

        @pytest.mark.skipif("PYTEST_WAIT" not in os.environ, reason="for the tests that interrupt")
        def test_waits(ddl_strategy):
            pathlib.Path(os.environ["PYTEST_WAIT"]).touch()
            while True:
                signal.pause()
    """,
    "test_mirrored.py": """
        import os
        import pytest

        pytestmark = pytest.mark.ddl(strategies="mirrored")

        def test_keras(ddl_strategy):
            import tensorflow as tf
            home = tf.keras.Sequential.__module__.split(".")[0]
            assert home == os.environ.get("PYTEST_KERAS", "keras")

        @pytest.mark.skipif("PYTEST_HANG" not in os.environ, reason="for the test of the deadline")
        def test_deadline(ddl_strategy):
            import signal
            while True:
                signal.pause()
    """,
}


@pytest.fixture(scope="module")
def project(new_project: Callable[..., Any]) -> Any:
    return new_project(PROJECT)


def clean(outcome: Any) -> bool:
    return (outcome.processes, outcome.files) == ([], [])


def passed(outcome: Any) -> list[str]:
    return [name.split("[")[0] for name, case in outcome.cases.items() if case.outcome == "passed"]


@pytest.mark.nightly
def test_stop_at_first_failure_tears_wider_fixtures_down(project: Any, tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    outcome = project.pytest(
        "-x", "-s", "--durations=3", "test_some.py", env={"PYTEST_FAIL": "1", "PYTEST_ENDS": str(ends)}
    )
    assert outcome.status == pytest.ExitCode.TESTS_FAILED
    assert clean(outcome)
    assert passed(outcome) == ["test_first"]
    assert ends.read_text().count("torn down") == 2, "on each rank"
    assert "[rank 0] said on 0" in outcome.stdout
    assert "[rank 1] said on 1" in outcome.stdout
    assert "setup    test_some.py::test_first" in outcome.stdout, "starting a cluster is time of the set-up"


@pytest.mark.nightly
@pytest.mark.slow
def test_options_of_the_plugin_take_effect(project: Any) -> None:
    env = {"PYTEST_HANG": "1", "PYTEST_KERAS": "tf_keras"}
    outcome = project.pytest("test_mirrored.py", "--ddl-keras=tf_keras", "--ddl-timeout=2", env=env)
    assert "ddl: timeout=2.0 (from command line), keras=tf_keras (from command line)" in outcome.stdout
    assert outcome["test_keras[mirrored]"].outcome == "passed", outcome["test_keras[mirrored]"].text
    assert "deadline exceeded" in outcome["test_deadline[mirrored]"].text
    assert clean(outcome)


@pytest.mark.nightly
@pytest.mark.slow
def test_in_process_for_debuggers(project: Any) -> None:
    outcome = project.pytest("--ddl-in-process", "-rs", env={"PYTEST_ENDS": "/dev/null"})
    assert outcome.status == 0
    assert outcome["test_keras[mirrored]"].outcome == "passed"
    skipped = outcome["test_first[multi_worker_mirrored]"]
    assert (skipped.outcome, "run one" in skipped.text) == ("skipped", True)
    assert clean(outcome)


@pytest.mark.nightly(each_commit=("options1",))
@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--ddl-strategy=mirrored",)])
def test_xdist(project: Any, tmp_path: Path, options: tuple[str, ...]) -> None:
    outcome = project.pytest("-n", "2", *options, env={"PYTEST_ENDS": str(tmp_path / "ends")})
    assert outcome.status == 0, outcome.stdout
    assert sorted(passed(outcome)) == ["test_first", "test_keras", "test_second", "test_third"]
    assert clean(outcome)


@pytest.mark.nightly
@pytest.mark.slow
def test_last_failed_and_keywords(project: Any, tmp_path: Path) -> None:
    env = {"PYTEST_FAIL": "1", "PYTEST_ENDS": str(tmp_path / "ends")}
    cache = ["-p", "cacheprovider", "-o", f"cache_dir={tmp_path / 'cache'}"]
    first = project.finish(project.start(*cache, "-k", "second or third", env=env))
    assert "1 failed, 1 passed, 4 deselected" in first.stdout
    again = project.finish(project.start(*cache, "--lf", env=env))
    assert "1 failed" in again.stdout
    assert "passed" not in again.stdout
    assert clean(again)


@pytest.mark.nightly(each_commit=("ctrl",))
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)], ids=["ctrl-c", "kill-9"]
)
def test_an_interrupted_run_leaves_nothing(project: Any, tmp_path: Path, number: signal.Signals) -> None:
    waits = tmp_path / "waits"
    process = project.start("-k", "test_waits", env={"PYTEST_WAIT": str(waits), "PYTEST_ENDS": str(tmp_path / "ends")})
    wait_until(waits.exists)
    # The zygote and two ranks, besides pytest itself.
    assert len(project.running()) >= 4
    process.send_signal(number)
    outcome = project.finish(process, timeout=60)
    assert outcome.status == (pytest.ExitCode.INTERRUPTED if number == signal.SIGINT else -signal.SIGKILL)
    assert clean(outcome), (outcome.processes, outcome.files)


SURROUNDED = {
    "tests/sub/queue.py": "raise RuntimeError('this is not the standard module')",
    # As the default import mode does with the folder of a test file.
    "conftest.py": "import sys; sys.path.insert(0, __file__.replace('conftest.py', 'tests/sub'))",
    "tests/sub/test_sub.py": """
        import os, signal, subprocess
        import pytest

        pytestmark = pytest.mark.ddl(strategies="mirrored")

        def number():
            return 3

        def test_kills_the_zygote(ddl_strategy):
            command = ["setsid", "sh", "-c", "sleep 1000 >/dev/null & true"]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()

        def test_next(ddl_strategy):
            pass

        @pytest.mark.ddl(strategies="multi_worker_mirrored")
        def test_ships(ddl_cluster):
            assert ddl_cluster.run(number) == [3, 3]
    """,
}


@pytest.fixture(scope="module")
def surrounded(new_project: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run behind a proxy, beside a file with the name of a standard module, with a long temporary folder."""
    project = new_project(SURROUNDED)
    temporary = tmp_path_factory.mktemp("long") / ("x" * 100)
    temporary.mkdir()
    env = {"http_proxy": "http://127.0.0.1:1", "TMPDIR": str(temporary)}
    outcome = project.pytest("--import-mode=importlib", "-p", "no:xdist", env=env)
    assert not list(temporary.glob("pytest-ddl-*"))
    return outcome


@pytest.mark.nightly
@pytest.mark.slow
def test_an_ended_zygote_is_replaced(surrounded: Any) -> None:
    assert surrounded.outcomes == {
        "test_kills_the_zygote[mirrored]": "failed",
        "test_next[mirrored]": "passed",
        "test_ships[multi_worker_mirrored]": "passed",
    }
    text = surrounded["test_kills_the_zygote[mirrored]"].text
    assert "the zygote, from which worker processes are forked, has ended: it was killed by SIGKILL" in text
    assert "when memory runs out" in text
    assert "INTERNALERROR" not in surrounded.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_processes_in_sessions_of_their_own_end_even_if_the_zygote_is_killed(surrounded: Any) -> None:
    assert clean(surrounded), surrounded.processes
