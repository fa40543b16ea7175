"""Whether a version of a program traces more often while it trains: exact, or a test where that is up to chance."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddl.bench.records import Counters

SETTLED = 2
"""Traces that a program has which does not trace later: of whole batches, and of the last, smaller one."""
FALSE_ALARMS = 0.01
"""Share of programs that retrace at random, and no more than before, which are called worse, over all launches."""
CLUMP = 8
"""One new shape may have several functions traced, up to so many: these are one event."""


def retraces_more(pairs: Sequence[tuple[Counters, Counters]]) -> bool:
    """Whether HEAD retraces more in steady steps than BASE, each pair a launch as ``(base, head)``.

    Where BASE has settled, any retrace is more. Where BASE traces on too, when it does may be up to chance: then
    the totals over all launches are compared by the conditional test of two Poisson rates (Przyborowski and
    Wilenski 1940, Biometrika 31, 313: given their sum, HEAD's is binomial by its share of the steps), at
    ``FALSE_ALARMS / (n (n + 1))`` after ``n`` launches, which adds up to ``FALSE_ALARMS`` over however many looks.
    """
    from scipy import stats

    steps = [sum(pair[side].steady_steps for pair in pairs) for side in (0, 1)]
    counts = [sum(pair[side].retraces for pair in pairs) for side in (0, 1)]
    if not counts[1]:
        return False
    if not counts[0] and all(base.traces <= SETTLED for base, _head in pairs):
        return True
    found = [one.retraces for pair in pairs for one in pair]
    clump = max(size for size in range(1, CLUMP + 1) if not any(number % size for number in found))
    before, after = (number // clump for number in counts)
    test = stats.binomtest(after, before + after, steps[1] / sum(steps), alternative="greater")
    return bool(test.pvalue < FALSE_ALARMS / (len(pairs) * (len(pairs) + 1)))
