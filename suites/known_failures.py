"""``expected_failures.toml``: which test may fail how, under which strategy and versions."""

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

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("expected_failures.toml")


@dataclass(frozen=True)
class KnownFailure:
    """One entry of the file."""

    test: str
    causes: tuple[str, ...]
    reason: str
    link: str = ""
    strategies: tuple[str, ...] = ()
    tensorflow: str = ""
    keras: str = ""

    def __str__(self) -> str:
        return f"{self.test!r} under {', '.join(self.strategies) or 'every strategy'}"

    @property
    def explanation(self) -> str:
        """The reason and where it is tracked."""
        return f"{self.reason} ({self.link or 'not reported yet'})"

    def applies(self, versions: Mapping[str, str]) -> bool:
        """Whether the entry is about the installed versions."""
        ranges = {"tensorflow": self.tensorflow, "keras": self.keras}
        return all(SpecifierSet(ranges[name]).contains(versions[name], prereleases=True) for name in ranges)

    def matches(self, nodeid: str, strategy: str) -> bool:
        """Whether the entry is about a test under a strategy."""
        return (not self.strategies or strategy in self.strategies) and re.search(self.test, nodeid) is not None


def load(text: str) -> tuple[KnownFailure, ...]:
    """All entries of a file.

    :raises ValueError: for an entry with an unknown or a missing key, showing it.
    """
    valid = [field.name for field in fields(KnownFailure)]
    found = []
    for entry in tomllib.loads(text).get("failure", []):
        unknown = [key for key in entry if key not in valid]
        missing = [key for key in ("test", "causes", "reason") if not entry.get(key)]
        if unknown or missing:
            raise ValueError(f"{FILE.name}: {entry}: unknown {unknown}, missing {missing}; keys: {', '.join(valid)}")
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        found.append(KnownFailure(**given))
    return tuple(found)


@cache
def installed() -> Mapping[str, str]:
    """The versions that entries are chosen by, found without importing TensorFlow."""
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
    """The entries for the installed versions."""
    return tuple(entry for entry in load(FILE.read_text()) if entry.applies(installed()))
