"""APIs that a package of Keras lacks: the file is right about the installed versions, and tests are skipped."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from suites.absent import Absent, entries, load
from suites.subject import KERAS

ENTRY = """
[[absent]]
api = "optimizers.Muon"
tf_keras = ">=2.16"
tests = ['test_one\\.py::.*Muon']
"""


def is_there(package: Any, api: str) -> bool:
    path, _, argument = api.rstrip(")").partition("(")
    for name in path.split("."):
        package = getattr(package, name, None)
    return package is not None and (not argument or argument in inspect.signature(package).parameters)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", KERAS)
def test_the_installed_package_has_it_or_not_as_the_file_says(name):
    package = importlib.import_module(name)
    about = [entry for entry in entries() if getattr(entry, name) and not entry.behavior]
    told = {entry.api: not entry.is_absent(name) for entry in about}
    assert told == {api: is_there(package, api) for api in told}


def test_an_entry_is_about_versions_of_a_package():
    (entry,) = load(ENTRY)
    assert entry.is_absent("tf_keras")
    assert not entry.is_absent("keras")
    assert not Absent("optimizers.Muon", tf_keras="<2.0").is_absent("tf_keras")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ENTRY.replace("tests", "test"), r"unknown \['test'\]"),
        (ENTRY.replace("optimizers.Muon", "Muon, Lamb"), "needs an api"),
        (ENTRY.replace("tf_keras", "keras_"), "needs an api, and versions of keras or tf_keras"),
    ],
)
def test_a_wrong_entry_is_shown(text, told):
    with pytest.raises(ValueError, match=told):
        load(text)


TESTS = """
import os
import pytest
from suites import absent, subject

pytestmark = [pytest.mark.ddl(strategies=["one_device"]), pytest.mark.ddl_item("optimizer.SGD")]

@pytest.mark.parametrize("name", ["Muon", "SGD"])
def test_optimizer(name, ddl_strategy):
    assert hasattr(subject.keras.optimizers, name)
    assert absent.has(f"optimizers.{name}")

def test_package(ddl_strategy):
    assert subject.keras.__name__ == subject.name() == os.environ["WANTED"]

def test_package_here():
    assert subject.keras.__name__ == subject.name() == os.environ["WANTED"]
test_package_here.pytestmark = [pytest.mark.ddl_item("optimizer.SGD")]

@pytest.mark.ddl(strategies=["one_device"], keras="tf_keras")
def test_package_of_a_marker(ddl_strategy):
    assert subject.name() == "tf_keras"
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("package", KERAS)
def test_a_run_is_about_the_package_of_the_option(run_suite, pytester, monkeypatch, package):
    monkeypatch.setenv("WANTED", package)
    (pytester.path / "suites" / "absent.toml").write_text(ENTRY)
    result = run_suite(TESTS, "-rs", f"--ddl-keras={package}", failures="")
    skipped = package == "tf_keras"
    result.assert_outcomes(passed=5 - skipped, skipped=int(skipped))
    if skipped:
        result.stdout.fnmatch_lines(["SKIPPED*: tf_keras 2.* has no optimizers.Muon"])
