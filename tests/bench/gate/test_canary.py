"""The canary: a quiet network changes no verdict, and one that drifts or differs between the sides ends in none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pytest_ddl.bench.gate.cell import measure_cell, network_problem
from pytest_ddl.bench.gate.lockstep import Paired, take_turns
from pytest_ddl.bench.gate.verdict import Rule, Verdict
from tests.bench.gate.made import BUSY, cell, paired
from tests.bench.gate.test_turns import lanes

RULE = Rule()
NOISE = 0.03
"""Standard deviation of the log time of a side in a launch."""


def canaries(
    launches: int, seed: int, side: float = 0.0, step: float = 0.0, common: float = 0.0
) -> list[tuple[float, float]]:
    """Make readings of a network.

    :param side: log of how much slower it is for HEAD.
    :param step: log of how much slower it is from the middle of the launches on.
    :param common: standard deviation of the log of what both sides of a launch meet.
    """
    generator = random.Random(seed)
    found = []
    for number in range(launches):
        level = math.log(0.01) + (step if number >= launches // 2 else 0.0) + generator.gauss(0.0, common)
        base, head = (level + generator.gauss(0.0, NOISE) for _side in range(2))
        found.append((math.exp(base), math.exp(head + side)))
    return found


def made(readings: Sequence[tuple[float, float]], percent: float = 0.0) -> list[Paired]:
    """Launches whose ratios differ a little around a slowdown."""
    return [paired(percent + 0.1 * (index % 3 - 1), canary=one) for index, one in enumerate(readings)]


def verdict(launches: Sequence[Paired]) -> tuple[Verdict, str]:
    result = measure_cell(cell(canary=True), launch=lambda number: launches[number])
    return result.verdict, result.reason


@pytest.mark.parametrize(
    ("percent", "expected"), [(0.0, Verdict.PASS), (8.0, Verdict.REGRESSION), (-8.0, Verdict.IMPROVEMENT)]
)
def test_a_quiet_network_changes_no_verdict(percent: float, expected: Verdict) -> None:
    assert verdict(made(canaries(24, 1), percent))[0] is expected


@pytest.mark.parametrize("percent", [0.0, 8.0, -8.0])
def test_a_network_that_changes_in_the_middle_ends_in_no_verdict(percent: float) -> None:
    found, reason = verdict(made(canaries(4, 1, step=math.log(2)), percent))
    assert found is Verdict.INCONCLUSIVE
    assert "the network changed while the gate measured" in reason
    assert "in 4 launches" in reason


@pytest.mark.parametrize("percent", [0.0, 8.0, -8.0])
def test_a_network_that_differs_between_the_sides_ends_in_no_verdict(percent: float) -> None:
    found, reason = verdict(made(canaries(4, 1, side=math.log(1.5)), percent))
    assert found is Verdict.INCONCLUSIVE
    assert "the network was not the same for both versions: a small all-reduce of HEAD took +" in reason


def test_a_change_within_the_margin_is_none() -> None:
    steady = [(0.01, 0.01)] * 4
    assert network_problem(made(steady), RULE) == ""
    for drifting in ([(0.0101, 0.0101)] * 2, [(0.0101, 0.0101)], []):
        assert network_problem(made([*steady, *drifting]), RULE) == ""
    assert "the network changed" in network_problem(made([*steady, (0.012, 0.012)]), RULE)
    assert network_problem(made([(0.01, 0.0101)] * 4), RULE) == ""
    assert "not the same" in network_problem(made([(0.01, 0.012)] * 4), RULE)


@pytest.mark.parametrize(("launches", "gates"), [(4, 1000), (9, 500), (24, 200)])
def test_noise_is_reported_as_seldom_as_the_level_says(launches: int, gates: int) -> None:
    wrong = sum(bool(network_problem(made(canaries(launches, seed)), RULE)) for seed in range(gates))
    # Two tests, each at the level. The bound is exceeded once in a million such tests (binomial).
    assert wrong / gates <= 2 * RULE.level + 5 * math.sqrt(2 * RULE.level / gates)


@pytest.mark.parametrize(("launches", "step", "least"), [(4, 2.0, 0.95), (9, 1.2, 0.95)])
def test_most_changes_are_found(launches: int, step: float, least: float) -> None:
    found = [network_problem(made(canaries(launches, seed, step=math.log(step))), RULE) for seed in range(200)]
    assert sum("the network changed" in one for one in found) >= least * len(found)


def test_launches_without_a_canary_are_judged_as_before() -> None:
    assert network_problem([paired(0.0)] * 24, RULE) == ""
    assert network_problem(made(canaries(2, 1, step=9.0)), RULE) == ""


def test_counters_are_judged_on_any_network() -> None:
    worse = replace(paired(0.0).head.counters, reduced_bytes=800)
    result = measure_cell(cell(canary=True), launch=lambda _number: paired(0.0, head=worse, canary=(0.01, 0.05)))
    assert result.verdict is Verdict.REGRESSION


@pytest.mark.parametrize(("step", "expected"), [(0.0, Verdict.REGRESSION), (math.log(4), Verdict.INCONCLUSIVE)])
def test_a_provisional_regression_needs_a_quiet_network(step: float, expected: Verdict) -> None:
    launches = [replace(one, load=BUSY) for one in made(canaries(4, 1, step=step), 60.0)]
    assert verdict(launches)[0] is expected


@pytest.mark.parametrize("hosts", [("a 1", "b 2"), ("b 2", "a 1")])
def test_both_versions_must_have_the_same_hosts(hosts: tuple[str, str]) -> None:
    def on(*names: str) -> Callable[[int], Paired]:
        one = paired(0.0)
        ranks = one.base.ranks * 2
        base, head = (
            replace(one.base, ranks=tuple(replace(rank, host=host) for rank, host in zip(ranks, found, strict=True)))
            for found in (("a 1", "b 2"), names)
        )
        return lambda number: replace(made([(0.01, 0.01)] * 9)[number % 9], base=base, head=head)

    found = measure_cell(cell(canary=True), launch=on(*hosts))
    if hosts == ("a 1", "b 2"):
        assert found.verdict is Verdict.PASS
    else:
        assert found.verdict is Verdict.INCONCLUSIVE
        assert "did not run on the same hosts: BASE on a 1, b 2, HEAD on b 2, a 1" in found.reason


def test_the_canary_runs_alone_and_in_turns() -> None:
    base, head = lanes()
    order = []
    for lane in (base, head):

        def run_canary(calls: int, _deadline: float, meanwhile: Callable[[], None], lane: object = lane) -> float:
            meanwhile()
            assert [one.paused for one in (base, head)] == [lane is head, lane is base]
            order.append("base" if lane is base else "head")
            return 0.01 * calls

        lane.run_canary = run_canary  # type: ignore[attr-defined]
    turns = take_turns(base, head, 20, math.inf, 4, canary=True)  # type: ignore[arg-type]
    assert order == ["base", "head", "head", "base"] * 2
    assert turns.base_canary == turns.head_canary == [0.04] * 4
    assert turns.ratios == pytest.approx([0.0] * 4)
