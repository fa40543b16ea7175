"""SEED, run differently: give each rank random numbers of its own, as on a real cluster.

All ranks of a comparison begin with the same state of the generators of Python and NumPy. So a program that draws from
them without a seed gets the same numbers on all ranks here, and other numbers on each worker of a real cluster.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.checks.seed import CHECK as CHECK
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.equivalence.probes.repeating import left_open, timed
from pytest_ddl.equivalence.report import Report
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.equivalence.probes.repeating import CompareOnce

CAUSE = "random-stream-differs-across-workers"


def wanted(report: Report, _names: Collection[str]) -> bool:
    """Return whether a program on several ranks draws from a generator that it does not seed."""
    return report.distributed is not None and len(report.distributed.ranks) > 1 and bool(_unseeded(report))


def _unseeded(report: Report) -> list[str]:
    ranks = () if report.distributed is None else report.distributed.ranks
    return sorted({name for rank in ranks for name in rank.facts.get("unseeded", ())})


def probe(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Run again with other numbers on each rank. What differs then depends on numbers that workers do not share."""
    names = [result.check for result in report.results]
    again = timed(report, compare_once(replace(settings, seeds_by_rank=True), names))
    unfinished = left_open(report, again)
    if unfinished is not None:
        return unfinished
    drawn = " and ".join(_unseeded(report))
    what = f"run again with other numbers from {drawn} on each worker"
    if again.findings:
        found = _caused(again.findings[0], drawn)
        again = replace(again, findings=[found], doubts=(), approximations=(), known=(), expected=())
    elif not again.doubts:
        again = replace(again, approximations=(), known=(), expected=())
        text = f"{CHECK}: the program draws from {drawn} without a seed, and training does not depend on it"
        return replace(report, notes=(*report.notes, Note(NoteKind.HOW, text)), seconds=report.seconds + again.seconds)
    return report.merged(again, CHECK, what)


def _caused(first: Finding, drawn: str) -> Finding:
    """Return the finding on the generator behind the first difference that other numbers make."""
    return replace(
        first,
        cause=CAUSE,
        fix=fix_of(CAUSE),
        evidence=f"if all workers draw the same numbers from {drawn}, training is that of one device",
        also=(),
        exact=True,
        grounds=None,
        approximation=False,
        look_at=(),
        lines=(),
    )
