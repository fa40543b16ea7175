"""Read ``regressions.toml``, which lists the defects by number, with the versions that have them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from suites.installed import DISTRIBUTIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("regressions.toml")
MARKER = "ddl_regression"


@dataclass(frozen=True)
class Versions:
    """Versions that have a defect: from the one that introduced it to the last one before the fix."""

    introduced: str = "0"
    fixed: str = ""
    """First version without the defect; empty if there is none yet."""
    how: str = ""
    """Look of the defect in these versions, if it differs."""

    def __contains__(self, number: str) -> bool:
        one = Version(number)
        return Version(self.introduced) <= one and (not self.fixed or one < Version(self.fixed))

    def __str__(self) -> str:
        end = f" to before {self.fixed}" if self.fixed else ", not fixed"
        return f"from {self.introduced}{end}" + (f", {self.how}" if self.how else "")


@dataclass(frozen=True)
class Sign:
    """Exception of a test that meets the defect. Any other one is not the defect."""

    error: str
    """Name of the class of the exception, or of one that it inherits from."""
    says: str
    """Regular expression that is searched for in the message."""

    def matches(self, error: BaseException) -> bool:
        """Return whether an exception is this one."""
        names = {one.__name__ for one in type(error).__mro__}
        return self.error in names and re.search(self.says, str(error)) is not None


@dataclass(frozen=True)
class Regression:
    """Entry of the file. It has a test, is shown by a property of the suite, or is left out for a reason."""

    number: str
    what: str
    links: tuple[str, ...] = ()
    package: str = ""
    bad: tuple[Versions, ...] = ()
    signs: tuple[Sign, ...] = ()
    shown_by: tuple[str, ...] = ()
    """Ids of the properties that show the defect, as they are in ``suites/properties/``."""
    left_out: str = ""
    by_design: bool = False
    """True for a change that its authors wanted: the test is red before it."""
    seen: Mapping[str, tuple[str, ...]] | None = None
    """Versions on which the test was seen to be ``red`` and ``green``."""

    @property
    def has_test(self) -> bool:
        """True if a test of this folder is about it."""
        return not self.left_out and not self.shown_by

    @property
    def reason(self) -> str:
        """Why the test of a version that has the defect is red."""
        ranges = ", and ".join(map(str, self.bad))
        return f"{self.number}: {self.what} ({self.package} {ranges}; {', '.join(self.links) or 'not reported'})"

    def is_in(self, number: str) -> bool:
        """Return whether a version of the package has the defect."""
        return any(number in one for one in self.bad)

    def is_shown_by(self, error: BaseException) -> bool:
        """Return whether an exception is what the defect looks like."""
        return any(sign.matches(error) for sign in self.signs)


def load(text: str) -> dict[str, Regression]:
    """Parse the entries of a file, by number.

    :raises ValueError: for a wrong entry. The message shows it.
    """
    found: dict[str, Regression] = {}
    for entry in tomllib.loads(text).get("regression", []):
        try:
            one = _parsed(entry)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{FILE.name}: {entry}: {error}") from error
        if one.number in found:
            raise ValueError(f"{FILE.name}: {entry}: another entry has this number")
        found[one.number] = one
    return found


def _parsed(entry: Mapping[str, Any]) -> Regression:
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    if "bad" in given:
        given["bad"] = tuple(Versions(**one) for one in given["bad"])
    if "signs" in given:
        given["signs"] = tuple(Sign(**one) for one in given["signs"])
    if "seen" in given:
        given["seen"] = {key: tuple(value) for key, value in given["seen"].items()}
    one = Regression(**given)
    if one.left_out and (one.signs or one.shown_by):
        raise ValueError("what is left out has no signs, and no property shows it")
    if not one.left_out and (one.package not in DISTRIBUTIONS or "bad" not in given):
        raise ValueError(
            f"needs bad versions of a package, one of {', '.join(DISTRIBUTIONS)}, or the reason as left_out"
        )
    if one.has_test and bool(one.signs) != bool(one.bad):
        raise ValueError("has signs if, and only if, there are bad versions")
    if not all(sign.error and sign.says for sign in one.signs):
        raise ValueError("needs signs, with an error and what it says")
    if one.seen is not None and set(one.seen) != {"red", "green"}:
        raise ValueError("seen has the versions on which the test was red and green")
    return one


@cache
def regressions() -> Mapping[str, Regression]:
    """Return all entries, by number."""
    return load(FILE.read_text(encoding="utf-8"))


def numbers_in(text: str) -> Sequence[str]:
    """Return the numbers that the tests of a module name with the marker."""
    return re.findall(rf'^@pytest\.mark\.{MARKER}\("([^"]+)"\)$', text, re.MULTILINE)
