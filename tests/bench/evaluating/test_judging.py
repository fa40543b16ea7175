"""Differences from one device, and reached targets: cases that count and cases that do not."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from pytest_ddl.bench.evaluating import judging
from pytest_ddl.bench.evaluating.records import Evaluation, TrainingCurve
from tests.bench.evaluating.synthetic import COPIES, ONE, SEEDS, TWO, curve, curves, evaluation, references


def ending(cell_finals: dict[int, float], noise: dict[int, float] | None = None) -> Evaluation:
    """An evaluation in which one device ends with 0.5, and ``mirrored`` with the given finals by seed."""

    def with_final(one: TrainingCurve, value: float) -> TrainingCurve:
        return replace(one, values={"test_loss": ((24, value),)})

    found = [with_final(one, 0.5 + 0.001 * one.seed) for one in references() if not one.moved]
    for one in references():
        if one.moved:
            found.append(with_final(one, 0.5 + 0.001 * one.seed + (noise or {}).get(one.seed, 0.0)))
    mine = [with_final(curve(TWO, seed), 0.5 + 0.001 * seed + value) for seed, value in cell_finals.items()]
    return evaluation(cells=(ONE, TWO), curves=(*found, *mine))


def difference(one: Evaluation) -> judging.PairedDifference:
    return judging.differences(one, "test_loss")[TWO.variant]


def test_a_clear_difference_is_reported_with_its_direction() -> None:
    worse = difference(ending({1: 0.101, 2: 0.113, 3: 0.094, 4: 0.107, 5: 0.099}))
    assert worse.differs is True
    assert worse.words.startswith("worse: +0.1 ")
    better = difference(ending({1: -0.101, 2: -0.113, 3: -0.094, 4: -0.107, 5: -0.099}))
    assert better.words.startswith("better: -0.1 ")


def test_a_difference_within_the_spread_of_seeds_is_none() -> None:
    found = difference(ending({1: 0.1, 2: -0.12, 3: 0.03, 4: -0.05, 5: 0.06}))
    assert found.differs is False
    assert found.words.startswith("no difference shown")


def test_equal_results_are_equal() -> None:
    assert difference(ending(dict.fromkeys(SEEDS, 0.0))).words == "equal with all 5 seeds"


@pytest.mark.parametrize("number", [1, 2])
def test_too_few_seeds_are_inconclusive(number: int) -> None:
    found = difference(ending({seed: 0.1 * seed for seed in SEEDS[:number]}))
    assert found.differs is None
    assert found.words == f"inconclusive: {number} seed(s) are too few for a test (at least 3)"


def test_a_difference_as_large_as_rounding_does_not_count() -> None:
    """The same differences are significant if the effect of rounding is not measured."""
    tiny = {1: 1.0e-8, 2: 1.2e-8, 3: 0.9e-8, 4: 1.1e-8, 5: 1.0e-8}
    assert difference(ending(tiny)).differs is True
    assert difference(ending(tiny, noise=dict.fromkeys(SEEDS, 2e-8))).differs is False


def test_results_that_are_not_finite_are_inconclusive() -> None:
    found = difference(ending({**dict.fromkeys(SEEDS, 0.1), 2: math.nan}))
    assert found.differs is None
    assert "not finite" in found.words


@pytest.mark.parametrize(("accuracy", "differs"), [(0.89, False), (0.91, False), (0.85, True)])
def test_one_step_of_a_number_in_steps_does_not_count(accuracy: float, differs: bool) -> None:
    """All seeds are tested on the same examples, and here a step is 0.01. Equal differences have no spread."""
    one = evaluation(cells=(ONE, TWO), curves=(*references(0.9), *curves(TWO, accuracy=accuracy)))
    found = judging.differences(one, "test_accuracy")[TWO.variant]
    assert found.differs is differs
    assert found.mean == pytest.approx(accuracy - 0.9)
    assert ("steps of 0.01, and one step does not count" in found.words) is not differs


def test_a_cell_does_not_define_the_step_that_excuses_it() -> None:
    one = ending(dict.fromkeys(SEEDS, -0.4))
    level = [replace(found, values={"test_loss": ((24, 0.5),)}) for found in one.curves if found.variant != TWO.variant]
    mine = [replace(curve(TWO, seed), values={"test_loss": ((24, 0.1),)}) for seed in SEEDS]
    level_ended = evaluation(cells=(ONE, TWO), curves=(*level, *mine))
    assert judging._resolution(level_ended, "test_loss") == 0
    assert difference(level_ended).words == "inconclusive: -0.4 with each seed, and no result depends on the seed"


def test_numbers_of_keras_have_a_direction() -> None:
    higher = ("val_mean_io_u", "cosine_similarity", "psnr", "test_accuracy", "fbeta_score")
    assert all(map(judging.higher_is_better, higher))
    assert not any(map(judging.higher_is_better, ("val_loss", "mae", "perplexity")))


def test_false_alarms_are_as_rare_as_the_level_says() -> None:
    """Four cells without any difference: at most about 5 % of evaluations report one."""
    generator = random.Random(7)
    alarms = 0
    for _ in range(200):
        tests = {}
        for name in "abcd":
            pairs = [generator.gauss(0, 1) for _ in range(5)]
            mean = sum(pairs) / 5
            spread = math.sqrt(sum((pair - mean) ** 2 for pair in pairs) / 4)
            tests[name] = judging._t_test(mean, spread, 5)[0]
        alarms += any(p < 0.05 for p in judging._holm(tests).values())
    # 99.9 % bound of the binomial with 200 trials of 5 %.
    assert alarms <= 20


def test_holm_is_monotonous_and_at_most_one() -> None:
    assert judging._holm({"a": 0.01, "b": 0.02, "c": 0.9}) == pytest.approx({"a": 0.03, "b": 0.04, "c": 0.9})
    assert judging._holm({"a": 0.5, "b": 0.6}) == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["loss", "test_accuracy"], "test_accuracy"),
        (["accuracy", "val_accuracy", "val_loss"], "val_accuracy"),
        (["accuracy", "val_loss"], "accuracy"),
        (["loss", "val_loss"], "val_loss"),
        (["seconds"], judging.LOSS),
        ([], judging.LOSS),
    ],
)
def test_the_compared_number_is_chosen_by_its_name(names: list[str], chosen: str) -> None:
    one = TrainingCurve("one_device", 32, 1, (1.0,), (0,), dict.fromkeys(names, ((1, 0.5),)))
    assert judging.choose_metric([one]) == chosen


def test_a_wanted_number_must_be_reported() -> None:
    one = curve(ONE, 1)
    assert judging.choose_metric([one], judging.LOSS) == judging.LOSS
    with pytest.raises(ValueError, match="no training reported 'auc'; reported: test_accuracy, training loss"):
        judging.choose_metric([one], "auc")


def test_the_first_step_at_the_target_counts() -> None:
    one = TrainingCurve("one_device", 8, 1, (4.0, 3.0, 2.0, 1.0, 0.0), (0,))
    assert judging.steps_to(one, 2.0, window=8) == 3
    # The mean of two steps is 2.5 at step 3, and 1.5 at step 4.
    assert judging.steps_to(one, 2.0, window=16) == 4
    assert judging.steps_to(one, -1.0, window=8) is None


def test_a_loss_that_is_missing_or_infinite_does_not_reach_a_target() -> None:
    one = TrainingCurve("one_device", 8, 1, (4.0, None, 1.0, math.nan, 1.0, 1.0), (0,))
    assert judging.steps_to(one, 2.0, window=16) == 6


def test_running_means_count_at_the_ends_of_epochs() -> None:
    one = TrainingCurve("one_device", 8, 1, (4.0, 1.0, 0.9, 0.8), (0, 2), running_mean=True)
    assert judging.steps_to(one, 1.0, window=8) == 2
    assert judging.steps_to(one, 0.85, window=8) == 4


def test_the_default_target_is_reached_by_every_seed_halfway() -> None:
    found = curves(ONE)
    window = judging.window_of(found[0])
    target = judging.default_target(found, window)
    assert target is not None
    reached = [judging.steps_to(one, target, window) for one in found]
    assert all(step is not None and step <= one.steps // 2 for step, one in zip(reached, found, strict=True))


def test_no_target_without_losses() -> None:
    silent = replace(curve(ONE, 1), losses=(None,) * 24)
    assert judging.default_target([silent], 128) is None
    assert judging.default_target([], 128) is None


def test_time_to_the_target_is_steps_times_the_time_of_a_step() -> None:
    one = evaluation({ONE.variant: [0.001, 0.002, 0.004], TWO.variant: [0.01] * 3}, cells=(ONE, TWO))
    found = judging.to_target(one, ONE)
    assert found.seconds == pytest.approx(
        math.exp(sum(map(math.log, found.steps)) / 5) * 0.002  # the geometric mean of the launches
    )
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.seconds < found.high  # type: ignore[operator]


def test_a_target_that_some_seeds_miss_has_no_time() -> None:
    one = evaluation()
    slow = tuple(curve(COPIES, seed, speed=0.99 if seed == 1 else 0.5) for seed in SEEDS)
    others = tuple(each for each in one.curves if each.variant != COPIES.variant)
    found = judging.to_target(replace(one, curves=(*others, *slow)), COPIES)
    assert found.seconds is None
    assert found.reason == "1 of 5 seeds did not reach it"
