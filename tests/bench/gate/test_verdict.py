"""The decision of the gate: error rates on seeded data, and the words of each verdict."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from pytest_ddl.bench.gate.verdict import Decision, Rule, Verdict, decide, decide_launches
from tests.bench.gate.made import replay

SLOWER = math.log(1.05)


def many(mean: float, sd: float, gates: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """Launches of many gates, and the verdict of each: :func:`replay` for all rows at once, as it is slow."""
    rule = Rule()
    values = np.random.default_rng(seed).normal(mean, sd, (gates, rule.looks[-1]))
    verdicts = np.full(gates, Verdict.INCONCLUSIVE.value, dtype=object)
    margin = math.log1p(rule.margin)
    for look in rule.looks:
        taken = values[:, :look]
        estimate, error = taken.mean(axis=1), stats.sem(taken, axis=1)
        reach = stats.t.ppf(1 - rule.level, look - 1) * error
        undecided = verdicts == Verdict.INCONCLUSIVE.value
        slower = (estimate - reach > 0) & (estimate > margin)
        faster = (estimate + reach < 0) & (estimate < -margin)
        same = (estimate <= margin) & (estimate + reach < 2 * margin) & ~faster
        for which, verdict in ((slower, Verdict.REGRESSION), (faster, Verdict.IMPROVEMENT), (same, Verdict.PASS)):
            verdicts[undecided & which] = verdict.value
    return values, list(verdicts)


def rates(mean: float, sd: float, seed: int, gates: int = 50_000) -> Counter[Verdict]:
    return Counter({Verdict(name): count / gates for name, count in Counter(many(mean, sd, gates, seed)[1]).items()})


@pytest.mark.parametrize(("mean", "sd"), [(0.0, 0.007), (0.0, 0.05), (SLOWER, 0.024), (SLOWER, 0.1), (-0.05, 0.03)])
def test_the_simulation_decides_as_the_gate_does(mean: float, sd: float) -> None:
    values, verdicts = many(mean, sd, 12, seed=1)
    assert [replay(row, Rule()).verdict.value for row in values] == verdicts


@pytest.mark.parametrize("sd", [0.004, 0.007, 0.017, 0.024, 0.035, 0.05, 0.1, 0.3])
def test_at_most_one_percent_of_false_alarms_at_any_noise(sd: float) -> None:
    assert rates(0.0, sd, seed=2)[Verdict.REGRESSION] <= 0.01


@pytest.mark.parametrize("sd", [0.004, 0.007, 0.017, 0.024, 0.035])
def test_five_percent_is_found(sd: float) -> None:
    assert rates(SLOWER, sd, seed=3)[Verdict.REGRESSION] >= 0.99


@pytest.mark.parametrize("sd", [0.004, 0.024, 0.05, 0.1, 0.3])
def test_five_percent_passes_next_to_never(sd: float) -> None:
    found = rates(SLOWER, sd, seed=4)
    assert found[Verdict.PASS] + found[Verdict.IMPROVEMENT] <= 0.01


def test_a_regression_below_the_margin_is_none() -> None:
    assert decide([0.010, 0.011, 0.0101, 0.0099, 0.0103], Rule()).verdict is Verdict.PASS


def test_a_large_estimate_that_may_be_chance_is_inconclusive() -> None:
    decision = decide([0.20, -0.08, 0.15, -0.05], Rule())
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "may be chance" in decision.reason


def test_what_cannot_be_ruled_out_does_not_pass() -> None:
    decision = decide([0.06, -0.06, 0.05, -0.055], Rule())
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "a slowdown of +5.1 % cannot be ruled out" in decision.reason


def test_a_gain_in_throughput_is_an_improvement_and_never_a_regression() -> None:
    decision = decide([-0.22, -0.221, -0.223, -0.219], Rule())
    assert decision.verdict is Verdict.IMPROVEMENT
    assert decision.throughput_ratio > 1.2


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_launches_are_inconclusive(count: int) -> None:
    assert decide([5.0] * count, Rule()).verdict is Verdict.INCONCLUSIVE


def test_launches_without_any_spread_are_decided_on_their_value() -> None:
    assert decide([SLOWER] * 4, Rule()).verdict is Verdict.REGRESSION
    assert decide([0.0] * 4, Rule()).verdict is Verdict.PASS


def test_bounds_are_those_of_the_one_sided_t_test() -> None:
    # Textbook numbers: mean 2, sd 1, n 4; the 99 % quantile of t with 3 degrees of freedom is 4.541.
    values = [2 - math.sqrt(1.5), 2.0, 2.0, 2 + math.sqrt(1.5)]
    decision = decide(values, Rule(looks=(4,)))
    assert decision.confidence == pytest.approx(0.99)
    assert math.log(decision.lower) == pytest.approx(2 - 4.541 * 1 / 2, abs=1e-3)
    assert math.log(decision.upper) == pytest.approx(2 + 4.541 * 1 / 2, abs=1e-3)


def test_looks_share_the_false_alarms() -> None:
    assert Rule(looks=(4, 8)).level == pytest.approx(0.005)
    assert Rule.up_to(9).looks == (4, 6, 9)
    assert Rule.up_to(3).looks == (3,)
    assert Rule.up_to(40).looks[-2:] == (38, 40)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"margin": 0}, "margin=0 must be a share"),
        ({"margin": 2.5}, "margin=2.5"),
        ({"false_alarms": 0.7}, "false_alarms=0.7"),
        ({"looks": (2, 4)}, "the first at least 3"),
        ({"looks": (4, 4)}, "rising"),
        ({"looks": ()}, "looks=()"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        Rule(**values)  # type: ignore[arg-type]


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        decide([0.0, math.nan, 0.1], Rule())


def test_no_decision_without_data_has_an_interval() -> None:
    assert math.isnan(Decision(Verdict.INCONCLUSIVE, "", 0).ratio)


def test_false_alarms_of_medians_and_totals_together_are_those_of_the_rule() -> None:
    values = np.random.default_rng(7).normal(0.0, 0.05, (2, 400, 4))
    rule = Rule(looks=(4,), false_alarms=0.1)
    alarms = [
        decide_launches(medians, totals, rule).verdict is Verdict.REGRESSION
        for medians, totals in zip(*values, strict=False)
    ]
    assert sum(alarms) / len(alarms) <= 0.1
    assert any(alarms)
