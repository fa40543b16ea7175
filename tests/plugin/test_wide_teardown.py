"""Fixtures of wider scopes that fail when they are torn down together with an item that is not to blame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

FIXTURES = """
    import pytest

    pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)
    ATTEMPTS = []

    @pytest.fixture(scope="{scope}")
    def held():
        yield
        raise RuntimeError("no {scope} tear-down")
"""
PROJECT = {
    "test_a_expected.py": FIXTURES.format(scope="module")
    + """
    def test_holds(held, ddl_strategy): pass

    @pytest.mark.xfail(reason="known")
    def test_expected(ddl_strategy): raise AssertionError

    @pytest.mark.xfail(reason="known")
    def test_expected_again(ddl_strategy): raise AssertionError
    """,
    "test_b_own.py": FIXTURES.format(scope="function")
    + """
    @pytest.fixture(scope="module")
    def sound():
        yield
        print("sound tear-down")

    @pytest.mark.xfail(reason="known")
    def test_own(held, sound, ddl_strategy): raise AssertionError
    """,
    "test_c_class.py": FIXTURES.format(scope="session")
    + """
    @pytest.fixture(scope="class")
    def of_class():
        yield
        raise RuntimeError("no class tear-down")

    @pytest.fixture(scope="module")
    def of_module():
        yield
        raise RuntimeError("no module tear-down")

    class TestFirst:
        def test_class(self, held, of_module, of_class, ddl_strategy): pass

    def test_after_class(ddl_strategy): pass
    """,
    "test_d_rerun.py": FIXTURES.format(scope="module")
    + """
    import os, pathlib

    def test_holds_too(held, ddl_strategy): pass

    @pytest.mark.flaky(reruns=2)
    def test_flaky(ddl_strategy):
        seen = pathlib.Path(os.environ["PYTEST_ATTEMPTS"], "flaky")
        first = not seen.exists()
        seen.touch()
        assert not first

    def test_after_flaky(ddl_strategy): pass
    """,
    "test_e_dies.py": """
        import os
        import pytest

        pytestmark = pytest.mark.ddl(strategies="mirrored", timeout=100)

        @pytest.fixture(scope="module")
        def dies():
            yield
            os._exit(3)

        def test_holds_what_dies(dies, ddl_strategy): pass

        @pytest.mark.xfail(reason="known")
        def test_expected_and_dead(ddl_strategy): raise AssertionError
    """,
    "test_f_after.py": """
        import pytest

        @pytest.mark.ddl(strategies="mirrored", timeout=100)
        def test_after_death(ddl_strategy): pass
    """,
}


@pytest.fixture(scope="module")
def outcome(new_project: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    folder = tmp_path_factory.mktemp("attempts")
    return new_project(PROJECT).pytest("-p", "no:xdist", env={"PYTEST_ATTEMPTS": str(folder)}, timeout=400)


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("test_expected_again", ["no module tear-down"]),
        ("test_class", ["no class tear-down", "no module tear-down", "no session tear-down"]),
        ("test_flaky", ["no module tear-down"]),
        ("test_expected_and_dead", ["exited with status 3"]),
    ],
)
def test_it_is_an_error(outcome: Any, name: str, messages: list[str]) -> None:
    case = outcome[f"{name}[mirrored]"]
    assert "error" in case.outcome, outcome.stdout
    for message in messages:
        assert message in case.text
    assert outcome.status == 1


@pytest.mark.parametrize(
    "name", ["test_holds", "test_holds_too", "test_after_class", "test_after_flaky", "test_after_death"]
)
def test_no_other_item_is_to_blame(outcome: Any, name: str) -> None:
    assert outcome[f"{name}[mirrored]"].outcome == "passed"


@pytest.mark.parametrize("name", ["test_expected", "test_own"])
def test_what_the_item_itself_holds_may_fail_with_it(outcome: Any, name: str) -> None:
    assert outcome[f"{name}[mirrored]"].outcome == "xfailed", outcome.stdout


def test_each_is_reported_once(outcome: Any) -> None:
    # Of the class, the wider scopes are torn down together and have one report.
    assert "5 errors" in outcome.stdout
    assert "1 rerun" in outcome.stdout


def test_nothing_is_left(outcome: Any) -> None:
    assert (outcome.processes, outcome.files) == ([], [])
