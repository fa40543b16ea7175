"""Read ``differences.toml``: the known differences of the backends, each with its reason."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomllib
from packaging.specifiers import SpecifierSet

from suites.installed import version_of

FILE = Path(__file__).with_name("differences.toml")
ALWAYS = "always"


@dataclass(frozen=True)
class Difference:
    """A difference between answers that is explained."""

    what: str
    """Kind of difference, as ``differences.py`` names it."""
    operations: tuple[str, ...]
    when: tuple[str, ...]
    """Marks of a call, of which one is enough. A mark of several parts needs all of them."""
    reason: str
    keras: str = ""
    """Range of versions."""
    program: str = ""
    """Program of ``repros/`` that shows it, if it is a defect of Keras or TensorFlow that users meet."""

    def explains(self, operation: str, what: str, marks: Set[str]) -> bool:
        """Return whether the row is about what differs in a call with some marks."""
        if what != self.what or operation not in self.operations:
            return False
        return any(one == ALWAYS or set(one.split(" & ")) <= marks for one in self.when)


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def differences() -> list[Difference]:
    """Return the rows that hold for the installed Keras."""
    found = [
        Difference(**{name: tuple(one) if isinstance(one, list) else one for name, one in row.items()})
        for row in _read()["difference"]
    ]
    return [one for one in found if holds(one.keras)]


def holds(versions: str) -> bool:
    """Return whether the installed Keras is in a range of versions."""
    return SpecifierSet(versions).contains(version_of("keras") or "0", prereleases=True)


def not_compared() -> dict[str, str]:
    """Return the operations that the NumPy backend gives no answer for, with the reasons."""
    return {
        name: row["reason"]
        for row in _read()["not_compared"]
        if holds(row.get("keras", ""))
        for name in row["operations"]
    }


def programs() -> list[str]:
    """Return the names of the programs of all rows."""
    return [*dict.fromkeys(row["program"] for row in _read()["difference"] if "program" in row)]
