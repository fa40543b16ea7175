"""What was found in a script while it ran on one rank, and the errors that say what could not be seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddl.training import frames

FACT = "script"
"""Name of the fact of a rank's record that holds what was found."""


class NotSeenError(RuntimeError):
    """Error for a script whose training cannot be followed. The message has the line to add or to change."""


class EnoughSteps(BaseException):
    """Exception that ends a script after its last compared step; a BaseException, so that no script catches it."""


@dataclass
class Found:
    """Objects, loops and replacements in the order in which the script used them, each once."""

    lines: dict[str, dict[str, None]] = field(default_factory=dict)
    counts_replicas: bool = False
    """True if the script reads the number of replicas."""

    def add(self, heading: str, text: str) -> None:
        """Add a line under a heading, unless it is there."""
        self.lines.setdefault(heading, {}).setdefault(text)

    def as_fact(self) -> dict[str, Any]:
        """Return everything as plain values."""
        lines = {heading: list(texts) for heading, texts in self.lines.items()}
        return {"lines": lines, "counts_replicas": self.counts_replicas}


def place() -> str:
    """Return the name of the file and the line of the script that runs now."""
    path, _, line = frames.user_frames(1).rpartition(":")
    return f"{Path(path).name}:{line}"


def text_of(fact: Mapping[str, Any]) -> list[str]:
    """Return the lines to print for what was found."""
    return [f"{heading + ':':<13} {'; '.join(texts)}" for heading, texts in fact["lines"].items()]
