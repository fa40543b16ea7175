"""Read ``items.toml``, which lists what users of ``tf.distribute`` rely on, and say which items a test is about."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("items.toml")
TRUTHS = ("arithmetic", "one device", "documentation")
SHOWN = ("values", "parity", "behavior")
"""Kinds of comparison in a test: values that differ between replicas with arithmetic, a run with a run on one device,
or behavior such as errors, counts and placement."""
MARKER = "ddl_item"
PACKAGES = ("tensorflow", "keras")
"""Packages whose versions an item, or a marker, may need."""


@dataclass(frozen=True)
class Upstream:
    """Tests of TensorFlow and Keras for one item."""

    tests: int
    shows: str
    """Comparison in the best of them: one of ``SHOWN``, ``equal values`` on all replicas, or ``nothing``."""
    two_replicas: int
    """Number of tests that run with two replicas on CPUs in open CI."""
    processes: int
    """Number of tests that run in several processes."""


@dataclass(frozen=True)
class Item:
    """Entry of the file: something that must hold."""

    id: str
    what: str
    strategies: tuple[str, ...]
    truth: str
    upstream: Upstream
    tensorflow: str = ""
    keras: str = ""
    struck: str = ""
    note: str = ""

    @property
    def area(self) -> str:
        """First part of the id."""
        return self.id.partition(".")[0]

    def exists(self, versions: Mapping[str, str]) -> bool:
        """Return whether these versions of TensorFlow and Keras have what the item is about."""
        return not lacking({name: getattr(self, name) for name in PACKAGES}, versions)


def load(text: str) -> dict[str, Item]:
    """Parse the items of a file, by id.

    :raises ValueError: for an entry with a wrong key or value, or with the id of another one. The message shows it.
    """
    found: dict[str, Item] = {}
    valid = [field.name for field in fields(Item)]
    for entry in tomllib.loads(text).get("item", []):
        unknown = [key for key in entry if key not in valid]
        missing = [key for key in ("id", "what", "strategies", "truth", "upstream") if not entry.get(key)]
        if unknown or missing or entry["truth"] not in TRUTHS or entry["id"] in found:
            raise ValueError(
                f"{FILE.name}: {entry}: unknown {unknown}, missing {missing}; truth must be one of {TRUTHS}, and an id "
                "may occur once"
            )
        given: dict[str, Any] = {**entry, "strategies": tuple(entry["strategies"])}
        found[entry["id"]] = Item(**{**given, "upstream": Upstream(**entry["upstream"])})
    return found


@cache
def items() -> Mapping[str, Item]:
    """Return all items, by id."""
    return load(FILE.read_text(encoding="utf-8"))


def lacking(ranges: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """Return the first range that the versions do not fulfil, with the version, or an empty text.

    A range of a package without a version does not count: tf_keras is not held to versions of Keras 3.
    """
    for package, wanted in ranges.items():
        if package in versions and not SpecifierSet(wanted).contains(versions[package], prereleases=True):
            return f"{package}{wanted}, and this is {versions[package]}"
    return ""


@dataclass(frozen=True)
class Claim:
    """Statement of a test's marker about one item."""

    item: str
    shows: str = SHOWN[0]
    under: tuple[str, ...] = ()
    """Variants of strategies that the test itself runs; empty for a test that gets its strategy from the plugin."""


def claims_of(test: pytest.Item) -> list[Claim]:
    """Return the claims of a test about its items. Markers of its parameters count too.

    :raises pytest.UsageError: if it has none, or one that does not exist. The message is one line.
    """
    found: dict[str, Claim] = {}
    for mark in test.iter_markers(MARKER):
        given = {"shows": SHOWN[0], "under": (), **dict.fromkeys(PACKAGES, ""), **mark.kwargs}
        if len(given) > 2 + len(PACKAGES) or given["shows"] not in SHOWN:
            valid = f"ids, shows={'|'.join(SHOWN)}, under=variants, and version ranges of {' and '.join(PACKAGES)}"
            raise pytest.UsageError(f"{test.nodeid}: {MARKER} takes {valid}, not {mark.kwargs}")
        for name in mark.args:
            if name not in items():
                near = difflib.get_close_matches(str(name), items(), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise pytest.UsageError(f"{test.nodeid}: {name!r} is no item of {FILE.name}{hint}")
            found.setdefault(name, Claim(name, given["shows"], tuple(given["under"])))
    if not found:
        raise pytest.UsageError(
            f"{test.nodeid} names no item of {FILE.name}: add @pytest.mark.{MARKER}(id), and a new entry if none fits"
        )
    return list(found.values())


def missing(test: pytest.Item, versions: Mapping[str, str]) -> str:
    """Return what a test needs and these versions do not have, as its items and markers say, or an empty text."""
    for mark in test.iter_markers(MARKER):
        own = {name: mark.kwargs.get(name, "") for name in PACKAGES}
        for name in mark.args:
            item = items()[name]
            found = lacking({one: getattr(item, one) for one in PACKAGES}, versions) or lacking(own, versions)
            if found:
                return f"{name} needs {found}"
    return ""
