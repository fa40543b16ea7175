"""Read a file of tiers: which tests run before each commit, by default, and every night."""

from __future__ import annotations

import re
import sys
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


def load(text: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Parse the entries of a file, as pairs of a tier and an expression that is searched for in the id of a test.

    :raises ValueError: for an unknown tier or key. The message shows the entry.
    """
    found = []
    for entry in tomllib.loads(text).get("tier", []):
        if set(entry) != {"name", "tests"} or entry["name"] not in TIERS:
            raise ValueError(f"{FILE.name}: {entry}: an entry has a name, one of {TIERS}, and tests")
        found += [(entry["name"], re.compile(expression)) for expression in entry["tests"]]
    return tuple(found)


@cache
def _entries(file: Path) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return load(file.read_text(encoding="utf-8"))


def tier_of(nodeid: str, file: Path = FILE) -> str:
    """Return the lowest tier in which a test runs."""
    return next((tier for tier, expression in _entries(file) if expression.search(nodeid)), DEFAULT)


def is_in(nodeid: str, tier: str, file: Path = FILE) -> bool:
    """Return whether a test runs in a tier."""
    return TIERS.index(tier_of(nodeid, file)) <= TIERS.index(tier)
