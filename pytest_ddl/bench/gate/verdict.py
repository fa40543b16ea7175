"""Statistics of the gate: from one log ratio of step times for each launch to a verdict.

All decisions are about step time, for which lower is better. A gain in throughput is a shorter step, so it can never be
a regression.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar

from pytest_ddl.json_records import JsonRecord


class Verdict(str, Enum):
    """Result of a measurement of HEAD."""

    PASS = "pass"
    IMPROVEMENT = "improvement"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    ERROR = "could not measure"


@dataclass(frozen=True)
class Rule:
    """Rule that says when to stop, and with which verdict.

    The data is examined after each number of launches in ``looks``, and each look can end the measurement. Each look
    uses ``false_alarms / len(looks)`` as its level. So all looks together keep ``false_alarms``, even if they depend
    on each other (Bonferroni). Repeated looks at an uncorrected level do not keep it (Jennison and Turnbull, *Group
    Sequential Methods*, 2000, chapter 2).

    :raises ValueError: if a value cannot be used; the message names it.
    """

    margin: float = 0.025
    """Relative slowdown that is tolerated: .025 is 2.5 % more time for a step."""
    false_alarms: float = 0.01
    """Probability of a REGRESSION over all looks of one cell, if HEAD is exactly as fast as BASE."""
    looks: tuple[int, ...] = (4, 6, 9, 13, 18, 24)
    """Numbers of launches after which the data is examined."""

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise ValueError(f"margin={self.margin!r} must be a share between 0 and 1, for example 0.025 for 2.5 %")
        if not 0 < self.false_alarms < 0.5:
            raise ValueError(f"false_alarms={self.false_alarms!r} must be a probability below .5, for example 0.01")
        if not self.looks or self.looks[0] < 3 or sorted(set(self.looks)) != list(self.looks):
            raise ValueError(f"looks={self.looks!r} must be rising numbers of launches, the first at least 3")

    @property
    def level(self) -> float:
        """One-sided level of a single look."""
        return self.false_alarms / len(self.looks)

    @classmethod
    def up_to(cls, launches: int, **given: float) -> Rule:
        """Return a rule with the usual looks up to a number of launches, which is the last look.

        :raises ValueError: if there are fewer than 3 launches, because their spread cannot be estimated.
        """
        if launches < 3:
            raise ValueError(f"launches={launches!r} must be at least 3, to estimate their spread")
        usual = cls.looks + tuple(range(30, launches, 8))
        return cls(looks=(*(look for look in usual if look < launches), launches), **given)


@dataclass(frozen=True)
class Decision(JsonRecord):
    """Decision from the launches up to now. Ratios are of step time, HEAD over BASE; 1.05 is 5 % slower."""

    DERIVED: ClassVar = ("throughput_ratio",)

    verdict: Verdict
    reason: str
    launches: int
    ratio: float = math.nan
    """Estimate: exp of the mean of the log ratios."""
    lower: float = math.nan
    """One-sided lower bound of ``ratio`` at the level of one look."""
    upper: float = math.nan
    """One-sided upper bound of ``ratio`` at the same level."""
    sd: float = math.nan
    """Standard deviation of the log ratios between launches."""
    confidence: float = math.nan
    """Confidence of each bound, for example .998 if five looks share 1 %."""
    log_ratios: tuple[float, ...] = field(default=(), repr=False)

    @property
    def throughput_ratio(self) -> float:
        """Throughput of HEAD over BASE, the reciprocal of the ratio of step times; only for display."""
        return 1.0 / self.ratio


def decide(log_ratios: Sequence[float], rule: Rule, what: str = "the time of a step") -> Decision:
    """Decide from the launches up to now.

    * REGRESSION: the one-sided t lower bound of the mean log ratio is above 0, and the estimate above the margin.
    * PASS: the upper bound is below twice the margin, and the estimate at most the margin.
    * IMPROVEMENT: a pass whose upper bound is below 0 and whose estimate is below minus the margin.
    * INCONCLUSIVE: all other cases; more launches are needed.

    A threshold for the estimate is not enough: it has only 50 % power for an effect of its own size. The unit is the
    launch, because pooled samples of one launch are not independent (Kalibera and Jones 2013, arXiv 2007.10899). The t
    interval is that of ``scipy.stats.ttest_1samp``.

    :param log_ratios: one number for each launch: log of step time, HEAD over BASE.
    :param what: what the numbers are, for the reason.
    :raises ValueError: if a number is not finite.
    """
    values = [float(value) for value in log_ratios]
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"log_ratios={values!r} must be finite numbers")
    if len(values) < 3:
        return Decision(
            Verdict.INCONCLUSIVE, f"{len(values)} launch(es): at least 3 are needed", len(values), log_ratios=(*values,)
        )
    lower, upper = _bounds(values, 1 - rule.level)
    mean, margin = statistics.fmean(values), math.log1p(rule.margin)
    verdict, reason = _judge(mean, lower, upper, margin, rule, what)
    return Decision(
        verdict,
        reason,
        len(values),
        ratio=math.exp(mean),
        lower=math.exp(lower),
        upper=math.exp(upper),
        sd=statistics.stdev(values),
        confidence=1 - rule.level,
        log_ratios=tuple(values),
    )


def decide_launches(medians: Sequence[float], totals: Sequence[float], rule: Rule) -> Decision:
    """Run :func:`decide` on the medians of the launches. The total times can turn a pass into a regression.

    Rare long steps do not show in a median. The totals use a tenth of the false alarms and the medians use the rest,
    so that both together keep ``rule.false_alarms``.

    :param medians: for each launch, the median of its log ratios.
    :param totals: for each launch, the log of the time of all its steps, HEAD over BASE.
    """
    share = rule.false_alarms / 10
    decision = decide(medians, replace(rule, false_alarms=rule.false_alarms - share))
    if decision.verdict not in (Verdict.PASS, Verdict.IMPROVEMENT):
        return decision
    total = decide(totals, replace(rule, false_alarms=share))
    if total.verdict is not Verdict.REGRESSION:
        return decision
    reason = (
        f"the median time of a step changed by {percent(math.log(decision.ratio))}, but the time of all steps together "
        f"by {percent(math.log(total.ratio))}: HEAD has rare long steps (writing, retracing, garbage collection)"
    )
    return replace(total, reason=reason)


def _bounds(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Return the one-sided bounds of the mean, each at the given confidence."""
    from scipy import stats

    if len(set(values)) == 1:  # without spread, scipy would warn about lost precision
        return values[0], values[0]
    lower = stats.ttest_1samp(values, 0.0, alternative="greater").confidence_interval(confidence).low
    upper = stats.ttest_1samp(values, 0.0, alternative="less").confidence_interval(confidence).high
    return float(lower), float(upper)


def _judge(mean: float, lower: float, upper: float, margin: float, rule: Rule, what: str) -> tuple[Verdict, str]:
    estimate, allowed = percent(mean), f"{rule.margin * 100:g} %"
    between = f"it is between {percent(lower)} and {percent(upper)}"
    if lower > 0 and mean > margin:
        return Verdict.REGRESSION, (
            f"{what} changed by {estimate}, more than the margin of {allowed}, and not by chance"
        )
    if upper < 0 and mean < -margin:
        return Verdict.IMPROVEMENT, f"{what} changed by {estimate}"
    if mean <= margin and upper < 2 * margin:
        return Verdict.PASS, (f"{what} changed by {estimate}, and surely by less than {percent(2 * margin)}")
    if mean > margin:
        return Verdict.INCONCLUSIVE, (f"{what} seems to have changed by {estimate}, but this may be chance: {between}")
    return Verdict.INCONCLUSIVE, f"a slowdown of {percent(2 * margin)} cannot be ruled out: {between}"


def percent(log_ratio: float) -> str:
    """Format a log ratio as a signed percentage: ``+5.0 %``."""
    return f"{math.expm1(log_ratio) * 100:+.1f} %"
