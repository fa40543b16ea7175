"""Changes of numbers that compare two steps: which of them say anything that the steps themselves do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pytest_ddl.bench.history.detect import Change, Verdict
from pytest_ddl.bench.history.meaning import family, variant, workload
from pytest_ddl.bench.history.model import Series

STEPS = ("step", "throughput")
EXPLAINED = Verdict(
    "explained",
    "the step itself did not get slower: the one replica that it is compared with got faster",
)


def place(series: Series) -> tuple[str, ...]:
    """What is measured there together: machine, environment, workload and variant."""
    found = variant(series)
    return (series.machine, series.environment, workload(series), repr(found or series.parameters))


def overlap(one: Change, other: Change) -> bool:
    """Whether one commit can have caused both."""
    return one.before.position < other.after.position and other.before.position < one.after.position


def explain(changes: Sequence[Change], series: Sequence[Series]) -> list[Change]:
    """The same changes in the same order; what got worse in comparison alone is marked as explained.

    Efficiency, overhead and the share of communication also get worse when one replica gets faster. That is no
    regression: they count where the step or the throughput of their own variant got worse in the same commits.
    Variants of which neither is known keep theirs.
    """
    known = {place(one) for one in series if family(one.benchmark).name in STEPS and one.points}
    slower: dict[tuple[str, ...], list[Change]] = defaultdict(list)
    for one in changes:
        if one.worse and one.kind == "step" and family(one.series.benchmark).name in STEPS:
            slower[place(one.series)].append(one)
    told = []
    for one in changes:
        where = place(one.series)
        alone = family(one.series.benchmark).derived and where in known
        if alone and one.worse and not any(overlap(one, other) for other in slower[where]):
            told.append(one.judged(EXPLAINED))
        else:
            told.append(one)
    return told
