"""Name what an interruption has cost, and keep it with the faults of a trial."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pytest_ddl.equivalence.causes.cause import Fix
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.faults.rank.fault import Fault


class RecoveryVerdict(str, Enum):
    """Cost of an interruption, the best first."""

    EXACT = "exact"
    EQUAL = "equal"
    RETRIED = "retried"
    REFUSED = "refused"
    EXAMPLES = "examples"
    REPLAYED = "replayed"
    LOST = "lost"
    DIVERGED = "diverged"
    DAMAGED = "damaged save loaded"
    UNDECIDED = "undecided"
    CANNOT_RESUME = "cannot resume"
    HUNG = "hung"
    NOT_INJECTED = "not injected"


MEANINGS: dict[RecoveryVerdict, str] = {
    RecoveryVerdict.EXACT: "All ranks end with the same bits as without the interruption, after the same examples.",
    RecoveryVerdict.EQUAL: "The checks find no difference to one device, within the measured tolerance.",
    RecoveryVerdict.RETRIED: (
        "A coordinator ran a closure in flight again, at least once as it promises; nothing else differs."
    ),
    RecoveryVerdict.REFUSED: (
        "The program fails when it is started again, and its error names the file that the fault damaged."
    ),
    RecoveryVerdict.EXAMPLES: (
        "The number of updates is right, but some examples were trained on twice, and others never."
    ),
    RecoveryVerdict.REPLAYED: "The final weights have too many updates: steps that the save contains were made again.",
    RecoveryVerdict.LOST: "The final weights have too few updates.",
    RecoveryVerdict.DIVERGED: (
        "A check finds another difference and names its cause, for example a lost optimizer state."
    ),
    RecoveryVerdict.DAMAGED: "The program continues with values of a damaged file, which it did not notice.",
    RecoveryVerdict.UNDECIDED: "No check could decide. This is not a pass.",
    RecoveryVerdict.CANNOT_RESUME: "The program fails when it is started again.",
    RecoveryVerdict.HUNG: "Ranks wait for each other forever, or until the deadline.",
    RecoveryVerdict.NOT_INJECTED: "The fault did not strike, or the process did not end by it. This is not a pass.",
}
"""Verdict -> what it means."""
_WITH_ITS_STEP = "checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)"
FIXES: dict[RecoveryVerdict, Fix] = {
    RecoveryVerdict.EXAMPLES: Fix(
        "Continue the data where the restored step ended: skip its batches, or save the iterator.",
        "dataset = dataset.skip(int(step.numpy()))",
    ),
    RecoveryVerdict.REPLAYED: Fix(
        "Save the number of steps with the weights, and make only the steps that are left.", _WITH_ITS_STEP
    ),
    RecoveryVerdict.LOST: Fix(
        "Save the number of steps and the weights in one call, so that the number is never newer.", _WITH_ITS_STEP
    ),
}
"""Verdict -> fix. Others take the fix of their cause. With these, a check finds only what follows from the verdict."""
RECOVERED = (RecoveryVerdict.EXACT, RecoveryVerdict.EQUAL, RecoveryVerdict.RETRIED, RecoveryVerdict.REFUSED)
"""Verdicts with which a program did what it must: it has recovered, or it refused a damaged file."""


@dataclass(frozen=True)
class Trial:
    """Verdict of one schedule of faults, with what it cost."""

    schedule: tuple[Fault, ...]
    verdict: RecoveryVerdict
    details: str = ""
    """Reason for the verdict in words; empty if the summary says it all."""
    steps: int = 0
    """Updates that the final weights have too many (``replayed``) or too few (``lost``)."""
    twice: int = 0
    """Examples that the final weights were trained on once more than without the interruption."""
    never: int = 0
    """Examples that the final weights were not trained on."""
    unknown: int = 0
    """Those of ``twice`` that the uninterrupted run does not have at all."""
    damaged: tuple[str, ...] = ()
    """Files that the faults have damaged."""
    written: tuple[str, ...] = ()
    """Files that Python wrote outside of a save before the last fault, each once, in the order of time."""
    in_writing: str = ""
    """File in whose writing, also by a save, the last fault struck; empty if it struck elsewhere."""
    work_lost: int | None = None
    """Steps that had been made before the interruption and were made again; ``None`` if nothing was interrupted."""
    complete_save: int = 0
    """Last step of which a save was complete when the fault struck."""
    resumed_at: int | None = None
    """Step after which the last attempt continued; ``None`` if its values belong to no step of the other run."""
    detected: float | None = None
    """Seconds from the fault to the end of all ranks of that attempt."""
    resumed: float | None = None
    """Seconds from there to the first step of the next attempt."""
    attempts: int = 1
    finding: Finding | None = None
    """Cause of a difference, as the checks found it."""
    notes: tuple[str, ...] = ()

    @property
    def recovered(self) -> bool:
        return self.verdict in RECOVERED

    @property
    def summary(self) -> str:
        """The verdict with its size, in a few words."""
        word = self.verdict.value
        if self.verdict in (RecoveryVerdict.LOST, RecoveryVerdict.REPLAYED):
            return f"{word} {counted(self.steps, 'step')}"
        if self.verdict is RecoveryVerdict.EXAMPLES:
            known = f"{counted(self.twice - self.unknown, 'example')} trained on twice"
            words = f"{known}, {counted(self.never, 'example')} never"
            other = f", and {counted(self.unknown, 'example')} that the uninterrupted run does not have"
            return words + (other if self.unknown else "")
        if self.verdict is RecoveryVerdict.DIVERGED and self.finding is not None:
            return f"{word}, {self.finding.cause or 'no known cause'}"
        if self.verdict in (RecoveryVerdict.HUNG, RecoveryVerdict.CANNOT_RESUME, RecoveryVerdict.REFUSED):
            return f"{word}, attempt {self.attempts}"
        if self.verdict is RecoveryVerdict.DAMAGED and self.damaged:
            return f"{word}, {self.damaged[-1]}"
        if self.verdict in (RecoveryVerdict.EXACT, RecoveryVerdict.EQUAL) and self.work_lost:
            return f"{word}, {counted(self.work_lost, 'step')} made again"
        return word

    @property
    def message(self) -> str:
        """The verdict in words, with the reason."""
        return f"{self.summary}: {self.details}" if self.details else self.summary

    def __str__(self) -> str:
        return f"{'; then '.join(map(str, self.schedule))}: {self.message}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, for example ``1 step`` or ``2 steps``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
