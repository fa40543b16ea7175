"""Ranks: a cell comes after those that are shown to be faster, and a repeated evaluation gives the same."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from pytest_ddl.bench.evaluating import judging
from pytest_ddl.bench.evaluating.ranking import _Ranked, noisy, rank, ranks_of
from pytest_ddl.bench.evaluating.records import CellVerdict, Evaluation
from tests.bench.evaluating.synthetic import ABSENT, COPIES, ONE, TWO, WORKERS, curves, evaluation, references

FAST, SLOW = [0.0010, 0.00101, 0.00099], [0.0050, 0.0051, 0.0049]


def ranks(one: Evaluation) -> dict[str, int]:
    return dict(rank(one, judging.differences(one, "test_accuracy")).ranks)


def unranked(one: Evaluation) -> dict[str, str]:
    return dict(rank(one, judging.differences(one, "test_accuracy")).unranked)


def times(**seconds: list[float]) -> dict[str, list[float]]:
    plain = {ONE.variant: FAST, TWO.variant: FAST, WORKERS.variant: SLOW, COPIES.variant: SLOW}
    names = {"one": ONE, "two": TWO, "workers": WORKERS, "copies": COPIES}
    return {**plain, **{names[name].variant: found for name, found in seconds.items()}}


def test_cells_are_ranked_by_steps_and_time_together() -> None:
    """Two replicas take half the steps of one device, in steps of equal time."""
    found = ranks(evaluation(times()))
    assert found[TWO.variant] == 1
    assert found[ONE.variant] == 2
    assert found[COPIES.variant] == 3
    assert found[WORKERS.variant] == 4


def test_a_cell_comes_after_those_that_are_shown_to_be_faster() -> None:
    one = evaluation(times(two=[0.0020, 0.0026, 0.0015]))
    assert noisy(one) == [TWO.variant]
    found = ranks(one)
    # The noisy cell is separate from no other, and the others keep their places.
    assert found[TWO.variant] == found[ONE.variant] == 1
    assert found[COPIES.variant] == 2
    assert found[WORKERS.variant] == 3


def test_steps_that_differ_from_run_to_run_are_noise() -> None:
    """Steps of a seed in which asynchronous training differs from one device; others have the same in each run."""
    pace = [math.log(one) for one in (0.001, 0.00101, 0.00099)]
    still, moving = [0.3] * 5, [0.0, 0.9, 0.1, 0.8, -0.3]
    assert ranks_of({"a": _Ranked(0.0, pace, still), "b": _Ranked(0.4, pace, still)}) == {"a": 1, "b": 2}
    assert ranks_of({"a": _Ranked(0.0, pace, still), "b": _Ranked(0.4, pace, moving)}) == {"a": 1, "b": 1}


def test_a_wrong_cell_is_not_ranked_however_fast() -> None:
    one = evaluation(times(two=[1e-5] * 3))
    wrong = CellVerdict("fail", "gradient-scaled: too large", ("gradient-scaled",), "the report")
    one = replace(one, verdicts={**one.verdicts, TWO.variant: wrong})
    assert TWO.variant not in ranks(one)
    assert unranked(one)[TWO.variant] == "WRONG"
    assert ranks(one)[ONE.variant] == 1


@pytest.mark.parametrize(("verdict", "is_ranked"), [("pass", True), ("known", True), ("inconclusive", False)])
def test_only_what_is_shown_to_be_correct_is_ranked(verdict: str, is_ranked: bool) -> None:
    one = evaluation(times())
    one = replace(one, verdicts={**one.verdicts, TWO.variant: CellVerdict(verdict, "…")})
    assert (TWO.variant in ranks(one)) is is_ranked


def test_a_cell_that_cannot_run_has_its_reason() -> None:
    assert unranked(evaluation(times()))[ABSENT.variant] == "it cannot run here"


def test_a_cell_with_a_worse_result_is_not_ranked() -> None:
    one = evaluation(times(), cells=(ONE, TWO), curves=(*references(), *curves(TWO, accuracy=0.5)))
    assert unranked(one)[TWO.variant] == "its result is worse than that of one device"


def test_a_cell_of_which_a_part_failed_is_not_ranked() -> None:
    one = evaluation(times()).with_failure(TWO.variant, "measuring", "a rank died")
    assert unranked(one)[TWO.variant] == "measuring failed"


def test_one_launch_gives_no_ranks() -> None:
    one = evaluation(times())
    one = replace(one, launches=one.launches[:4])
    assert ranks(one) == {}
    assert "fewer than 2 launches" in unranked(one)[ONE.variant]


def test_without_a_target_the_time_of_an_example_is_ranked() -> None:
    one = replace(evaluation(times()), target=None)
    found = rank(one, judging.differences(one, "test_accuracy"))
    assert found.by == "time of an example"
    assert found.ranks[TWO.variant] == 1
    assert found.best == [TWO.variant]


def entry(steps: float, seconds: float, noise: float, generator: random.Random, launches: int = 3) -> _Ranked:
    pace = [math.log(seconds) + generator.gauss(0, noise) for _ in range(launches)]
    return _Ranked(math.log(steps), pace)


@pytest.mark.parametrize("noise", [0.03, 0.1, 0.3])
def test_equal_cells_have_different_ranks_as_rarely_as_the_level_says(noise: float) -> None:
    generator = random.Random(3)
    alarms = 0
    for _ in range(200):
        entries = {str(place): entry(50, 0.001, noise, generator) for place in range(6)}
        alarms += set(ranks_of(entries).values()) != {1}
    assert alarms <= 20  # 99.9 % bound of the binomial with 200 trials of 5 %


def test_the_spread_of_others_counts_for_cells_whose_launches_agree() -> None:
    """Two cells differ by 20 %. Others show that launches of this machine differ by 10 %."""
    two = {name: _Ranked(0.0, [log, log + 0.01, log - 0.01]) for name, log in (("a", 0.0), ("b", 0.2))}
    others = {name: _Ranked(0.0, [2.0, 2.1, 1.9]) for name in "cde"}
    assert ranks_of(two) == {"a": 1, "b": 2}
    assert [ranks_of({**two, **others})[name] for name in "ab"] == [1, 1]


def test_a_repeated_evaluation_gives_the_same_ranks() -> None:
    """Gaps like those of the medical study, with a spread of 3 % between launches."""
    generator = random.Random(4)
    seconds = {"a": 0.0011, "b": 0.0011, "c": 0.0020, "d": 0.0042, "e": 0.0085}
    found = [
        ranks_of({name: entry(100, value, 0.03, generator) for name, value in seconds.items()}) for _ in range(100)
    ]
    expected = {"a": 1, "b": 1, "c": 3, "d": 4, "e": 5}
    assert sum(one == expected for one in found) >= 93


def test_a_shared_spread_counts_its_degrees_of_freedom_once() -> None:
    """Two cells of two launches: t = 4.30 with 2 degrees of freedom. With 4 they would be separate (t = 2.78)."""
    entries = {"a": _Ranked(0.0, [0.0, 0.1]), "b": _Ranked(0.0, [0.25, 0.35])}
    # The difference is 3.5 standard errors.
    assert ranks_of(entries) == {"a": 1, "b": 1}


def test_a_cell_that_ends_in_nan_has_no_rank() -> None:
    one = evaluation(times())
    ended = tuple(
        replace(found, values={"test_accuracy": ((24, math.nan),)}) if found.variant == WORKERS.variant else found
        for found in one.curves
    )
    why = unranked(replace(one, curves=ended))[WORKERS.variant]
    assert why == "its result is missing or not finite, so it cannot be compared"


def test_launches_that_agree_by_chance_separate_nothing() -> None:
    entries = {name: _Ranked(0.0, [log, log + 1e-4, log - 1e-4]) for name, log in (("a", 0.0), ("b", 0.05))}
    assert ranks_of(entries) == {"a": 1, "b": 1}


def test_a_chain_of_neighbors_is_in_order() -> None:
    generator = random.Random(5)
    entries = {str(place): entry(50, 0.001 * 1.05**place, 0.03, generator) for place in range(12)}
    found = ranks_of(entries)
    order = sorted(found, key=lambda name: entries[name].mean)
    assert [found[name] for name in order] == sorted(found.values())
    assert found[order[0]] == found[order[1]] == 1
    assert found[order[-1]] > 6
    assert ranks_of({}) == {}
