"""L-BFGS over shards: the method, the verdict in both directions, and real strategies."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from asv_bench.studies import lbfgs
from asv_bench.studies.lbfgs_method import (
    OneMachine,
    Problem,
    SearchError,
    Trace,
    Vector,
    digits_problem,
    minimize,
    put_back,
)
from asv_bench.studies.lbfgs_sharded import Orders, RankCourse
from asv_bench.studies.lbfgs_verdict import compare_course, compare_optimum
from pytest_ddl.bench.launching.ranks import BenchError

ITERATIONS = 25


@functools.cache
def small() -> Problem:
    """200 digits of 5 classes with 16 features. They are read in the first test, because sklearn is slow to import."""
    penalty = 0.1
    whole = digits_problem(penalty)
    kept = np.flatnonzero(whole.labels < 5)[:200]
    return Problem(whole.features[kept, 16:32], whole.labels[kept], 5, penalty)


def solved(problem: Problem, iterations: int = ITERATIONS) -> Trace:
    return minimize(OneMachine(problem), iterations=iterations)


def in_another_order(seed: int) -> Trace:
    problem, order = small().permuted(seed)
    return put_back(solved(problem), order)


@pytest.fixture(scope="module")
def center() -> Trace:
    return solved(small())


@pytest.fixture(scope="module")
def noise() -> list[Trace]:
    return [in_another_order(seed) for seed in range(1, 11)]


# -- the method --------------------------------------------------------------------------------------


def test_the_gradient_belongs_to_the_objective() -> None:
    generator = np.random.default_rng(0)
    point, direction = generator.normal(size=(2, small().size))
    step = 1e-6
    ahead, behind = (small().gradient(point + sign * step * direction)[0] for sign in (1, -1))
    assert (ahead - behind) / (2 * step) == pytest.approx(small().gradient(point)[1] @ direction, rel=1e-6)


def test_the_minimum_is_that_of_scipy() -> None:
    trace = solved(small(), iterations=200)
    assert trace.converged
    point, _note = lbfgs.scipy_optimum(small())
    found = compare_optimum(small(), trace.points[-1], point, tolerance=lbfgs.AT_OPTIMUM)
    assert (found.verdict, found.found <= found.bound) == ("equal", True)


def test_another_minimum_differs_and_an_early_end_decides_nothing() -> None:
    point, _note = lbfgs.scipy_optimum(small())
    other, _note = lbfgs.scipy_optimum(replace(small(), labels=np.roll(small().labels, 1)))
    found = compare_optimum(small(), other, point, tolerance=lbfgs.AT_OPTIMUM)
    assert (found.verdict, "reports convergence" in found.reason) == ("differs", True)
    early = solved(small(), iterations=3)
    assert not early.converged
    found = compare_optimum(small(), early.points[-1], point, tolerance=lbfgs.AT_OPTIMUM, converged=early.converged)
    assert (found.verdict, "not converged" in found.reason) == ("inconclusive", True)


def test_a_distance_above_the_bound_differs() -> None:
    """The bound holds for every pair of points of one problem, so only another problem's optimum can exceed it."""

    class Blind(Problem):
        """Problem whose gradient is wrong: it reports a minimum everywhere."""

        def gradient(self, point: Vector) -> tuple[float, Vector]:
            return 0.0, np.zeros_like(point)

    blind = Blind(small().features, small().labels, small().classes, small().penalty)
    zeros = np.zeros(small().size)
    assert compare_optimum(blind, zeros, zeros + 1e-3, tolerance=1.0).verdict == "differs"
    assert compare_optimum(blind, zeros, zeros, tolerance=1.0).verdict == "equal"


def test_commands_are_small_and_counted(center: Trace) -> None:
    assert center.commands["gradient"] == 1 + center.iterations + sum(map(len, center.decisions))
    # Less than a tenth of the vectors that the gradients move.
    assert center.command_bytes < 60_000
    assert set(center.commands) == {"gradient", "dot", "combine"}


def test_a_gradient_that_does_not_belong_to_the_objective_is_reported() -> None:
    class Wrong(OneMachine):
        def gradient(self, point: int, out: int) -> float:
            objective = super().gradient(point, out)
            self._registers[out] *= -1
            return objective

    with pytest.raises(SearchError, match="iteration 1: no step satisfies the Wolfe conditions"):
        minimize(Wrong(small()), iterations=5)


# -- the verdict on the course -----------------------------------------------------------------------


def test_another_order_is_equal(center: Trace, noise: list[Trace]) -> None:
    verdicts = [compare_course(center, noise, in_another_order(seed)).verdict for seed in range(100, 120)]
    # One false alarm in a thousand is allowed for each, so that two of 20 have a chance of 0.02 %. One has 2 %, on each
    # processor that rounds in an order of its own.
    assert verdicts.count("equal") >= 19


