"""Ledger of a comparison: an entry for every number that was recorded, with the reason if it was not compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_ddl.equivalence.findings import CheckResult, Doubt, Outcome, Reason, Unjudged
from pytest_ddl.messages import listed

HARMLESS: Mapping[Reason, str] = {
    Reason.NOT_FINITE: "both runs have the same value, so the strategy changes nothing",
    Reason.NOT_REPRODUCIBLE: "one device gives another value in a second run of the same program",
    Reason.OF_A_PLACE: "the value is a number of a rank or replica, or the number of all, which one device cannot have",
    Reason.NO_UPDATE: "the values were compared; only whether they move was not",
    Reason.OF_AN_ATTEMPT: "a run that was interrupted has a history for each attempt, and its steps were compared",
    Reason.FINDING: "the finding is reported, or it is excused by itself",
}
"""Reasons that hide no defect, each with its proof. A quantity with any other reason makes the verdict inconclusive."""


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
    VALUES = "values", "METRIC-EQ"
    RESULTS = "results", "METRIC-EQ"
    BATCHES = "batch sizes", "BATCH"
    EXAMPLES = "examples", "DATA-COVER"
    DRAWS = "random numbers", "SEED"
    GRADIENTS = "gradients", "GRAD-EQ"
    COLLECTIVES = "collectives", "COLL-LOG"

    def __init__(self, title: str, check: str) -> None:
        self.title = title
        self.check = check


@dataclass(frozen=True)
class Entry:
    """One number or array that a run recorded, and why it was not compared, if it was not."""

    quantity: Quantity
    name: str
    step: int
    reason: Reason | None = None
    at_end: bool = False
    """True for a value that the program has changed when it ends. ``step`` is then the last step."""

    def __str__(self) -> str:
        assert self.reason is not None
        when = "when the program ends" if self.at_end else f"in step {self.step}"
        return str(Unjudged(self.name, self.reason, when))


@dataclass(frozen=True)
class Ledger:
    """All entries of one comparison."""

    entries: tuple[Entry, ...] = ()
    files: tuple[str, ...] = ()
    """Files that the program wrote under the strategy. Their contents are not compared."""

    def __str__(self) -> str:
        text = f"compared: {self.compared} of {len(self.entries)} recorded values"
        if not self.files:
            return text
        return f"{text}; not the contents of files that the program writes: {listed(self.files)}"

    @property
    def compared(self) -> int:
        """Number of entries that were compared and agree."""
        return sum(entry.reason is None for entry in self.entries)

    def doubts(self, results: Sequence[CheckResult]) -> Iterator[Doubt]:
        """Yield the entries that leave the verdict open, by check.

        A check that could not decide says so itself, and so does one that names a quantity with the same reason.
        """
        for result in results:
            if result.outcome is Outcome.INCONCLUSIVE:
                continue
            named = {(item.name, item.reason) for item in result.unjudged}
            left = [entry for entry in self.open(result.check) if (entry.name, entry.reason) not in named]
            if left:
                yield Doubt(result.check, f"not compared: {listed(left)}")

    def open(self, check: str) -> list[Entry]:
        """Return the entries that a check is responsible for, and whose reason may hide a defect."""
        mine = [entry for entry in self.entries if entry.quantity.check == check]
        return [entry for entry in mine if entry.reason is not None and entry.reason not in HARMLESS]
