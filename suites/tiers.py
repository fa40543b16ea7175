"""Read the tiers of the suite: which tests run before each commit, by default, and every night."""

from __future__ import annotations

import re
import sys
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


def load(text: str) -> tuple[Entry, ...]:
    """Parse the entries of a file.

    :raises ValueError: for an unknown tier or key. The message shows the entry.
    """
    found: list[Entry] = []
    for entry in tomllib.loads(text).get("tier", []):
        if set(entry) != {"name", "tests"} or entry["name"] not in TIERS:
            raise ValueError(f"{FILE.name}: {entry}: an entry has a name, one of {TIERS}, and tests")
        found += [Entry(entry["name"], re.compile(expression)) for expression in entry["tests"]]
    return tuple(found)


@cache
def _entries() -> tuple[Entry, ...]:
    return load(FILE.read_text(encoding="utf-8"))


def tier_of(nodeid: str) -> str:
    """Return the lowest tier in which a test runs."""
    return next((entry.tier for entry in _entries() if entry.expression.search(nodeid)), DEFAULT)


def is_in(nodeid: str, tier: str) -> bool:
    """Return whether a test runs in a tier."""
    return TIERS.index(tier_of(nodeid)) <= TIERS.index(tier)
