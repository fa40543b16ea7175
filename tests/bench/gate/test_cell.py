"""From launches to the verdict of a cell: when it stops, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_ddl.bench.gate.cell import measure_cell
from pytest_ddl.bench.gate.lockstep import Paired
from pytest_ddl.bench.gate.result import CellResult
from pytest_ddl.bench.gate.sides import MeasurementError
from pytest_ddl.bench.gate.verdict import Rule, Verdict
from tests.bench.gate.made import BUSY, COUNTERS, cell, paired

NOISE = (0.3, -0.4, 0.1, -0.2, 0.35, -0.1, 0.25, -0.3, 0.05, -0.15, 0.2, -0.25)


def run(launches: list[Paired], **changed: object) -> CellResult:
    given: Iterator[Paired] = iter(launches)
    return measure_cell(cell(**changed), launch=lambda _number: next(given))


def test_a_slowdown_is_a_regression_after_four_launches() -> None:
    found = run([paired(5 + noise) for noise in NOISE])
    assert (found.verdict, len(found.launches)) == (Verdict.REGRESSION, 4)
    assert "more than the margin of 2.5 %" in found.reason


def test_the_same_speed_passes() -> None:
    found = run([paired(noise) for noise in NOISE])
    assert (found.verdict, len(found.launches)) == (Verdict.PASS, 4)


def test_a_gain_is_an_improvement() -> None:
    assert run([paired(noise - 20) for noise in NOISE]).verdict is Verdict.IMPROVEMENT


def test_noise_gets_more_launches() -> None:
    found = run([paired(10 * noise) for noise in NOISE])
    assert (found.verdict, len(found.launches)) == (Verdict.PASS, 9)


def test_what_stays_unknown_is_inconclusive() -> None:
    found = run([paired(60 * noise) for noise in NOISE], rule=Rule.up_to(6))
    assert (found.verdict, len(found.launches)) == (Verdict.INCONCLUSIVE, 6)
    assert "All launches (--max-launches) are used up after 6 launch(es)" in found.reason


def test_seconds_run_out_before_the_first_look() -> None:
    found = run([replace(paired(5), seconds=100.0)] * 9, budget=50.0)
    assert (found.verdict, len(found.launches)) == (Verdict.INCONCLUSIVE, 1)
    assert "the 50 s of --budget are used up" in found.reason


def test_worse_counters_are_a_regression_at_once_on_any_machine() -> None:
    worse = replace(COUNTERS, collectives={"all_reduce": 2})
    for load in (BUSY, paired(0).load):
        found = run([paired(0, load, head=worse)])
        assert (found.verdict, len(found.launches)) == (Verdict.REGRESSION, 1)
        assert "1 more all_reduce per step (1 -> 2)" in found.reason


def test_a_change_that_was_accepted_is_no_regression() -> None:
    worse = replace(COUNTERS, collectives={"all_reduce": 2})
    found = run([paired(noise, head=worse) for noise in NOISE], accept={"collectives.all_reduce": "a new metric"})
    assert found.verdict is Verdict.PASS
    assert "a new metric" in found.changes[0].message


def test_counters_alone_need_one_launch_and_no_calm_machine() -> None:
    found = run([paired(50, BUSY)], counters_only=True)
    assert (found.verdict, found.decision, found.set_aside) == (Verdict.PASS, None, 0)
    assert "the counters of 100 steps are not worse; time was not measured" in found.reason
    assert "loss.numpy()" in found.reason


def test_steps_that_were_not_counted_one_by_one_do_not_pass() -> None:
    unknown = replace(COUNTERS, of_steps={})
    assert run([paired(0, head=unknown)], counters_only=True).verdict is Verdict.INCONCLUSIVE


def test_a_program_without_a_measured_step_does_not_pass_on_counters() -> None:
    nothing = replace(COUNTERS, steady_steps=0)
    assert run([paired(0, head=nothing)], counters_only=True).verdict is Verdict.REGRESSION


def test_an_overloaded_machine_has_no_verdict_on_time() -> None:
    found = run([paired(9 + noise, BUSY) for noise in NOISE])
    assert (found.verdict, len(found.launches), found.set_aside) == (Verdict.INCONCLUSIVE, 2, 2)
    assert "the machine is overloaded: other processes kept 1.2 of 2 cores busy" in found.reason
    assert "The counters are not worse" in found.reason


def test_a_slowdown_of_many_times_the_noise_is_a_provisional_regression_on_an_overloaded_machine() -> None:
    found = run([paired(30 + noise, BUSY) for noise in NOISE])
    assert (found.verdict, len(found.launches), found.set_aside) == (Verdict.REGRESSION, 4, 4)
    assert found.reason.startswith("provisional, because the machine is overloaded (other processes kept 1.2 of 2")


def test_a_slowdown_of_a_few_times_the_noise_is_none_on_an_overloaded_machine() -> None:
    found = run([paired(30 + 20 * noise, BUSY) for noise in NOISE])
    assert (found.verdict, len(found.launches)) == (Verdict.INCONCLUSIVE, 4)
    calm = run([paired(30 + 20 * noise) for noise in NOISE])
    assert (calm.verdict, len(calm.launches)) == (Verdict.REGRESSION, 4)


def test_launches_of_a_busy_moment_are_set_aside() -> None:
    launches = [paired(noise) for noise in NOISE]
    launches.insert(1, paired(40, BUSY))
    found = run(launches)
    assert (found.verdict, len(found.launches), found.set_aside) == (Verdict.PASS, 5, 1)
    assert found.decision is not None
    assert found.decision.launches == 4


def test_a_side_that_fails_is_no_pass() -> None:
    def fail(_number: int) -> Paired:
        raise MeasurementError("HEAD (abc) failed: boom")

    found = measure_cell(cell(), launch=fail)
    assert (found.verdict, found.reason) == (Verdict.ERROR, "HEAD (abc) failed: boom")


@pytest.mark.parametrize("at", [1, 3])
def test_a_failure_later_is_none_either(at: int) -> None:
    def launch(number: int) -> Paired:
        if number == at:
            raise MeasurementError("gone")
        return paired(0)

    assert measure_cell(cell(), launch=launch).verdict is Verdict.ERROR


def test_each_launch_is_reported() -> None:
    lines: list[str] = []
    given = iter([paired(5 + noise) for noise in NOISE])
    measure_cell(cell(), lines.append, lambda _number: next(given))
    assert len(lines) == 4
    assert lines[0].startswith("launch 1: +5.3 % (BASE 1.000 ms, HEAD 1.000 ms a step")


@pytest.mark.parametrize(("eager", "told"), [(False, "could be counted: no hook"), (True, "run eagerly")])
def test_counters_that_were_not_counted_do_not_pass(eager: bool, told: str) -> None:
    nothing = replace(COUNTERS, collectives={}, nodes=0, eager=eager, notes=("no hook",))
    one = paired(0, head=nothing)
    both = replace(one, base=replace(one.base, counters=nothing))
    found = run([both], counters_only=True)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert told in found.reason


def test_rare_steps_that_take_long_are_a_regression_that_no_median_shows() -> None:
    found = run([paired(noise, total_ratio=0.7 + noise / 100) for noise in NOISE])
    assert (found.verdict, len(found.launches)) == (Verdict.REGRESSION, 4)
    assert "rare long steps" in found.reason


def test_time_spent_in_tracing_is_no_pass() -> None:
    found = run([paired(noise, dropped_blocks=(0, 2)) for noise in NOISE], rule=Rule.up_to(4))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "8 blocks of 4 launches were dropped" in found.reason
    assert run([paired(noise, dropped_blocks=(2, 2)) for noise in NOISE]).verdict is Verdict.PASS


def test_steps_that_take_another_number_of_examples_do_not_compare() -> None:
    one = paired(-30)
    rank = replace(one.base.ranks[0], examples=64)
    base, head = replace(one.base, ranks=(rank,)), replace(one.head, ranks=(replace(rank, examples=32),))
    smaller = replace(one, base=base, head=head)
    found = run([smaller])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "a step of BASE takes 64 examples and a step of HEAD takes 32" in found.reason
    assert run([smaller] * 4, accept={"examples": "half the batch is meant"}).verdict is Verdict.IMPROVEMENT
