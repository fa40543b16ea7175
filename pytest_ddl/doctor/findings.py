"""Define a finding of a probe: one line, and one line with the fix if something is wrong."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Status(enum.Enum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class DoctorFinding:
    """One line of what was found.

    :raises ValueError: if something is wrong and no fix is named, or if a text has several lines.
    """

    status: Status
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        if (self.status is Status.OK) == bool(self.fix):
            raise ValueError(f"{self.found!r} is {self.status.value}: a fix belongs to each warning and problem only")
        if "\n" in self.found + self.fix:
            raise ValueError(f"{self.found!r}, {self.fix!r}: each text of a finding is one line")


def ok(found: str) -> DoctorFinding:
    return DoctorFinding(Status.OK, found)


def warning(found: str, fix: str) -> DoctorFinding:
    return DoctorFinding(Status.WARNING, found, fix)


def problem(found: str, fix: str) -> DoctorFinding:
    return DoctorFinding(Status.PROBLEM, found, fix)