class _Planted(OneMachine):
    """Machine with one defect of sharding."""

    def __init__(self, defect: str) -> None:
        super().__init__(small())
        self._defect, self._gradients = defect, 0

    def gradient(self, point: int, out: int) -> float:
        self._gradients += 1
        objective = super().gradient(point, out)
        if self._defect == "float32 gradient":
            self._registers[out] = self._registers[out].astype(np.float32).astype(np.float64)
        if self._defect == "one late gradient is of one shard" and self._gradients == 12:
            half = replace(small(), features=small().features[:100], labels=small().labels[:100])
            self._registers[out] = half.gradient(self._registers[point])[1]
        return objective

    def dot(self, one: int, other: int) -> float:
        if self._defect == "a product misses an element":
            return float(np.delete(self._registers[one], 42) @ np.delete(self._registers[other], 42))
        if self._defect == "products in float32":
            return float(np.float32(super().dot(one, other)))
        return super().dot(one, other)


@pytest.mark.parametrize(
    "defect",
    [
        "float32 gradient",
        "one late gradient is of one shard",
        "a product misses an element",
        "products in float32",
    ],
)
def test_a_defect_differs(defect: str, center: Trace, noise: list[Trace]) -> None:
    found = compare_course(center, noise, minimize(_Planted(defect), iterations=ITERATIONS))
    assert found.verdict == "differs", found
    assert compare_course(center, noise, minimize(_Planted(""), iterations=ITERATIONS)).verdict == "equal"


def test_other_branches_and_values_that_are_not_finite_differ(center: Trace, noise: list[Trace]) -> None:
    branches = replace(center, decisions=[*center.decisions[:3], "lll", *center.decisions[4:]])
    found = compare_course(center, noise, branches)
    assert (found.verdict, "in iteration 4" in found.reason) == ("differs", True)
    lost = replace(center, points=[*center.points[:5], center.points[5] * np.nan, *center.points[6:]])
    assert compare_course(center, noise, lost).verdict == "differs"
    short = replace(center, decisions=center.decisions[:4], points=center.points[:5])
    assert compare_course(center, noise, short).verdict == "differs"


def test_too_few_runs_and_too_much_noise_decide_nothing(center: Trace, noise: list[Trace]) -> None:
    assert compare_course(center, noise[:4], center).verdict == "inconclusive"
    other = [replace(trace, decisions=["sss", *trace.decisions[1:]]) for trace in noise]
    assert compare_course(center, other, center).verdict == "inconclusive"
    far = [replace(trace, points=[point + 1.0 for point in trace.points]) for trace in noise]
    assert compare_course(center, far, center).verdict == "inconclusive"


# -- the study ---------------------------------------------------------------------------------------


def test_ranks_with_different_sums_are_reported(center: Trace) -> None:
    other = replace(center, objectives=[*center.objectives[:-1], center.objectives[-1] + 1e-16 + 1e-12])
    assert lbfgs.same_on_all("mirrored", [RankCourse(center, (), 0.0)] * 2) is center
    with pytest.raises(BenchError, match="rank 1 has another course than rank 0"):
        lbfgs.same_on_all("mirrored", [RankCourse(center, (), 0.0), RankCourse(other, (), 0.0)])


def test_a_run_that_differs_fails_the_study(center: Trace, noise: list[Trace]) -> None:
    single = RankCourse(center, tuple(noise), 0.0)
    point, note = lbfgs.scipy_optimum(small())
    wrong = minimize(_Planted("float32 gradient"), iterations=ITERATIONS)
    for trace, fails in ((center, False), (wrong, True)):
        course = compare_course(center, noise, trace)
        optimum = compare_optimum(small(), trace.points[-1], point, tolerance=lbfgs.AT_OPTIMUM)
        case = lbfgs.Case("mirrored[replicas=2]", 2, 1, trace, course, optimum)
        report = lbfgs.report(small(), [case], single, note)
        assert bool(report.problem) is fails
        assert ("mirrored[replicas=2], run 1: differs" in report.problem) is fails


@pytest.fixture(scope="module")
def one_device() -> RankCourse:
    (found,) = lbfgs.launch("one_device", Orders(small(), ITERATIONS, 1e-7, tuple(range(1, 8))), timeout=240)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["mirrored[replicas=3]", "multi_worker_mirrored[workers=2,replicas=1]"])
def test_shards_are_equal_to_one_machine(variant: str, one_device: RankCourse) -> None:
    """80 parameters and 200 examples cannot be split evenly over 3 shards."""
    ranks = lbfgs.launch(variant, Orders(small(), ITERATIONS, 1e-7), timeout=240)
    found = compare_course(one_device.course, one_device.permuted, lbfgs.same_on_all(variant, ranks))
    assert found.verdict == "equal", found
    # The data of another problem is not, although only one label is different.
    labels = small().labels.copy()
    labels[-1] = (labels[-1] + 1) % 5
    other = lbfgs.launch(variant, Orders(replace(small(), labels=labels), 3, 1e-7), timeout=240)
    found = compare_course(one_device.course, one_device.permuted, lbfgs.same_on_all(variant, other))
    assert found.verdict == "differs"
