"""Steps to a target over batch sizes, and the guard of convergence in both directions."""

from __future__ import annotations

import math
import random

import pytest

from pytest_ddl.bench.metrics import NoNumberError
from pytest_ddl.bench.metrics.batch_size import Regime, batch_regimes
from pytest_ddl.bench.metrics.convergence import (
    Convergence,
    ConvergencePoint,
    convergence_equivalence,
    convergence_guard,
    interpolated,
    margin_of,
)

# -- regimes -----------------------------------------------------------------------------------------


def test_three_regimes_are_told_apart() -> None:
    batches = [2**k for k in range(4, 17, 2)]
    found = batch_regimes([(batch, 100 * (1 + 1024 / batch)) for batch in batches])
    assert found.critical_batch == pytest.approx(1024)
    assert found.fewest_steps == pytest.approx(100)
    told = dict(zip(batches, found.regimes, strict=True))
    assert told[16] is told[64] is Regime.PERFECT_SCALING
    assert told[256] is told[1024] is told[4096] is Regime.DIMINISHING_RETURNS
    assert told[16384] is told[65536] is Regime.MAXIMAL_DATA_PARALLELISM
    assert (found.perfect_up_to, found.maximal_from) == (pytest.approx(1024 / 9), pytest.approx(1024 * 9))
    assert found.notes == ()
    assert "batch 16: 6500 steps, perfect scaling" in str(found)


def test_regimes_under_noise() -> None:
    noise = random.Random(11)
    points = [(2**k, 100 * (1 + 1024 / 2**k) * math.exp(noise.gauss(0, 0.03))) for k in range(4, 17, 2)]
    found = batch_regimes(points)
    assert found.critical_batch == pytest.approx(1024, rel=0.15)
    assert set(found.regimes) == set(Regime)


@pytest.mark.parametrize(
    ("points", "regime"),
    [
        ([(8, 800.0), (16, 400.0), (32, 200.0)], Regime.PERFECT_SCALING),
        ([(8, 100.0), (16, 100.0), (32, 100.0)], Regime.MAXIMAL_DATA_PARALLELISM),
    ],
)
def test_one_regime_alone(points: list[tuple[int, float]], regime: Regime) -> None:
    assert set(batch_regimes(points).regimes) == {regime}


def test_batch_that_was_not_tuned_is_reported() -> None:
    found = batch_regimes([(8, 800), (16, 400), (32, 200), (64, 400)])
    assert any("batch 64 takes more steps than 32" in note and "not tuned" in note for note in found.notes)
    found = batch_regimes([(8, 8000), (16, 400), (32, 200), (64, 100)])
    assert any("exceeds perfect scaling" in note for note in found.notes)


def test_too_few_batches_are_refused() -> None:
    with pytest.raises(NoNumberError, match="3 batch sizes or more"):
        batch_regimes([(8, 10), (16, 5), (16, 6)])
    with pytest.raises(ValueError, match="must be positive"):
        batch_regimes([(8, 10), (16, 5), (32, 0)])


# -- the guard ---------------------------------------------------------------------------------------

REFERENCE = [15, 15, 15, *[16] * 7]
"""Ten runs; without the fastest and the slowest, two of 15 and six of 16: mean 15.75."""


def test_worked_example_of_mlperf() -> None:
    kept = [15, 15, *[16] * 6]
    spread = (sum((each - 15.75) ** 2 for each in kept) / 8) ** 0.5
    assert round(spread, 2) == 0.43
    # Five runs of a submission, of which three are left.
    assert round(100 * (15.75 / (15.75 - margin_of(15.75, spread, 8, 3)) - 1), 2) == 3.53


def test_reference_point_is_the_olympic_mean() -> None:
    point = ConvergencePoint.of(256, REFERENCE)
    assert (point.mean, point.runs) == (15.75, 8)
    assert point.spread == pytest.approx(0.4583, abs=1e-4)


@pytest.mark.parametrize(
    ("epochs", "verdict"),
    [
        ([15, 16, 16, 16, 15], Convergence.OK),
        ([14, 15, 15, 15, 16], Convergence.TOO_FAST),
        ([16, 17, 17, 17, 16], Convergence.TOO_SLOW),
        ([16, 16, 16, math.inf, math.inf], Convergence.TOO_SLOW),
        ([1, 16, 16, 16, 40], Convergence.OK),
    ],
)
def test_guard_in_both_directions(epochs: list[float], verdict: Convergence) -> None:
    found = convergence_guard([ConvergencePoint.of(256, REFERENCE)], 256, epochs)
    assert found.verdict is verdict
    assert found.passed is (verdict is Convergence.OK)


