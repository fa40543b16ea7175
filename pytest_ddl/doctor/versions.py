"""Do the installed versions belong together? Read from the metadata of the packages, so nothing is imported."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from pytest_ddl.doctor.examination import DoctorFinding, ok, problem, warning
from pytest_ddl.installing import TENSORFLOW_PACKAGES, install_line, installed, version_of
from pytest_ddl.strategies.machine import MISSING_TENSORFLOW, tensorflow_version

OLDEST = {"Python": "3.10", "TensorFlow": "2.16"}
TESTED_BELOW = {"Python": "3.14", "TensorFlow": "2.22", "Keras": "3.16"}
"""First versions with which the project has not been tested."""


def python() -> DoctorFinding:
    version = platform.python_version()
    if _is_older("Python", version):
        fix = f"make a virtual environment with Python {OLDEST['Python']} or newer"
        return problem(f"Python {version} is older than {OLDEST['Python']}, which pytest-ddl needs", fix)
    return _newer("Python", version) or ok(f"Python {version}")


def tensorflow() -> DoctorFinding | list[DoctorFinding]:
    version = tensorflow_version()
    if version is None:
        text, _, fix = MISSING_TENSORFLOW.partition(": ")
        return problem(text, fix)
    packages = [package for package in TENSORFLOW_PACKAGES if installed(package)]
    if len(packages) > 1:
        pair = " and ".join(f"{package} {installed(package)}" for package in packages)
        fix = f"pip uninstall -y {' '.join(packages)}, then pip install {packages[0]}"
        return problem(f"{pair} are both installed, and each overwrites files of the other", fix)
    if _is_older("TensorFlow", version):
        fix = f"{install_line('cpu')} --upgrade, or with [gpu]"
        return problem(f"TensorFlow {version} is older than {OLDEST['TensorFlow']}, which pytest-ddl needs", fix)
    unmet = [finding for package in packages for finding in _unmet(package)]
    return unmet or _newer("TensorFlow", version) or ok(f"TensorFlow {version} ({packages[0] if packages else 'own'})")


def keras() -> DoctorFinding:
    """Look for Keras. Whether its version fits is TensorFlow's own requirement, so :func:`tensorflow` says it."""
    version = installed("keras")
    if version is None:
        return problem("this Python has no Keras, which TensorFlow imports", "pip install keras")
    return _newer("Keras", version) or ok(f"Keras {version}")


def tf_keras() -> DoctorFinding | list[DoctorFinding]:
    version = installed("tf_keras")
    if version is None:
        return ok("tf_keras (Keras 2) is not installed, and only keras='tf_keras' needs it")
    return list(_unmet("tf_keras")) or ok(f"tf_keras {version}")


def pytest_ddl() -> DoctorFinding | list[DoctorFinding]:
    version = installed("pytest-ddl")
    if version is None:
        text = "pytest-ddl is not installed, so that pytest does not load it"
        return problem(text, f"{install_line()}; in a copy of its source: pip install -e .")
    return list(_unmet("pytest-ddl")) or ok(f"pytest-ddl {version}, pytest {installed('pytest')}")


def _newer(name: str, version: str) -> DoctorFinding | None:
    known = _parsed(version)
    if known is None or known < Version(TESTED_BELOW[name]):
        return None
    fix = f"if something fails strangely, try a version below {TESTED_BELOW[name]}"
    return warning(f"{name} {version} is newer than the versions with which pytest-ddl is tested", fix)


def _is_older(name: str, version: str) -> bool:
    known = _parsed(version)
    return known is not None and known < Version(OLDEST[name])


def _parsed(version: str) -> Version | None:
    """Return a version that can be compared, or ``None`` for that of a build of one's own, which may be any text."""
    try:
        return Version(version)
    except InvalidVersion:
        return None


def _unmet(package: str) -> Iterator[DoctorFinding]:
    """Yield a problem for each requirement of a package that no installed version meets."""
    for line in importlib.metadata.requires(package) or ():
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = version_of(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wanted = f"{requirement.name}{requirement.specifier}"
            has = f"{version} is installed" if version else "it is not installed"
            found = f"{package} {installed(package)} needs {wanted}, and {has}"
            yield problem(found, f"pip install '{wanted}', or a version of {package} that fits")
