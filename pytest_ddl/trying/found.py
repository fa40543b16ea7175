"""What was found in a script while it ran on one rank, and the errors that say what could not be seen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pytest_ddl.messages import summary
from pytest_ddl.training import frames

FACT = "script"
"""Name of the fact of a rank's record that holds what was found."""


OWN_ERRORS = ("NotSeenError", "DownloadRefusedError")
"""Names of the exceptions about scripts that cannot be followed."""


class NotSeenError(RuntimeError):
    """Error for a script whose training cannot be followed. The message has the line to add or to change."""


class EnoughSteps(BaseException):
    """Exception that ends a script after its last compared step; a BaseException, so that no script catches it."""


class FailedCell(NamedTuple):
    """Cell of a notebook that raised an exception."""

    cell: int
    error: str
    """Name of the exception's class."""
    place: str
    """File and line in the code of all cells."""
    text: str
    """Class and message of the exception."""


@dataclass
class Found:
    """Objects, loops and replacements in the order in which the script used them, each once."""

    lines: dict[str, dict[str, None]] = field(default_factory=dict)
    counts_replicas: bool = False
    """True if the script reads the number of replicas."""
    wants_default: bool = False
    """True if the script asks for the default strategy of TensorFlow, which the strategy of the run replaces."""
    failed: list[FailedCell] = field(default_factory=list)
    cut: bool = False
    """True if a dataset may have more batches than the script gets."""

    def add(self, heading: str, text: str) -> None:
        """Add a line under a heading, unless it is there."""
        self.lines.setdefault(heading, {}).setdefault(text)

    def as_fact(self) -> dict[str, Any]:
        """Return everything as plain values."""
        lines = {heading: list(texts) for heading, texts in self.lines.items()}
        failed = [*map(tuple, self.failed)]
        return {"lines": lines, "counts_replicas": self.counts_replicas, "failed": failed, "cut": self.cut}


_SCOPE = re.compile(r"variable created in this tf\.distribute\.Strategy\.scope|scope used for the original variable")


def explained(error: str, message: str) -> str:
    """Return class and message of an exception in one line, or what to change in the script if this is known."""
    if _SCOPE.search(message):
        return (
            "a variable was created outside strategy.scope(), which TensorFlow refuses. Create model, optimizer and "
            "metrics in `with strategy.scope():`"
        )
    return summary(error, message)


def place() -> str:
    """Return the name of the file and the line of the script that runs now."""
    path, _, line = frames.user_frames(1).rpartition(":")
    return f"{Path(path).name}:{line}"


def text_of(fact: Mapping[str, Any]) -> list[str]:
    """Return the lines to print for what was found."""
    lines = [f"{heading + ':':<13} {'; '.join(texts)}" for heading, texts in fact["lines"].items()]
    failed = failed_cells(fact)
    if failed:
        lines.append(f"{'failed:':<13} {'; '.join(f'{text_of_cell(cell)} (on one device, too)' for cell in failed)}")
    return lines


def failed_cells(fact: Mapping[str, Any]) -> tuple[FailedCell, ...]:
    """Return the cells that failed in a rank."""
    return tuple(FailedCell(*cell) for cell in fact.get("failed", ()))


def text_of_cell(cell: FailedCell) -> str:
    """Return a line about a cell that failed."""
    return f"cell {cell.cell} at {cell.place}: {cell.text}"
