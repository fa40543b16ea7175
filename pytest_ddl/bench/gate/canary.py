"""Judge the network between the hosts of a gate: both versions must have the same hosts, and these must not change.

The canary is a small all-reduce that both sides run in turn with their blocks, in each launch. Both sides run the same
one. So it shows what the network does, whatever the versions do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pytest_ddl.bench.gate.lockstep import Paired
from pytest_ddl.bench.gate.verdict import Rule, percent


def network_problem(made: Sequence[Paired], rule: Rule) -> str:
    """Return why the times of some launches cannot be compared; an empty text if they can.

    Two tests use the level of one look of the gate (:attr:`Rule.level`), each for a change of more than the margin:

    * The canary of HEAD took another time than that of BASE: a t test of the log ratios of the launches.
    * The canary changed from launch to launch by more than the two sides differ within one launch: a one-way analysis
      of variance of the log times, with the launches as groups (Fisher, *Statistical Methods for Research Workers*,
      1925). Both sides of a launch meet the same network, so their differences are the noise.

    :param made: launches that a decision uses.
    """
    for one in made:
        if one.base.hosts != one.head.hosts:
            of_base, of_head = (", ".join(dict.fromkeys(launch.hosts)) for launch in (one.base, one.head))
            return (
                f"the versions did not run on the same hosts: BASE on {of_base}, HEAD on {of_head}. Run the gate "
                "inside one allocation, or name the hosts with PYTEST_DDL_HOSTS"
            )
    logs = [(math.log(one.canary[0]), math.log(one.canary[1])) for one in made if one.canary is not None]
    # Two groups have no reliable spread.
    if len(logs) < 3:
        return ""
    return _between_sides(logs, rule) or _between_launches(logs, rule)


def _between_sides(logs: Sequence[tuple[float, float]], rule: Rule) -> str:
    from scipy import stats

    ratios = [head - base for base, head in logs]
    mean = statistics.fmean(ratios)
    if abs(mean) <= math.log1p(rule.margin):
        return ""
    if len(set(ratios)) > 1 and not stats.ttest_1samp(ratios, 0.0).pvalue < rule.level:
        return ""
    return (
        f"the network was not the same for both versions: a small all-reduce of HEAD took {percent(mean)} of time "
        f"compared with that of BASE, in {len(logs)} launches, and not by chance. {_FIX}"
    )


def _between_launches(logs: Sequence[tuple[float, float]], rule: Rule) -> str:
    from scipy import stats

    means = [statistics.fmean(sides) for sides in logs]
    change = max(means) - min(means)
    if change <= math.log1p(rule.margin):
        return ""
    if any(base != head for base, head in logs) and not stats.f_oneway(*logs).pvalue < rule.level:
        return ""
    slow, fast = (1e3 * math.exp(find(means)) for find in (max, min))
    return (
        f"the network changed while the gate measured: the same small all-reduces took from {fast:.3g} to "
        f"{slow:.3g} ms in {len(logs)} launches, much more than both versions differ within a launch. {_FIX}"
    )


_FIX = "Measure while nobody else uses the network between the hosts"
