"""The defects of TensorFlow and Keras that the newest releases have, by harm: what ``docs/defects.md`` lists.

Entries of ``expected_failures.toml`` with the same program, or else with the same link, are one defect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_ddl.items.selection import KERAS
from suites.known_failures import FILE, REPROS, KnownFailure, load
from suites.matrix.cells import newest
from suites.reports import Program


class Harm(Enum):
    """Harm that a defect does to a user, the worst first. The value is its name on the page."""

    TRAINS_WRONGLY = "trains wrongly, and says nothing"
    RESUMES_WRONGLY = "loses or repeats something at a restart"
    REPORTS_WRONGLY = "reports a wrong number"
    IS_NOT_AS_DOCUMENTED = "does other than its documentation says"
    STOPS = "raises, dies or hangs"


_REPORTS = {"reported-loss-wrong", "metric-wrong"}
_IS_NOT_AS_DOCUMENTED = {"cluster-misconfigured", "layout-wrong"}
_STOPS = {
    "collective-order-mismatch",
    "deadline-exceeded",
    "dtensor-tensor-lists",
    "optimizer-not-built",
    "unsupported-by-framework",
    "worker-died",
    "worker-raised",
}


@dataclass(frozen=True)
class Defect:
    """One defect."""

    entries: tuple[KnownFailure, ...]

    @property
    def program(self) -> Program | None:
        """The program that shows it, if there is one."""
        name = next((entry.repro for entry in self.entries if entry.repro), None)
        return Program.read(REPROS / f"{name}.py") if name else None

    @property
    def title(self) -> str:
        """The defect in one sentence, without its full stop."""
        program = self.program
        return program.title.partition("\n\n")[0] if program is not None else self.entries[0].reason

    @property
    def harm(self) -> Harm:
        """The worst harm that it does."""
        order = list(Harm)
        return min(map(_harm, self.entries), key=order.index)

    @property
    def links(self) -> tuple[str, ...]:
        """Addresses of the issues that track it."""
        return tuple(dict.fromkeys(entry.link for entry in self.entries if entry.link))

    @property
    def strategies(self) -> tuple[str, ...]:
        """Strategies under which the suite meets it; empty for all."""
        if not all(entry.strategies for entry in self.entries):
            return ()
        return tuple(sorted({name for entry in self.entries for name in entry.strategies}))

    @property
    def versions(self) -> tuple[str, ...]:
        """Ranges of versions, each with its package."""
        found = ((name, getattr(entry, name)) for entry in self.entries for name in ("tensorflow", *KERAS))
        return tuple(dict.fromkeys(f"{name} {wanted}" for name, wanted in found if wanted))


def _harm(entry: KnownFailure) -> Harm:
    causes = set(entry.causes)
    if entry.verdicts or any(cause.startswith("resume-") for cause in causes):
        return Harm.RESUMES_WRONGLY
    if entry.message or causes <= _STOPS:
        return Harm.STOPS
    if causes <= _IS_NOT_AS_DOCUMENTED:
        return Harm.IS_NOT_AS_DOCUMENTED
    return Harm.REPORTS_WRONGLY if causes <= _REPORTS | _STOPS else Harm.TRAINS_WRONGLY


def live() -> Sequence[Defect]:
    """Return the defects that the newest versions of ``suites/matrix/cells.toml`` have, the most harmful first."""
    here = newest()
    groups: dict[str, list[KnownFailure]] = defaultdict(list)
    for entry in load(FILE.read_text(encoding="utf-8")):
        if any(entry.applies(here, subject) for subject in KERAS):
            groups[entry.repro or entry.link or entry.known].append(entry)
    order = list(Harm)
    defects = [Defect(tuple(entries)) for entries in groups.values()]
    return sorted(defects, key=lambda defect: (order.index(defect.harm), defect.title.lower()))
