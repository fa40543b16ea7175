"""Test the table of regressions, and that its tests must be red on the versions that have the defect."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from suites.installed import DISTRIBUTIONS
from suites.known_failures import FILE as FAILURES_FILE
from suites.known_failures import load as load_failures
from suites.regressions.table import FILE, Sign, Versions, load, numbers_in, regressions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENTRY = """
[[regression]]
number = "1"
what = "a sum is wrong"
package = "keras"
bad = [{ introduced = "3.7.0", fixed = "3.8.0" }]
signs = [{ error = "AssertionError", says = "sum of" }]
"""
FOLDER = FILE.parent
TESTS = sorted(FOLDER.glob("test_*.py"))


@pytest.mark.parametrize(
    ("number", "bad"), [("3.6.9", False), ("3.7.0", True), ("3.7.1", True), ("3.8.0", False), ("3.9.0.dev1", False)]
)
def test_versions_have_a_defect_from_the_first_to_before_the_fix(number, bad):
    (regression,) = load(ENTRY).values()
    assert regression.is_in(number) is bad


@pytest.mark.parametrize(("versions", "bad"), [(Versions(), True), (Versions(fixed="3.4"), False)])
def test_a_missing_end_of_a_range_is_open(versions, bad):
    assert ("3.15.1" in versions) is bad


def test_a_sign_is_a_class_and_a_message():
    sign = Sign("ArithmeticError", "by zero")
    assert sign.matches(ZeroDivisionError("division by zero"))
    assert not sign.matches(ZeroDivisionError("modulo"))
    assert not sign.matches(ImportError("by zero"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ENTRY + ENTRY, "another entry has this number"),
        (ENTRY.replace("package =", "packages ="), "unexpected keyword argument 'packages'"),
        (ENTRY.replace('"keras"', '"kera"'), "needs bad versions of a package, one of tensorflow, keras, tf_keras"),
        (ENTRY.replace("signs =", "# "), "has signs if, and only if"),
        (ENTRY.replace('"sum of"', '""'), "needs signs, with an error and what it says"),
        (ENTRY + "left_out = 'x'\n", "what is left out has no signs"),
        (ENTRY + "seen = { red = [] }\n", "seen has the versions"),
    ],
)
def test_a_wrong_entry_is_shown(text, told):
    with pytest.raises(ValueError, match=told):
        load(text)


def test_each_number_that_was_collected_has_a_test_or_a_reason():
    collected = tomllib.loads(FILE.read_text(encoding="utf-8"))["numbers"]
    assert {int(re.sub(r"\D", "", number)) for number in regressions()} == set(collected)
    with_tests = {number for number, regression in regressions().items() if regression.has_test}
    named = [number for path in TESTS for number in numbers_in(path.read_text(encoding="utf-8"))]
    assert sorted(named) == sorted(with_tests)


def test_the_tests_are_named_by_their_numbers():
    for path in TESTS:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"^def test_([0-9]+[a-z]?)_", text, re.MULTILINE) == list(numbers_in(text))


@pytest.mark.parametrize("number", regressions())
def test_what_was_seen_agrees_with_the_versions(number):
    regression = regressions()[number]
    for color, versions in (regression.seen or {}).items():
        for version in versions:
            assert regression.is_in(version) == (color == "red"), version
    assert not regression.has_test or regression.seen
    assert regression.package in DISTRIBUTIONS or regression.left_out


@pytest.mark.parametrize("number", [number for number, one in regressions().items() if one.shown_by])
def test_a_property_that_shows_a_defect_is_a_known_failure(number):
    """The entry of the property says for which versions it must be red."""
    regression = regressions()[number]
    failures = load_failures(FAILURES_FILE.read_text(encoding="utf-8"))
    for test in regression.shown_by:
        name, _, rest = test.partition("::")
        path = Path("suites/properties") / name
        assert f"def {rest.partition('[')[0]}(" in (FAILURES_FILE.parent.parent / path).read_text(encoding="utf-8")
        strategy = re.split(r"[\[\]-]", rest.partition("[")[2])[0]
        assert any(entry.matches(f"{path}::{rest}", strategy) for entry in failures), test


CONFTEST = f"""
from pathlib import Path

from suites.regressions import conftest, table
from suites.regressions.conftest import pytest_collection_modifyitems, pytest_configure

conftest.FOLDER = Path(__file__).parent
conftest.regressions = lambda: table.load({ENTRY!r})
conftest.version_of = lambda package: {{"keras": VERSION}}[package]
"""
BODIES = """
import pytest

@pytest.mark.ddl_regression("1")
def test_that_shows_the_defect():
    raise AssertionError("sum of all")

@pytest.mark.ddl_regression("1")
def test_that_fails_in_another_way():
    raise ImportError("sum of all")

@pytest.mark.ddl_regression("1")
def test_with_another_wrong_number():
    raise AssertionError("number of all")

@pytest.mark.ddl_regression("1")
def test_that_is_green():
    pass
"""


def outcomes(pytester, monkeypatch, version, bodies=BODIES):
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]))
    pytester.makeconftest(CONFTEST.replace("VERSION", repr(version)))
    pytester.makepyfile(bodies)
    return pytester.runpytest_subprocess("-rxf")


def test_a_version_with_the_defect_must_show_it(pytester, monkeypatch):
    done = outcomes(pytester, monkeypatch, "3.7.0")
    done.assert_outcomes(xfailed=1, failed=3)
    done.stdout.fnmatch_lines(
        ["XFAIL *test_that_shows_the_defect - 1: a sum is wrong (keras from 3.7.0 to before 3.8.0; not reported)"]
    )
    for name in ("test_that_fails_in_another_way", "test_with_another_wrong_number", "test_that_is_green"):
        done.stdout.fnmatch_lines([f"FAILED *{name}*"])


def test_a_version_without_the_defect_must_be_green(pytester, monkeypatch):
    outcomes(pytester, monkeypatch, "3.8.0").assert_outcomes(passed=1, failed=3)


@pytest.mark.parametrize("marker", ["", '@pytest.mark.ddl_regression("2")\n', "@pytest.mark.ddl_regression()\n"])
def test_a_test_without_an_entry_ends_the_collection(marker, pytester, monkeypatch):
    done = outcomes(pytester, monkeypatch, "3.8.0", f"import pytest\n\n{marker}def test_it(): pass\n")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*test_it: ddl_regression(*) names no entry of regressions.toml*"])
