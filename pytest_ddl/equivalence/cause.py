"""Cause of a difference: what happened, what to do, and whether a correct program may do it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """Cause of a difference, with a sentence that explains it and the API that repairs it."""

    id: str
    title: str
    """One sentence that says what happened."""
    fix: str
    """One or two sentences that say what to do, with the concrete API."""
    legitimate: bool = False
    """True if a correct program may do this and declares it with ``expect=``."""
    accepted: bool = False
    """True if a user who cannot change it declares it with ``expect=``."""
    gone_without: str = ""
    """Part of a program that this cause needs: ``random`` or ``normalization``. Runs without it cannot show the cause.
    """

    @property
    def declarable(self) -> bool:
        """True if a failure shows the line that declares the cause."""
        return self.legitimate or self.accepted
