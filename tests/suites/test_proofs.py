"""Proofs that tests of the suite can fail: planted defects, and the record of what they make fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ddl import RankError
from suites import proofs
from suites.defects import DEFECTS, Defect, planted
from suites.defects.registry import put, replace, silence, skip, twice
from suites.proofs import EXPECTED, all_tests, load, main, report, without
from suites.proving import is_proof, spread

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("error", "proof"),
    [
        (AssertionError("3 != 4"), True),
        (ValueError("shapes differ"), True),
        (AttributeError("a defect that is written badly"), False),
        (AssertionError("deadline exceeded: rank 0"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_only_a_failure_of_its_own_proves_a_test(error, proof):
    assert is_proof(error) is proof


@pytest.mark.parametrize(("kind", "proof"), [("AssertionError", True), ("TypeError", False)])
def test_the_exception_of_a_rank_decides(kind, proof):
    error = RankError("it failed", [SimpleNamespace(failure=SimpleNamespace(type=kind))])
    assert is_proof(error) is proof


def test_few_cases_are_from_all_parts():
    assert spread("abcdef", 2) == ["a", "d"]
    assert spread("ab", 3) == ["a", "b"]


def test_a_new_run_of_a_defect_replaces_its_older_one(tmp_path):
    file = tmp_path / "proofs.json"
    proofs.save({"b": ["one"], "a": ["two", "one"]}, file)
    proofs.save(without(load(file), ["one"]), file)
    assert load(file) == {"a": ["two"]}
    proofs.add("a", {"one"}, file)
    assert load(file) == {"a": ["one", "two"]}


def test_a_defect_is_removed(monkeypatch):
    class Owner:
        def work(self) -> list[int]:
            done.append(1)
            return done

        def fail(self) -> None:
            raise ValueError

    def plant() -> None:
        put(Owner, "new", 1)
        twice(Owner, "work")
        silence(Owner, "fail")

    done: list[int] = []
    monkeypatch.setitem(DEFECTS, "planted_here", Defect("planted_here", "It works twice.", "x", plant))
    with planted("planted_here"):
        assert (Owner().work(), Owner().fail(), Owner.new) == ([1, 1], None, 1)
    assert len(Owner().work()) == 3
    assert not hasattr(Owner, "new")
    with pytest.raises(ValueError, match=r"^$"):
        Owner().fail()


def test_a_function_does_nothing_or_something_else():
    owner = SimpleNamespace(one=lambda: 1, two=lambda: 2)
    skip(owner, "one")
    replace(owner, "two", lambda original: lambda: original() + 1)
    assert (owner.one(), owner.two()) == (None, 3)


def test_each_defect_says_what_it_is_and_which_tests_may_see_it():
    assert all(defect.what.endswith(".") and defect.tests for defect in DEFECTS.values())


def test_what_is_recorded_exists():
    recorded = load()
    assert set(recorded) <= set(all_tests())
    names = {name for of_test in recorded.values() for name in of_test}
    assert {name for name in names if not name.startswith(EXPECTED)} <= set(DEFECTS)


def test_nearly_all_tests_have_a_proof():
    """A new test needs a defect that makes it fail, or an entry for a known failure."""
    missing = set(all_tests()) - set(load())
    assert len(missing) <= 0.05 * len(all_tests()), report()


def test_the_report_lists_the_tests_without_a_proof(capsys):
    assert main(["--report"]) == 0
    first, *missing = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{len(load())} of {len(all_tests())} tests")
    assert len(missing) == len(all_tests()) - len(load())


def test_an_unknown_defect_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["no_such_defect"])
    assert "no defect no_such_defect; valid: all_reduce_of_own_value" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("warm_sessions")
def test_a_planted_defect_makes_tests_fail(tmp_path):
    file = tmp_path / "proofs.json"
    command = [sys.executable, "-m", "pytest", "-p", "suites.proving", "-p", "no:cacheprovider", "-q"]
    command += ["--ddl-defects=all_reduce_of_own_value", f"--ddl-proofs={file}", "--ddl-strategy=mirrored"]
    command += ["-k", "sum_equals_numpy or keeps_the_order", "suites/properties/test_collectives.py"]
    subprocess.run(command, cwd=ROOT, env=dict(os.environ), check=False, capture_output=True, timeout=300)
    assert json.loads(file.read_text(encoding="utf-8")) == {
        "properties/test_collectives.py::test_all_reduce_sum_equals_numpy": ["all_reduce_of_own_value"]
    }


def test_a_file_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--missing", "--tests", "test_nothing.py"])
    assert "--tests=test_nothing.py: no such file in" in capsys.readouterr().err
