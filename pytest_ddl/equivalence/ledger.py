"""Ledger of a comparison: an entry for every number that was recorded, with the reason if it was not compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_ddl.equivalence.findings import CheckResult, Doubt, Outcome, Reason, Unjudged

_SHOWN = 3


class Quantity(Enum):
    """Kind of numbers in a record, with the check that is responsible for it."""

    WEIGHTS = "weights", "STEP-EQ"
    FROZEN = "frozen weights", "STEP-EQ"
    STATE = "state", "STATE-EQ"
    SLOTS = "slots", "OPT-STATE"
    COUNTERS = "counters", "OPT-STATE"
    RATES = "learning rates", "OPT-STATE"
    METRICS = "metrics", "METRIC-EQ"
    LOSSES = "losses", "LOSS-EQ"

    def __init__(self, title: str, check: str) -> None:
        self.title = title
        self.check = check


@dataclass(frozen=True)
class Entry:
    """One number or array that the strategy recorded after a step, and why it was not compared, if it was not."""

    quantity: Quantity
    name: str
    step: int
    reason: Reason | None = None


@dataclass(frozen=True)
class Ledger:
    """All entries of one comparison."""

    entries: tuple[Entry, ...] = ()

    @property
    def compared(self) -> int:
        """Number of entries that were compared and agree."""
        return sum(entry.reason is None for entry in self.entries)

    def doubts(self, results: Sequence[CheckResult]) -> Iterator[Doubt]:
        """Yield the entries that leave the verdict open, by check. A check that could not decide says so itself."""
        outcomes = {result.check: result.outcome for result in results}
        for check in dict.fromkeys(entry.quantity.check for entry in self.entries):
            if outcomes.get(check, Outcome.INCONCLUSIVE) is Outcome.INCONCLUSIVE:
                continue
            left = [entry for entry in self.entries if entry.quantity.check == check and entry.reason in _OPEN]
            names = [str(Unjudged(entry.name, entry.reason, f"in step {entry.step}")) for entry in left if entry.reason]
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                yield Doubt(check, f"not compared: {', '.join(names[:_SHOWN])}{more}")


_OPEN = (Reason.NOT_EXPLAINED, Reason.TOO_WIDE, Reason.ONE_SIDED)
"""Reasons of entries that leave the verdict open."""
