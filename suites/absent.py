"""Read ``absent.toml``, which lists what a package of Keras does not have, and skip the tests that need it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from suites import subject
from suites.known_failures import installed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("absent.toml")
_PATH = re.compile(r"(?P<path>[A-Za-z_][\w.]*)(\((?P<argument>\w+)\))?")


@dataclass(frozen=True)
class Absent:
    """Entry of the file: something that some versions do not have."""

    api: str
    """Path in the package, such as ``optimizers.Muon``, or with an argument, such as ``optimizers.SGD(name)``."""
    tests: tuple[str, ...] = ()
    """Expressions that are searched for in the ids of the tests that need it."""
    behavior: str = ""
    """Difference of the package if it has the path. The tests are about the behavior that it lacks."""
    keras: str = ""
    tf_keras: str = ""

    def __str__(self) -> str:
        return self.api

    def is_absent(self, package: str) -> bool:
        """Return whether the installed version of a package does not have it."""
        versions = getattr(self, package)
        return bool(versions) and SpecifierSet(versions).contains(installed()[package], prereleases=True)

    def reason(self, package: str) -> str:
        """Return why a test is skipped."""
        what = f"{self.api}: {self.behavior}" if self.behavior else f"has no {self.api}"
        return f"{package} {installed()[package]} {what}"


def load(text: str) -> tuple[Absent, ...]:
    """Parse the entries of a file.

    :raises ValueError: for a wrong entry. The message shows it.
    """
    valid = [field.name for field in fields(Absent)]
    found = []
    for entry in tomllib.loads(text).get("absent", []):
        unknown = [key for key in entry if key not in valid]
        if unknown or not _PATH.fullmatch(entry.get("api", "")) or not any(entry.get(name) for name in subject.KERAS):
            raise ValueError(
                f"{FILE.name}: {entry}: unknown {unknown}; needs an api, and versions of {' or '.join(subject.KERAS)}"
            )
        found.append(Absent(**{**entry, "tests": tuple(entry.get("tests", ()))}))
    return tuple(found)


@cache
def entries() -> tuple[Absent, ...]:
    """Return all entries."""
    return load(FILE.read_text(encoding="utf-8"))


def has(api: str) -> bool:
    """Return whether the package that is tested in this process has something, as the file says."""
    return not any(entry.api == api and not entry.behavior and entry.is_absent(subject.name()) for entry in entries())


def is_usable(api: str) -> bool:
    """Return whether it is there, and has no entry because it differs."""
    return not any(entry.api == api and entry.is_absent(subject.name()) for entry in entries())


def skip(test: pytest.Item) -> None:
    """Skip a test that needs what its package does not have."""
    package = subject.of_test(test)
    for entry in entries():
        if entry.is_absent(package) and any(re.search(one, test.nodeid) for one in entry.tests):
            test.add_marker(pytest.mark.skip(reason=entry.reason(package)))
