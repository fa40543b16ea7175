"""Versions that belong together pass; each pair that does not is named, with what to install."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

from pytest_ddl import installing
from pytest_ddl.doctor import versions
from pytest_ddl.doctor.examination import DoctorFinding, Status

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CELLS = Path(__file__).parents[2] / "suites/matrix/cells.toml"
Install = Callable[..., None]


def only(found: DoctorFinding | list[DoctorFinding]) -> DoctorFinding:
    (finding,) = [found] if isinstance(found, DoctorFinding) else found
    return finding


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install packages, or remove them with ``None``; ``requires`` are the requirements of the first one."""

    def plant(requires: tuple[str, ...] = (), **packages: str | None) -> None:
        named = {name.replace("__", "-"): version for name, version in packages.items()}
        real = versions.installed
        for module in (installing, versions):
            monkeypatch.setattr(module, "installed", lambda name: named[name] if name in named else real(name))
        first = next(
            (versions.installed(name) for name in versions.TENSORFLOW_PACKAGES if versions.installed(name)), None
        )
        monkeypatch.setattr(versions, "tensorflow_version", lambda: first)
        if requires:
            monkeypatch.setattr(importlib.metadata, "requires", lambda _name: list(requires))

    return plant


@pytest.mark.parametrize("probe", ["python", "tensorflow", "keras", "tf_keras", "pytest_ddl"])
def test_what_is_installed_here_belongs_together(probe: str) -> None:
    assert only(getattr(versions, probe)()).status is Status.OK


@pytest.mark.parametrize(
    ("version", "status", "said"),
    [
        ("3.9.18", Status.PROBLEM, "Python 3.9.18 is older than 3.10"),
        ("3.12.3", Status.OK, "Python 3.12.3"),
        ("3.14.0rc1", Status.OK, "Python 3.14.0rc1"),
        ("3.14.0", Status.WARNING, "Python 3.14.0 is newer than the versions"),
        ("3.12.0+own build", Status.OK, "Python 3.12.0+own build"),
    ],
)
def test_python(version: str, status: Status, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.platform, "python_version", lambda: version)
    found = versions.python()
    assert found.status is status
    assert found.found.startswith(said)


def test_a_keras_that_tensorflow_does_not_want_is_named(install: Install) -> None:
    install(("keras>=3.10", "numpy>=1.26"), tensorflow="2.21.0", keras="3.3.3")
    found = only(versions.tensorflow())
    assert found.status is Status.PROBLEM
    assert found.found == "tensorflow 2.21.0 needs keras>=3.10, and 3.3.3 is installed"
    assert found.fix == "pip install 'keras>=3.10', or a version of tensorflow that fits"


def test_a_requirement_of_an_extra_or_another_python_is_none(install: Install) -> None:
    install(("gone>=1; extra == 'and-cuda'", "gone>=1; python_version < '3'"), tensorflow="2.21.0")
    assert only(versions.tensorflow()).status is Status.OK


def test_a_requirement_that_is_missing_is_named(install: Install) -> None:
    install(("protobuf<9",), tensorflow="2.21.0", protobuf=None)
    assert only(versions.tensorflow()).found == "tensorflow 2.21.0 needs protobuf<9, and it is not installed"


@pytest.mark.parametrize(
    ("packages", "status", "said"),
    [
        ({"tensorflow": "2.15.1"}, Status.PROBLEM, "TensorFlow 2.15.1 is older than 2.16"),
        ({"tensorflow": "2.30.0"}, Status.WARNING, "TensorFlow 2.30.0 is newer"),
        ({"tensorflow": None}, Status.PROBLEM, "pytest-ddl needs TensorFlow 2.16 or newer, and this Python has none"),
        ({"tensorflow": "2.20.0", "tensorflow__cpu": "2.21.0"}, Status.PROBLEM, "tensorflow 2.20.0 and tensorflow-cpu"),
    ],
)
def test_tensorflow(packages: dict[str, str | None], status: Status, said: str, install: Install) -> None:
    install(("numpy",), **packages)
    found = only(versions.tensorflow())
    assert (found.status, found.found[: len(said)]) == (status, said)
    assert "pip install" in found.fix or "try a version below" in found.fix


@pytest.mark.parametrize(("version", "status"), [(None, Status.PROBLEM), ("3.99", Status.WARNING)])
def test_keras(version: str | None, status: Status, install: Install) -> None:
    install(keras=version)
    assert versions.keras().status is status


def test_a_tf_keras_of_another_tensorflow_is_named(install: Install) -> None:
    install(("tensorflow<2.20,>=2.19",), tf_keras="2.19.0", tensorflow="2.21.0")
    assert only(versions.tf_keras()).found == "tf_keras 2.19.0 needs tensorflow<2.20,>=2.19, and 2.21.0 is installed"


def test_tensorflow_for_cpus_is_the_tensorflow_of_tf_keras(install: Install) -> None:
    install(("tensorflow<2.20,>=2.19",), tf_keras="2.19.0", tensorflow=None, tensorflow__cpu="2.19.1")
    assert only(versions.tf_keras()).status is Status.OK


def test_no_tf_keras_is_right(install: Install) -> None:
    install(tf_keras=None)
    assert only(versions.tf_keras()).status is Status.OK


def test_a_pytest_that_is_too_old_is_named(install: Install) -> None:
    install(pytest="8.4.0")
    found = only(versions.pytest_ddl())
    assert found.status is Status.PROBLEM
    assert found.found.endswith("needs pytest>=9, and 8.4.0 is installed")


def test_a_copy_that_is_not_installed_is_named(install: Install) -> None:
    install(pytest__ddl=None)
    assert only(versions.pytest_ddl()).status is Status.PROBLEM


def test_the_tested_versions_are_those_of_the_matrix() -> None:
    cells = tomllib.loads(CELLS.read_text())["cells"]
    for name, key in (("TensorFlow", "tensorflow"), ("Keras", "keras")):
        known = [Version(version) for cell in cells for version in cell[key] if version[0].isdigit()]
        limit = Version(versions.TESTED_BELOW[name])
        assert max(known) < limit
        assert max(known).release[:2] == (limit.major, limit.minor - 1)
