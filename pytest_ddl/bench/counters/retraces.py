"""Decide if HEAD traces more often than BASE while it trains: exactly, or with a test if traces are up to chance."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddl.bench.launching.records import Counters

SETTLED = 2
"""Traces of a program that does not trace later: one for whole batches, and one for the last, smaller batch."""
FALSE_ALARMS = 0.01
"""Share of false regressions, over all launches, among programs that retrace at random and no more than before."""
CLUMP = 8
"""Maximum number of functions that one new shape may have traced again; all of them count as one event."""


def retraces_more(pairs: Sequence[tuple[Counters, Counters]]) -> bool:
    """Return True if HEAD retraces more in steady steps than BASE; each pair is one launch, ``(base, head)``.

    If BASE has settled, any retrace of HEAD is more. If BASE still traces, the number of traces may be up to chance.
    Then the totals over all launches are compared by the conditional test of two Poisson rates (Przyborowski and
    Wilenski 1940, Biometrika 31, 313). Given their sum, the total of HEAD is binomial with HEAD's share of the steps.
    The level after ``n`` launches is ``FALSE_ALARMS / (n (n + 1))``, which adds up to ``FALSE_ALARMS`` over any number
    of tests.
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
