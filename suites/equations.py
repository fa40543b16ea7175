"""Read ``equations.toml``, which lists the properties that must hold, and the tests that assert each of them.

``python -m suites.equations`` prints how many are asserted as a whole, in part and not at all, and what is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("equations.toml")
TRUTHS = ("arithmetic", "one device", "source")
NUMBERS: Mapping[str, int] = {
    "C": 20,
    "R": 11,
    "VT": 12,
    "V": 11,
    "D": 14,
    "N": 6,
    "K": 11,
    "S": 5,
    "T": 8,
    "F": 35,
}
"""Letter -> number of equations. VT has the rows of the table of operations on variables."""


@dataclass(frozen=True)
class Equation:
    """Entry of the file: one property."""

    id: str
    what: str
    truth: tuple[str, ...]
    """Sources of the expected values: some of ``TRUTHS``."""
    tests: tuple[str, ...] = ()
    """Tests in this folder that assert it."""
    part: str = ""
    """The part that no test asserts."""
    untested: str = ""
    """The reason if no test can assert it here."""
    quantities: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Quantity that the sentence names, in its words -> tests that compare it."""


def ids() -> list[str]:
    """Return the ids that the file must have, in order."""
    return [f"{letter}{number:02}" for letter, last in NUMBERS.items() for number in range(1, last + 1)]


def load(text: str) -> list[Equation]:
    """Parse the entries of a file.

    :raises ValueError: for a wrong entry. The message shows it.
    """
    valid = {field.name for field in fields(Equation)}
    found = []
    for entry in tomllib.loads(text).get("equation", []):
        unknown = sorted(set(entry) - valid)
        empty = [name for name in ("id", "what", "truth") if not entry.get(name)]
        if unknown or empty or not set(entry["truth"]) <= set(TRUTHS):
            raise ValueError(f"{FILE.name}: {entry}: unknown {unknown}, missing {empty}; truth is some of {TRUTHS}")
        quantities = entry.get("quantities", {})
        if quantities:
            entry = {**entry, **_of_quantities(entry)}
        if bool(entry.get("tests")) == bool(entry.get("untested")):
            raise ValueError(f"{FILE.name}: {entry['id']} needs tests, or the reason why it is untested, and not both")
        lists: dict[str, Any] = {name: tuple(entry.get(name, ())) for name in ("truth", "tests")}
        lists["quantities"] = {name: tuple(tests) for name, tests in quantities.items()}
        found.append(Equation(**{**entry, **lists}))
    return found


def _of_quantities(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tests of an entry with quantities, and as its part those that no test compares.

    :raises ValueError: if the entry claims tests or a part by itself, or if its sentence lacks a quantity.
    """
    quantities: Mapping[str, Sequence[str]] = entry["quantities"]
    claimed = [name for name in ("tests", "part") if name in entry]
    strange = [name for name in quantities if name not in entry["what"]]
    if claimed or strange:
        raise ValueError(
            f"{FILE.name}: {entry['id']}: {claimed} follow from quantities; not in the sentence: {strange}"
        )
    tests = dict.fromkeys(test for of_one in quantities.values() for test in of_one)
    return {"tests": [*tests], "part": ", ".join(name for name, of_one in quantities.items() if not of_one)}


def equations() -> list[Equation]:
    """Return all entries."""
    return load(FILE.read_text(encoding="utf-8"))


def report(found: Sequence[Equation]) -> str:
    """Return the numbers of equations that are asserted as a whole, in part and not, and what is missing."""
    part, untested = [one for one in found if one.part], [one for one in found if one.untested]
    whole = [one for one in found if not one.part and not one.untested]
    shown = sum(bool(one.quantities) for one in whole)
    told = f"{len(whole)} tested as a whole, {shown} of them quantity by quantity"
    lines = [f"{len(found)} equations: {told}, {len(part)} in part, {len(untested)} not"]
    lines += [f"{one.id} in part, without: {one.part}" for one in part]
    lines += [f"{one.id} not tested: {one.untested}" for one in untested]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(report(equations()))
