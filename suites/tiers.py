"""Read a file of tiers: which tests run before each commit, by default, and every night."""

from __future__ import annotations

import re
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("tiers.toml")
"""Tiers of the suite."""
TIERS = ("smoke", "core", "full")
"""Tiers, each a part of the next one."""
DEFAULT = "core"


@dataclass(frozen=True)
class Entry:
    """Tests of one tier, by an expression that is searched for in their ids."""

    tier: str
    expression: re.Pattern[str]
    one_in: int = 0
    """One in so many of these tests is not of this tier, but of the next entry that fits. 0 for none."""

    def fits(self, nodeid: str) -> bool:
        """Return whether a test belongs to this entry. A checksum of its id chooses the one that does not."""
        spared = self.one_in and zlib.crc32(nodeid.encode()) % self.one_in == 0
        return self.expression.search(nodeid) is not None and not spared


def load(text: str) -> tuple[Entry, ...]:
    """Parse the entries of a file.

    :raises ValueError: for an unknown tier or key. The message shows the entry.
    """
    found: list[Entry] = []
    for entry in tomllib.loads(text).get("tier", []):
        if set(entry) - {"one_in"} != {"name", "tests"} or entry["name"] not in TIERS:
            raise ValueError(f"{FILE.name}: {entry}: an entry has a name, one of {TIERS}, tests, and maybe one_in")
        of_entry = (re.compile(expression) for expression in entry["tests"])
        found += [Entry(entry["name"], expression, entry.get("one_in", 0)) for expression in of_entry]
    return tuple(found)


@cache
def _entries(file: Path) -> tuple[Entry, ...]:
    return load(file.read_text(encoding="utf-8"))


def tier_of(nodeid: str, file: Path = FILE) -> str:
    """Return the lowest tier in which a test runs."""
    return next((entry.tier for entry in _entries(file) if entry.fits(nodeid)), DEFAULT)


def is_in(nodeid: str, tier: str, file: Path = FILE) -> bool:
    """Return whether a test runs in a tier."""
    return TIERS.index(tier_of(nodeid, file)) <= TIERS.index(tier)