def test_run_that_never_arrived_is_reported() -> None:
    found = convergence_guard([ConvergencePoint.of(256, REFERENCE)], 256, [16, 16, 16, math.inf, math.inf])
    assert "2 of 5 runs did not reach the target with global batch 256" in str(found)


def test_guard_agrees_with_the_t_test_at_its_bounds() -> None:
    points = [ConvergencePoint(256, 15.75, 0.433, 8)]
    low = 15.75 - margin_of(15.75, 0.433, 8, 3)
    just_out = convergence_guard(points, 256, [low - 1e-6] * 5)
    just_in = convergence_guard(points, 256, [low + 1e-6] * 5)
    assert (just_out.verdict, just_in.verdict) == (Convergence.TOO_FAST, Convergence.OK)
    assert just_out.p == pytest.approx(0.05, abs=1e-4)


def test_false_alarms_of_the_guard_are_as_rare_as_its_level_says() -> None:
    noise = random.Random(23)
    points = [ConvergencePoint(256, 20.0, 1.0, 8)]
    alarms = sum(not convergence_guard(points, 256, [noise.gauss(20, 1) for _ in range(5)]).passed for _ in range(500))
    # The reference's mean is exact here, and the olympic mean less spread: fewer than 2 x 5 %.
    assert alarms <= 50


def test_reference_is_interpolated_between_batch_sizes() -> None:
    points = [ConvergencePoint(256, 15.0, 0.4, 8), ConvergencePoint(512, 19.0, 0.8, 18)]
    assert interpolated(points, 320) == ConvergencePoint(320, 16.0, 0.5, 8)
    assert interpolated(points, 512) is points[1]
    # 17 epochs are too slow for 256, right in between, too fast for 512.
    verdicts = [convergence_guard(points, batch, [17.0] * 5).verdict for batch in (256, 384, 512)]
    assert verdicts == [Convergence.TOO_SLOW, Convergence.OK, Convergence.TOO_FAST]


def test_reference_is_not_extrapolated() -> None:
    with pytest.raises(NoNumberError, match=r"no reference for global batch 1024 \(there are: 256\)"):
        interpolated([ConvergencePoint(256, 15.0, 0.4, 8)], 1024)


def test_few_runs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"4 runs: 5 are needed"):
        convergence_guard([ConvergencePoint(256, 15.0, 0.4, 8)], 256, [15.0] * 4)


# -- equivalence -------------------------------------------------------------------------------------


def runs(seed: int, mean: float, spread: float, count: int) -> list[float]:
    noise = random.Random(seed)
    return [noise.gauss(mean, spread) for _ in range(count)]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (runs(1, 100, 1, 10), runs(2, 100, 1, 10), Convergence.EQUIVALENT),
        (runs(1, 100, 1, 10), runs(2, 110, 1, 10), Convergence.DIFFERENT),
        (runs(1, 100, 1, 10), runs(2, 90, 1, 10), Convergence.DIFFERENT),
        (runs(1, 100, 20, 3), runs(2, 100, 20, 3), Convergence.INCONCLUSIVE),
        (runs(1, 100, 1, 10), runs(2, 105, 1, 10), Convergence.INCONCLUSIVE),
        ([100.0] * 3, [100.0] * 3, Convergence.EQUIVALENT),
        ([100.0] * 3, [106.0] * 3, Convergence.DIFFERENT),
    ],
)
def test_equivalence_is_shown_or_not(first: list[float], second: list[float], verdict: Convergence) -> None:
    found = convergence_equivalence(first, second)
    assert found.verdict is verdict
    assert found.passed is (verdict is Convergence.EQUIVALENT)


def test_inconclusive_asks_for_more_runs() -> None:
    found = convergence_equivalence(runs(1, 100, 20, 3), runs(2, 100, 20, 3))
    assert not found.passed
    assert "too wide to decide with 3 and 3 runs: add runs" in str(found)


@pytest.mark.parametrize(
    ("first", "second", "margin", "words"),
    [
        ([1.0], [1.0, 2.0], 0.05, "2 or more of each"),
        ([1.0, 2.0], [1.0, math.inf], 0.05, "never reached the target"),
        ([1.0, 2.0], [1.0, 2.0], 0.0, r"margin=0\.0"),
    ],
)
def test_what_cannot_be_tested_is_refused(first: list[float], second: list[float], margin: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        convergence_equivalence(first, second, margin=margin)
