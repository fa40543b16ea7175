"""Mark changes that only follow from another measured change, and so are no regressions by themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pytest_ddl.bench.counters.changes import explained_bytes
from pytest_ddl.bench.history.detect import Change, Verdict
from pytest_ddl.bench.history.meaning import family, leaf, variant, whole_workload
from pytest_ddl.bench.history.model import Series
from pytest_ddl.bench.records import Counters

STEPS = ("step", "throughput")
EXPLAINED = Verdict(
    "explained",
    "the step itself did not get slower: the one replica that it is compared with got faster",
)
LARGER_MODEL = Verdict("explained", "the model has more parameters, and reduces as much more as these explain")


def place(series: Series) -> tuple[str, ...]:
    """Return the key of series that are measured together: machine, environment, workload and variant."""
    found = variant(series)
    return (series.machine, series.environment, whole_workload(series), repr(found or series.parameters))


def overlap(one: Change, other: Change) -> bool:
    """Return whether one commit can have caused both changes."""
    return one.before.position < other.after.position and other.before.position < one.after.position


def explain(changes: Sequence[Change], series: Sequence[Series]) -> list[Change]:
    """Return the changes in the same order, and mark those as explained that only follow from something else.

    Efficiency, overhead and the share of communication also get worse when one replica gets faster, which is no
    regression. They count if the step or the throughput of the same variant got worse in the same commits. They also
    count if neither is known for the variant. A larger model reduces more bytes, which is no regression either.
    """
    known = {place(one) for one in series if family(one.benchmark).name in STEPS and one.points}
    slower: dict[tuple[str, ...], list[Change]] = defaultdict(list)
    for one in changes:
        if one.worse and one.kind == "step" and family(one.series.benchmark).name in STEPS:
            slower[place(one.series)].append(one)
    parameters = {place(one): one for one in series if leaf(one.benchmark) == "parameter_bytes"}
    told = []
    for one in changes:
        where = place(one.series)
        alone = family(one.series.benchmark).derived and where in known
        if alone and one.worse and not any(overlap(one, other) for other in slower[where]):
            told.append(one.judged(EXPLAINED))
        elif one.worse and leaf(one.series.benchmark) == "reduced_bytes" and _is_larger(one, parameters.get(where)):
            told.append(one.judged(LARGER_MODEL))
        else:
            told.append(one)
    return told


def _is_larger(change: Change, parameters: Series | None) -> bool:
    """Return whether the model grew in the same commits by enough to explain the reduced bytes."""
    sizes = {point.commit.hash: int(point.value) for point in parameters.points} if parameters else {}
    if change.before.hash not in sizes or change.after.hash not in sizes:
        return False
    before, after = (
        Counters(parameter_bytes=sizes[commit.hash], reduced_bytes=int(reduced))
        for commit, reduced in ((change.before, change.old), (change.after, change.new))
    )
    return after.reduced_bytes <= explained_bytes(before, after)
