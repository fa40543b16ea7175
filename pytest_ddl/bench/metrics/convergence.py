"""Check that training converges as before, by MLPerf's reference convergence points, in both directions.

A faster step has no value if training needs more steps. A run that needs far fewer steps probably did something else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_ddl.bench.metrics.registry import NoNumberError, metric, statistics_package

ALPHA = 0.05
"""Level of each one-sided test, as in MLPerf."""
FEWEST_RUNS = 3
"""Minimum number of runs that must remain after the fastest and the slowest are dropped."""


class Convergence(str, Enum):
    """Verdict of a convergence check."""

    OK = "ok"
    TOO_FAST = "too fast"
    TOO_SLOW = "too slow"
    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class ConvergencePoint:
    """Epochs (or steps) that the reference needs to reach its target with one global batch size."""

    batch: int
    mean: float
    """Mean epochs, without the fastest and the slowest run."""
    spread: float
    """Standard deviation of the epochs of all runs."""
    runs: int
    """Number of runs in the mean."""

    @classmethod
    def of(cls, batch: int, epochs: Sequence[float]) -> ConvergencePoint:
        """Create a point from the epochs to target of reference runs.

        The mean is the olympic mean. The spread is the standard deviation of all runs, with divisor n. MLPerf asks for
        twice as many reference runs as a submission has. Source: mlcommons/logging, rcp_checker.py,
        ``compute_rcp_stats``.

        :raises ValueError: for fewer than 5 runs.
        """
        return cls(batch, statistics.fmean(_olympic(epochs)), statistics.pstdev(epochs), len(epochs) - 2)


@dataclass(frozen=True)
class ConvergenceResult:
    """Result of a convergence check."""

    verdict: Convergence
    mean: float
    """Mean epochs of the checked runs."""
    reference: float
    low: float
    """Fewest accepted epochs; for an equivalence test, the lower bound of the difference."""
    high: float
    """Most accepted epochs; for an equivalence test, the upper bound of the difference."""
    message: str
    p: float | None = None
    """p-value of the test that decided."""

    @property
    def passed(self) -> bool:
        """True if convergence is as before. An inconclusive result does not pass."""
        return self.verdict in (Convergence.OK, Convergence.EQUIVALENT)

    def __str__(self) -> str:
        return f"{self.verdict.value}: {self.message}"


def margin_of(mean: float, spread: float, reference_runs: int, runs: int, alpha: float = ALPHA) -> float:
    """Return by how much the mean epochs of two groups may differ and still pass as noise.

    A one-sided two-sample t test with equal spreads does not reject up to ``t(1-α, n+m-2) s sqrt(1/n + 1/m)``. MLPerf
    finds the same by bisection. In MLPerf's example, ``mean / (mean - margin)`` is 1.0353, with mean 15.75, s 0.433
    and 8 runs against 3 (10 and 5 before the fastest and the slowest were dropped). Source: mlcommons/logging,
    rcp_checker.py, ``_find_min_acceptable_mean``.

    :param spread: standard deviation of both groups.
    :raises ValueError: if a number of runs is below 2, the mean is not positive, or the spread is negative.
    """
    if reference_runs < 2 or runs < 2 or not mean > 0 or not spread >= 0:
        raise ValueError(
            f"mean={mean!r}, spread={spread!r}, reference_runs={reference_runs}, runs={runs}: a test needs 2 runs or "
            "more of each, a positive mean, and a spread of 0 or more"
        )
    t = float(statistics_package("scipy.stats").t.ppf(1 - alpha, reference_runs + runs - 2))
    return t * spread * math.sqrt(1 / reference_runs + 1 / runs)


def interpolated(points: Sequence[ConvergencePoint], batch: int) -> ConvergencePoint:
    """Return the reference for a batch size, interpolated between its neighbors if it has none of its own.

    Mean and spread are interpolated linearly in the batch size. The number of runs is the smaller of the
    two neighbors' numbers. Source: mlcommons/logging, rcp_checker.py, ``_create_interp_rcp``.

    :raises NoNumberError: outside the batch sizes of the reference, because convergence is not extrapolated.
    """
    ordered = sorted(points, key=lambda point: point.batch)
    below = [point for point in ordered if point.batch <= batch]
    above = [point for point in ordered if point.batch >= batch]
    if not below or not above:
        known = ", ".join(str(point.batch) for point in ordered) or "none"
        raise NoNumberError(
            f"no reference for global batch {batch} (there are: {known}): run the reference with it, "
            "or with a smaller and a larger one"
        )
    low, high = below[-1], above[0]
    if low.batch == high.batch:
        return low
    share = (batch - low.batch) / (high.batch - low.batch)
    return ConvergencePoint(
        batch,
        low.mean + share * (high.mean - low.mean),
        low.spread + share * (high.spread - low.spread),
        min(low.runs, high.runs),
    )


@metric(
    "epochs",
    "lower",
    scope="training",
    name="epochs_to_target",
    summary="too fast, too slow or like the reference, by a t test in each direction",
    ratio_scale=False,
)
def convergence_guard(
    points: Sequence[ConvergencePoint], batch: int, epochs: Sequence[float], *, alpha: float = ALPHA
) -> ConvergenceResult:
    """Check that runs with a batch size need about as many epochs to the target as the reference does.

    MLPerf rejects runs that are too fast. Here, runs that are too slow are rejected too. So there are two one-sided
    tests, each with ``alpha``: ``scipy.stats.ttest_ind_from_stats`` with equal variances, of olympic means. OK means
    only that no difference was shown, which is likely with few or noisy runs. :func:`convergence_equivalence` shows
    that there is none beyond a margin.

    :formula: olympic mean within mean +- t(0.95, n+m-2) s sqrt(1/n + 1/m)
    :source: MLPerf: mlcommons/logging, rcp_checker
    :param points: reference points of one or more batch sizes.
    :param epochs: epochs (or steps) to the target of each run; ``inf`` for a run that never reached it.
    :raises NoNumberError: if the batch size is outside those of the reference.
    :raises ValueError: for fewer than 5 runs.
    """
    stats = statistics_package("scipy.stats")

    reference = interpolated(points, batch)
    kept = _olympic(epochs)
    runs, mean = len(kept), statistics.fmean(kept)
    margin = margin_of(reference.mean, reference.spread, reference.runs, runs, alpha)
    low, high = reference.mean - margin, reference.mean + margin
    if not math.isfinite(mean):
        never = sum(not math.isfinite(each) for each in epochs)
        message = f"{never} of {len(epochs)} runs did not reach the target with global batch {batch}"
        return ConvergenceResult(Convergence.TOO_SLOW, mean, reference.mean, low, high, message)
    if reference.spread > 0:
        p = float(
            stats.ttest_ind_from_stats(
                mean, reference.spread, runs, reference.mean, reference.spread, reference.runs, equal_var=True
            ).pvalue
        )
    else:
        p = 1.0 if mean == reference.mean else 0.0
    verdict = Convergence.OK
    if mean < low:
        verdict = Convergence.TOO_FAST
    elif mean > high:
        verdict = Convergence.TOO_SLOW
    message = (
        f"{mean:.4g} epochs with global batch {batch}, reference {reference.mean:.4g} "
        f"(accepted: {low:.4g} to {high:.4g}, {runs} runs against {reference.runs})"
    )
    return ConvergenceResult(verdict, mean, reference.mean, low, high, message, p / 2)


def convergence_equivalence(
    reference: Sequence[float], epochs: Sequence[float], *, margin: float = 0.05, alpha: float = ALPHA
) -> ConvergenceResult:
    """Test that runs need as many epochs as the reference; a pass shows equivalence within the margin.

    Two one-sided tests (TOST) check that the difference of means lies within ``± margin * reference mean``
    (``statsmodels.stats.weightstats.ttost_ind``, unequal variances). The verdict is EQUIVALENT if both reject, and
    DIFFERENT if the interval of the difference lies outside the margin. Otherwise it is INCONCLUSIVE, which does not
    pass: add runs.

    Source: Schuirmann 1987, J. Pharmacokinetics and Biopharmaceutics 15(6).

    :param margin: relative difference that does not matter.
    :raises ValueError: for fewer than 2 runs of either, runs that never reached the target, or a margin not above 0.
    """
    if min(len(reference), len(epochs)) < 2:
        raise ValueError(
            f"reference has {len(reference)} runs and epochs has {len(epochs)}: equivalence needs 2 or more of each"
        )
    if not margin > 0:
        raise ValueError(f"margin={margin!r} must be above 0, as in 0.05 for 5 %")
    if not all(math.isfinite(each) for each in (*reference, *epochs)):
        raise ValueError("some runs never reached the target: their epochs cannot be compared; use convergence_guard")
    import numpy as np

    tests = statistics_package("statsmodels.stats.weightstats")

    first, second = statistics.fmean(reference), statistics.fmean(epochs)
    bound = margin * first
    if statistics.pvariance(reference) == statistics.pvariance(epochs) == 0:
        # Without spread, there is nothing to test: the difference is exact.
        p, low, high = float(abs(second - first) >= bound), second - first, second - first
    else:
        means = tests.CompareMeans(
            tests.DescrStatsW(np.asarray(epochs, float)), tests.DescrStatsW(np.asarray(reference, float))
        )
        p = float(means.ttost_ind(-bound, bound, usevar="unequal")[0])
        low, high = (float(each) for each in means.tconfint_diff(alpha=2 * alpha, usevar="unequal"))
    if p < alpha:
        verdict = Convergence.EQUIVALENT
    elif low > bound or high < -bound:
        verdict = Convergence.DIFFERENT
    else:
        verdict = Convergence.INCONCLUSIVE
    message = (
        f"{second:.4g} epochs against {first:.4g}: difference {low:+.3g} to {high:+.3g} "
        f"({1 - 2 * alpha:.0%} interval), up to {bound:.3g} does not matter"
    )
    if verdict is Convergence.INCONCLUSIVE:
        message += f"; too wide to decide with {len(reference)} and {len(epochs)} runs: add runs"
    return ConvergenceResult(verdict, second, first, -bound, bound, message, p)


def _olympic(epochs: Sequence[float]) -> list[float]:
    """Return the epochs of all runs except the fastest and the slowest, in ascending order."""
    if len(epochs) < FEWEST_RUNS + 2:
        raise ValueError(
            f"{len(epochs)} runs: {FEWEST_RUNS + 2} are needed: the fastest and the slowest are dropped (MLPerf)"
        )
    return sorted(epochs)[1:-1]
