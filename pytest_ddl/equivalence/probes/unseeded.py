"""SEED, run differently: give each rank random numbers of its own, as on a real cluster.

All ranks of a comparison begin with the same state of the generators of Python and NumPy. So a program that draws from
them without a seed gets the same numbers on all ranks here, and other numbers on each worker of a real cluster.

Workers may make their data with such numbers, for example in a test. Then each of them trains on other examples than
one device, and what it computes says nothing. But all copies of a variable must still be equal. Workers may also draw
the order of their examples. Then no example may be lost or repeated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from enum import Enum

from pytest_ddl.equivalence.causes import fix_of
from pytest_ddl.equivalence.checks.liveness import CHECK as LIVENESS
from pytest_ddl.equivalence.checks.replica_equality import CHECK as REPLICA_EQ
from pytest_ddl.equivalence.checks.run import CHECK as RUN
from pytest_ddl.equivalence.checks.seed import CHECK as CHECK
from pytest_ddl.equivalence.evidence.coverage import Coverage, Examples, Order, coverage
from pytest_ddl.equivalence.evidence.tolerance import FAILURE
from pytest_ddl.equivalence.findings import Doubt, Finding
from pytest_ddl.equivalence.probes.repeating import CompareOnce, left_open, timed
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.records import RankRecord
from pytest_ddl.training.settings import RunSettings

CAUSE = "random-stream-differs-across-workers"
_FOR_ANY_DATA = (RUN, LIVENESS, REPLICA_EQ)
"""Checks that hold if each worker has data of its own."""


def wanted(report: Report, _names: Collection[str]) -> bool:
    """Return whether a program on several ranks draws from a generator that it does not seed."""
    return len(report.distributed.ranks) > 1 and bool(_unseeded(report))


def _unseeded(report: Report) -> list[str]:
    return sorted({name for rank in report.distributed.ranks for name in rank.facts.get("unseeded", ())})


def probe(report: Report, settings: RunSettings, compare_once: CompareOnce) -> Report:
    """Run again with other numbers on each rank. What differs then depends on numbers that workers do not share."""
    names = [result.check for result in report.results]
    again = timed(report, compare_once(replace(settings, seeds_by_rank=True), names))
    unfinished = left_open(report, again)
    if unfinished is not None:
        return unfinished
    drawn = " and ".join(_unseeded(report))
    data = _data(report, again)
    findings = [f for f in again.findings if f.check in _FOR_ANY_DATA or data in (_Data.SAME, _Data.LOST)]
    if findings:
        again = replace(again, findings=[_caused(findings[0], drawn)], doubts=())
    elif data is _Data.UNKNOWN:
        reason = "the workers then consume other examples, and it is not known whether some are lost or repeated"
        advice = f"seed {drawn}, or let the test train on all examples"
        again = replace(again, findings=[], doubts=(Doubt(CHECK, f"{reason}: {advice}"),))
    elif data in (_Data.OWN, _Data.ORDERED) or not again.doubts:
        how = "training does not depend on it" if data is _Data.SAME else "only the examples of a worker depend on it"
        text = f"{CHECK}: the program draws from {drawn} without a seed, and {how}"
        return replace(report.noted(text), seconds=report.seconds + again.seconds)
    return report.merged(
        replace(again, approximations=(), known=(), expected=()),
        CHECK,
        f"run again with other numbers from {drawn} on each worker",
    )


class _Data(Enum):
    """Dependence of the workers' examples on the numbers."""

    SAME = "not at all, or they were not observed"
    ORDERED = "each worker consumes its examples in another order"
    OWN = "each worker makes its own examples"
    LOST = "some examples are lost, and others repeated"
    UNKNOWN = "the workers consume other examples, and the run is too short to decide whether some are lost"


def _data(report: Report, again: Report) -> _Data:
    reference, plain, apart = again.reference, report.distributed, again.distributed
    found = coverage(reference, apart)
    if found is None:
        return _Data.SAME
    before, after = (([_examples(rank, found.by) for rank in record.ranks]) for record in (plain, apart))
    if before == after:
        return _Data.SAME
    if [_sum(steps) for steps in before] == [_sum(steps) for steps in after]:
        return _Data.ORDERED
    known = {name for record in (reference, plain) for rank in record.ranks for name in _sum(_examples(rank, found.by))}
    # The first worker has the numbers of one device.
    if not any(known & set(_sum(steps)) for steps in after[1:]):
        return _Data.OWN
    lost = found.order in (Order.WRONG, Order.REPEATED) and _comes_in_passes(found)
    return _Data.LOST if lost else _Data.UNKNOWN


def _comes_in_passes(found: Coverage) -> bool:
    """Return whether it cannot be chance that one device consumed each of the examples equally often.

    ``N`` draws with replacement from ``n`` examples give each of them ``k`` times with the probability
    ``N! / (k!**n * n**N)`` (multinomial distribution).
    """
    counts = set(found.ours.values())
    if len(counts) != 1 or set(found.theirs) - set(found.ours):
        return False
    each, number = counts.pop(), len(found.ours)
    draws = each * number
    log = math.lgamma(draws + 1) - number * math.lgamma(each + 1) - draws * math.log(number)
    return log <= math.log(FAILURE)


def _examples(rank: RankRecord, by: str) -> list[Examples]:
    """Return the examples that a worker consumed, by step."""
    return [_sum([Counter(batch.names(by)) for batch in step.batches]) for step in rank.steps]


def _sum(counts: list[Examples]) -> Examples:
    return sum(counts, Counter[int | str]())


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
