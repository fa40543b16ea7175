"""Read ``expected_failures.toml``, which lists the known failures by test, cause, strategy and versions."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from pytest_ddl.equivalence.known.catalogue import KNOWN

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("expected_failures.toml")


@dataclass(frozen=True)
class KnownFailure:
    """Entry of the file: a test that is expected to fail."""

    test: str
    causes: tuple[str, ...]
    reason: str
    link: str = ""
    strategies: tuple[str, ...] = ()
    tensorflow: str = ""
    keras: str = ""
    known: str = ""
    """Id of the plugin's known behavior that gives causes, versions, reason and link; empty if it is not one."""

    def __str__(self) -> str:
        return f"{self.test!r} under {', '.join(self.strategies) or 'every strategy'}"

    @property
    def explanation(self) -> str:
        """Reason for the failure, and the link to its issue."""
        return f"{self.reason} ({self.link or 'not reported yet'})"

    def applies(self, versions: Mapping[str, str]) -> bool:
        """Return whether the entry is for these versions."""
        ranges = {"tensorflow": self.tensorflow, "keras": self.keras}
        return all(SpecifierSet(ranges[name]).contains(versions[name], prereleases=True) for name in ranges)

    def matches(self, nodeid: str, strategy: str) -> bool:
        """Return whether the entry is for this test under this strategy."""
        return (not self.strategies or strategy in self.strategies) and re.search(self.test, nodeid) is not None


def load(text: str) -> tuple[KnownFailure, ...]:
    """Parse the entries of a file.

    :raises ValueError: if an entry has an unknown key or lacks a required one. The message shows the entry.
    """
    valid = [field.name for field in fields(KnownFailure)]
    found = []
    for entry in tomllib.loads(text).get("failure", []):
        of_catalogue = "known" in entry
        unknown = [key for key in entry if key not in (("test", "strategies", "known") if of_catalogue else valid)]
        missing = [key for key in ("test", *(() if of_catalogue else ("causes", "reason"))) if not entry.get(key)]
        if unknown or missing:
            raise ValueError(f"{FILE.name}: {entry}: unknown {unknown}, missing {missing}; keys: {', '.join(valid)}")
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        found.append(KnownFailure(**given, **(_of_catalogue(given["known"]) if of_catalogue else {})))
    return tuple(found)


def _of_catalogue(name: str) -> dict[str, Any]:
    """Return the fields of an entry that names a known behavior.

    :raises ValueError: if there is no such behavior.
    """
    if name not in KNOWN:
        raise ValueError(f"{FILE.name}: known = {name!r} is no known behavior; valid: {', '.join(KNOWN)}")
    behavior = KNOWN[name]
    return {"causes": behavior.causes, "reason": behavior.title, "link": behavior.link, **behavior.versions}


@cache
def installed() -> Mapping[str, str]:
    """Return the installed versions of TensorFlow and Keras, without importing TensorFlow."""
    return {name: _version(name) for name in ("tensorflow", "keras")}


def _version(name: str) -> str:
    for package in (name, f"{name}-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "0"


@cache
def known_failures() -> tuple[KnownFailure, ...]:
    """Return the entries for the installed versions."""
    return tuple(entry for entry in load(FILE.read_text()) if entry.applies(installed()))
