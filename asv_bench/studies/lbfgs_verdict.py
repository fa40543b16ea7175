"""Decide whether two courses of L-BFGS are equal to rounding, by the rounding noise of runs in other orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asv_bench.studies.lbfgs_method import Problem, Trace, Vector
from pytest_ddl.bench.metrics.registry import statistics_package

FALSE_ALARM = 0.001
"""Probability that a run that differs only by rounding is called different."""
FEWEST_RUNS = 5
"""Minimum number of runs from which the spread of the noise is computed."""
UNIT = 2.0**-53
"""Rounding unit of float64: smaller deviations count as this one."""
EQUAL, DIFFERS, INCONCLUSIVE = "equal", "differs", "inconclusive"


@dataclass(frozen=True)
class Equality:
    """Verdict on two results, with the numbers that it rests on."""

    verdict: str
    """``equal``, ``differs`` or ``inconclusive``."""
    found: float
    """Course: the largest deviation, as a multiple of the median noise. Optimum: the distance of both points."""
    bound: float
    """Largest value of ``found`` that rounding explains."""
    iterations: int
    """Number of iterations that were compared."""
    reason: str


def deviations(trace: Trace, center: Trace, iterations: int) -> Vector:
    """Return the distance of two courses after each iteration, relative to the norm of the point; ``[iterations]``."""
    pairs = zip(trace.points[1 : iterations + 1], center.points[1 : iterations + 1], strict=True)
    # NumPy's maximum keeps NaN, which Python's max does not.
    return np.maximum(UNIT, [np.linalg.norm(one - own) / np.linalg.norm(own) for one, own in pairs])


def compare_course(center: Trace, noise: Sequence[Trace], other: Trace) -> Equality:
    """Compare the course of a sharded run with that of one machine.

    The noise runs solve the same problem on one machine with examples and features in other orders, so they differ from
    ``center`` by rounding only. The statistic of a run is the largest of its deviations, each divided by the median
    deviation of the (other) noise runs in the same iteration. The bound is the upper prediction limit of its logarithm
    for one more run, from a normal distribution. Iterations count while all noise runs take the same branches, and
    while the noise is smaller than the step, because a wrong step could hide in larger noise.

    :param noise: at least ``FEWEST_RUNS`` runs; fewer give ``inconclusive``.
    """
    if len(noise) < FEWEST_RUNS:
        why = f"{len(noise)} runs in other orders; {FEWEST_RUNS} are needed"
        return Equality(INCONCLUSIVE, math.nan, math.nan, 0, why)
    iterations = _comparable(center, noise)
    if not iterations:
        return Equality(INCONCLUSIVE, math.nan, math.nan, 0, "rounding changes the course from the first iteration on")
    own = np.array([deviations(trace, center, iterations) for trace in noise])
    statistics = []
    for place, row in enumerate(own):
        others = np.delete(own, place, axis=0)
        statistics.append(float(np.log(row / np.median(others, axis=0)).max()))
    runs = len(statistics)
    t = statistics_package("scipy.stats").t.ppf(1 - FALSE_ALARM, runs - 1)
    bound = math.exp(np.mean(statistics) + t * np.std(statistics, ddof=1) * math.sqrt(1 + 1 / runs))
    if other.decisions[:iterations] != center.decisions[:iterations]:
        pairs = zip(other.decisions, center.decisions, strict=False)
        place = next((k for k, (one, two) in enumerate(pairs, 1) if one != two), other.iterations + 1)
        why = f"in iteration {place}, the line search takes other branches than in all runs of one machine"
        return Equality(DIFFERS, math.inf, bound, iterations, why)
    found = float((deviations(other, center, iterations) / np.median(own, axis=0)).max())
    if not math.isfinite(found):
        return Equality(DIFFERS, math.inf, bound, iterations, "a point is not finite")
    verdict = EQUAL if found <= bound else DIFFERS
    why = f"deviates by {found:.3g} times the median rounding noise; rounding explains up to {bound:.3g}"
    return Equality(verdict, found, bound, iterations, why)


def _comparable(center: Trace, noise: Sequence[Trace]) -> int:
    """Return the number of iterations whose course rounding neither changes nor hides."""
    longest = min([center.iterations, *(trace.iterations for trace in noise)])
    for k in range(longest):
        if any(trace.decisions[k] != center.decisions[k] for trace in noise):
            return k
        step = float(np.linalg.norm(center.points[k + 1] - center.points[k]))
        widest = max(float(np.linalg.norm(trace.points[k + 1] - center.points[k + 1])) for trace in noise)
        if widest >= step:
            return k
    return longest


def compare_optimum(
    problem: Problem, one: Vector, reference: Vector, *, tolerance: float, converged: bool = True
) -> Equality:
    """Compare a minimizer of a strongly convex problem with a reference.

    Both are within ``norm of gradient / penalty`` of the only minimum, so their distance is at most the sum of both.
    The norms are computed in extended precision and enlarged by the difference from those in float64, which is their
    rounding error.

    :param tolerance: norm of the gradient that both must have reached.
    :param converged: whether the run that found ``one`` reports that it has converged. If it does, and the gradient is
        above the tolerance there, the run has used another gradient, and differs.
    """
    norms = []
    for point in (one, reference):
        exact = problem.gradient(point.astype(np.longdouble))[1]
        error = float(np.linalg.norm(exact - problem.gradient(point)[1]))
        norms.append(float(np.linalg.norm(exact)) + error)
    distance, bound = float(np.linalg.norm(one - reference)), sum(norms) / problem.penalty
    if not distance <= bound:
        why = f"distance {distance:.3g}; the norms of the gradients allow {bound:.3g}"
        return Equality(DIFFERS, distance, bound, 0, why)
    if converged and norms[1] <= tolerance < norms[0]:
        why = f"the run reports convergence at a point where the gradient has the norm {norms[0]:.3g}"
        return Equality(DIFFERS, distance, bound, 0, why)
    if max(norms) > tolerance:
        why = f"not converged: a gradient has the norm {max(norms):.3g}, above {tolerance:g}; allow more iterations"
        return Equality(INCONCLUSIVE, distance, bound, 0, why)
    why = f"distance {distance:.3g}; the norms of the gradients allow {bound:.3g}"
    return Equality(EQUAL, distance, bound, 0, why)
