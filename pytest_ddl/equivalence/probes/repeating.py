"""Repeat a comparison for a probe: limit its time, and judge a repeated run that does not end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

from pytest_ddl.equivalence.checks.run import CHECK as RUN
from pytest_ddl.equivalence.findings import Doubt
from pytest_ddl.equivalence.roles import Role
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.hints import Hint
from pytest_ddl.records import TrainingRecord
from pytest_ddl.training.settings import RunSettings

PATIENCE = 3.0
"""Factor on the expected duration of a run.

A run that did not end hangs if it had this much time. Otherwise it had too little time.
"""


class CompareOnce(Protocol):
    """Function that runs both programs once with other settings and judges them by some checks."""

    def __call__(self, settings: RunSettings, checks: Collection[str] | None, runs: int = 1) -> Report:
        """Compare once. ``runs`` comparisons, including this one, share the remaining time in equal parts."""
        ...


def timed(plain: Report, again: Report) -> Report:
    """Return the repeated report, but turn a run without an end into a doubt if it had too little time.

    The plain runs and the repeated reference show how long the repeated run should take.
    """
    reference, distributed = again.reference, again.distributed
    if not (_unended(reference) or _unended(distributed)):
        return again
    if _unended(reference):
        why = f"one device needs more than the {reference.seconds:.0f} s that were left"
    else:
        expected = _expected_seconds(plain, again)
        if distributed.seconds >= PATIENCE * expected:
            return again
        why = (
            f"the {distributed.seconds:.0f} s that were left are too few to distinguish a slow run from one that "
            f"hangs (it probably needs {expected:.0f} s)"
        )
    doubt = Doubt(RUN, f"{why}: set a longer {Hint.TIMEOUT}")
    left = again.without(lambda finding: again.roles.have(finding, Role.RUN | Role.LIVENESS), doubt)
    return replace(left, doubts=(doubt,))


def left_open(report: Report, again: Report) -> Report | None:
    """Return the report with a doubt if the repeated runs had too little time, else ``None``.

    A probe that decides nothing in that case must not leave a pass: more time might have shown a defect.

    :param again: the result of :func:`timed`.
    """
    if not any(map(_unended, (again.reference, again.distributed))):
        return None
    doubts = [doubt for doubt in again.doubts if doubt.check == RUN]
    return replace(report, doubts=(*report.doubts, *doubts), seconds=report.seconds + again.seconds) if doubts else None


def fails_on_one_device(again: Report) -> str | None:
    """Explain why the repeated run failed on one device; ``None`` if it did not, or if the deadline ended it."""
    reference = again.reference
    if not reference.errors or _unended(reference):
        return None
    error = reference.errors[0][1]
    line = error.message.strip().partition("\n")[0]
    return f"one device raises {error.type.rsplit('.', 1)[-1]}: {line}"


def _unended(record: TrainingRecord) -> bool:
    """Return whether the deadline ended the run. Waiting that the logs of collectives prove needs no deadline."""
    return any(error.type == "deadline" for _rank, error in record.errors)


def _expected_seconds(plain: Report, again: Report) -> float:
    before, ours, theirs = plain.reference, again.reference, plain.distributed
    if before.seconds <= 0:
        return 0.0
    return theirs.seconds * max(1.0, ours.seconds / before.seconds)
